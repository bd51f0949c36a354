"""A notice for awaited jobs that cannot start: no worker serves their pool."""

from __future__ import annotations

from msgspec import Struct

from poolhand.durable.client.explain import explain_stored
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.observe.failures import warn
from poolhand.rules.job import Job, Status

AFTER = 10.0  # seconds that a job is awaited before the notice
SEEN_LAST = 5.0  # seconds after which a job that polls no longer return counts as over
HOW = (
    "(`async with app.worker():` in this program or, unless the store is memory://, "
    "`poolhand work module:app`)"
)


class _Candidate(Struct):
    """The awaited queued job of a pool that is watched."""

    id: str
    since: float
    seen_at: float


class UnservedNotice:
    """Logs once for each pool that an awaited job waits for a worker that does not exist.

    It uses the polls for awaited jobs, on the store thread's loop: it needs no timer, and queries
    the store only when a job has waited long.
    """

    def __init__(self, keeper: StoreThread) -> None:
        self._keeper = keeper
        self._candidates: dict[str, _Candidate] = {}
        self._logged: set[str] = set()

    def met(self, job: Job, at: float) -> None:
        """Note the state of an awaited job at a moment."""
        if job.pool in self._logged:
            return
        one = self._candidates.get(job.pool)
        if job.status is not Status.QUEUED:
            if one is not None and one.id == job.id:
                del self._candidates[job.pool]
        elif one is None or at - one.seen_at > SEEN_LAST:
            self._candidates[job.pool] = _Candidate(job.id, at, at)
        elif one.id == job.id:
            one.seen_at = at

    async def look(self) -> None:
        """Log the pools whose job has waited long enough without a worker."""
        for pool, one in list(self._candidates.items()):
            if one.seen_at - one.since < AFTER:
                continue
            del self._candidates[pool]
            runtime = self._keeper.runtime
            why = await explain_stored(
                self._keeper.store, one.id, runtime.wall(), runtime.identity()
            )
            if why.reason == "no_worker":
                self._logged.add(pool)
                warn(f"job {one.id} has waited {AFTER:.0f} s in pool {pool!r}: {why} {HOW}")
