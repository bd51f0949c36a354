"""Retry of dead jobs: each becomes a new job with the same call record, which replaces it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from poolhand.contract import Added, Admission, Filter, JobBatch, JobRequest, Refusal, Stored
from poolhand.durable.client.job_request import JobRequests
from poolhand.operate.operable import Operable
from poolhand.operate.views import ControlResult, Summary
from poolhand.rules.job import Status
from poolhand.rules.values.plain import PlainView
from poolhand.runtime import Runtime

AT_ONCE = 100
MOST_ANSWERS = 1000

NOT_FOUND = "there is no such job"


class Progress(PlainView, frozen=True):
    """The progress of a bulk operation; `total` was counted when it began."""

    done: int
    not_done: int
    total: int


Tell = Callable[[Progress], None]


class Retries:
    """Submits dead jobs again as new jobs."""

    def __init__(self, store: Operable, runtime: Runtime) -> None:
        self._store = store
        self._orders = JobRequests(runtime)

    async def some(self, ids: Sequence[str], by: str) -> list[ControlResult]:
        """Retry these jobs; return one answer per job."""
        answers: list[ControlResult] = []
        for start in range(0, len(ids), AT_ONCE):
            part = ids[start : start + AT_ONCE]
            answers += await self._rerun(
                list(zip(part, await self._store.get(part), strict=True)), by
            )
        return answers

    async def all(self, which: Filter, by: str, tell: Tell | None) -> Summary:
        """Retry all jobs that match the filter and were dead before the call.

        After a pool has refused one job as full, the rest of its dead jobs are skipped.
        """
        which = replace(which, dead=True)
        total = sum((await self._store.count(which)).values())
        tally = _Tally(total)
        full: dict[str, ControlResult] = {}
        after: int | None = None
        while True:
            # Pages go back in time, so jobs that fail again meanwhile are not retried twice.
            page = await self._store.find(which, after, AT_ONCE)
            left = [
                replace(full[one.job.pool], id=one.job.id)
                for one in page.jobs
                if one.job.pool in full
            ]
            wanted = [(one.job.id, one) for one in page.jobs if one.job.pool not in full]
            answers = await self._rerun(wanted, by)
            for (_, one), answer in zip(wanted, answers, strict=True):
                if answer.reason in ("full", "no_slot", "rejected"):
                    full[one.job.pool] = answer
            tally.add([*answers, *left])
            if tell is not None and page.jobs:
                tell(Progress(tally.done, tally.not_done, max(total, tally.seen)))
            if page.after is None:
                return tally.summary()
            after = page.after

    async def _rerun(
        self, jobs: Sequence[tuple[str, Stored | None]], by: str
    ) -> list[ControlResult]:
        answers: dict[int, ControlResult] = {}
        orders: dict[int, JobRequest] = {}
        for place, (id, stored) in enumerate(jobs):
            brief = None if stored is None else await self._store.brief(id)
            if stored is None or brief is None:
                answers[place] = ControlResult(id, False, "not_found", NOT_FOUND)
            elif not stored.dead:
                answers[place] = ControlResult(id, False, "not_dead", _not_dead(stored))
            else:
                orders[place] = self._orders.again(stored.job, brief, by)
        results = await self._store.add([JobBatch((order,)) for order in orders.values()])
        for (place, order), result in zip(orders.items(), results, strict=True):
            answers[place] = _answer(order, result)
        return [answers[place] for place in range(len(jobs))]


class _Tally:
    """Counts answers and keeps the first of those that were not done."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.not_done = 0
        self._kept: list[ControlResult] = []

    @property
    def seen(self) -> int:
        return self.done + self.not_done

    def add(self, answers: Sequence[ControlResult]) -> None:
        counts = Counter(answer.done for answer in answers)
        self.done += counts[True]
        self.not_done += counts[False]
        room = MOST_ANSWERS - len(self._kept)
        self._kept += [answer for answer in answers if not answer.done][:room]

    def summary(self) -> Summary:
        return Summary(self.done, self.not_done, tuple(self._kept))


def _answer(order: JobRequest, result: tuple[Added, ...] | Refusal) -> ControlResult:
    old = order.revives or ""
    if isinstance(result, Refusal):
        return ControlResult(old, False, result.reason, _refused(result))
    (added,) = result
    match added.entry:
        case Admission.TAKEN:
            return ControlResult(
                old, True, "retried", f"it runs again as {added.job.id}", added.job.id
            )
        case Admission.JOINED | Admission.PARKED:
            key = order.job.idempotency_key
            text = f"job {added.job.id} has its place: idempotency key {key!r} stands for that one"
            return ControlResult(old, True, "joined", text, added.job.id)
        case Admission.REJECTED:
            policy = added.job.rejection_policy
            return ControlResult(
                old, False, "rejected", f"pool {order.job.pool!r} dropped it ({policy})"
            )


def _refused(refusal: Refusal) -> str:
    if refusal.reason == "not_dead":
        return "it is no dead letter any more: somebody was first"
    if refusal.reason == "user":
        return "its session belongs to another user by now"
    state = f"{refusal.running} running, {refusal.waiting} waiting, {refusal.policy}"
    return f"pool {refusal.pool!r} is full ({state}); try again later or resize the pool"


def _not_dead(stored: Stored) -> str:
    status = stored.job.status
    if status is Status.FAILED:
        return "it was retried before; retry the job that took its place"
    if status.terminal:
        return f"it is {status.value}; only a failed job can be retried"
    return f"it is not over yet: {status.value}"
