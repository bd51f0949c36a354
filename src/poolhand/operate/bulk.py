"""Operations on many jobs: cancel, retry, drop and export, in batches.

Each batch is a transaction of its own. Pages go back in time, so jobs that are submitted, or fail,
meanwhile are not touched. Retried jobs are submitted in the order of the dead ones.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from poolhand.contract import Added, Admission, Filter, JobBatch, JobRequest, Refusal, Store, Stored
from poolhand.durable.calls.call_record import read_call_record
from poolhand.durable.client.explain import WHEN_OPENED, gone_processes
from poolhand.durable.client.job_request import JobRequests
from poolhand.errors import PoolhandError, UsageError
from poolhand.operate.views import ControlResult, JobView, Summary, job_view
from poolhand.rules.job import WAITING, Status
from poolhand.rules.plain import PlainView
from poolhand.runtime import Identity, Runtime
from poolhand.wire.payload import Wire

AT_ONCE = 100
LARGEST_PAGE = 1000
CANCEL_AT_ONCE = 500  # jobs in one transaction: it holds the pools of these jobs
MOST_ANSWERS = 1000
LIVE = (*sorted(WAITING), Status.RUNNING)
REQUESTED = "asked"
POOL_FULL = ("full", "no_slot", "rejected")
NOT_FOUND = "there is no such job"


class Progress(PlainView, frozen=True):
    """The progress of a bulk operation; `total` was counted when it began."""

    done: int
    not_done: int
    total: int


OnProgress = Callable[[Progress], None]
Act = Callable[[Sequence[Stored]], Awaitable[Sequence[ControlResult]]]


Batches = AsyncIterator[Sequence[Stored]]


async def _newest_first(store: Store, which: Filter, size: int) -> Batches:
    """Yield the jobs that match the filter and were accepted before the call."""
    after: int | None = None
    while True:
        page = await store.find(which, after, size)
        if page.jobs:
            yield page.jobs
        if page.after is None:
            return
        after = page.after


async def _oldest_first(store: Store, which: Filter, size: int) -> Batches:
    """Yield the same jobs, in the order they were submitted."""
    pages = _newest_first(store, which, LARGEST_PAGE)
    ids = [one.job.id async for jobs in pages for one in jobs][::-1]
    for start in range(0, len(ids), size):
        found = await store.get(ids[start : start + size])
        yield [one for one in found if one is not None]


async def _in_batches(
    store: Store, which: Filter, batches: Batches, act: Act, progress: OnProgress | None
) -> Summary:
    """Act on all jobs that match the filter, batch by batch."""
    total = sum((await store.count(which)).values())
    done = not_done = 0
    kept: list[ControlResult] = []
    async for jobs in batches:
        answers = await act(jobs)
        missed = [answer for answer in answers if not answer.done]
        done += len(answers) - len(missed)
        not_done += len(missed)
        kept += missed[: MOST_ANSWERS - len(kept)]
        if progress is not None:
            progress(Progress(done, not_done, max(total, done + not_done)))
    return Summary(done, not_done, tuple(kept))


# Cancel.


def live(which: Filter) -> Filter:
    """Restrict a filter to unfinished jobs; raise if it names a terminal status."""
    over = [status.value for status in which.statuses if status.terminal]
    if over:
        raise UsageError(
            f"statuses={over} is not allowed; a job can be cancelled while it is "
            f"{', '.join(LIVE[:-1])} or {LIVE[-1]}"
        )
    return replace(which, statuses=which.statuses or LIVE, dead=None)


async def cancel(
    store: Store, ids: list[str], by: str, here: Identity | None = None
) -> list[ControlResult]:
    """Cancel these jobs; return one answer per job.

    `here` is the identity of this process, by which others of its host are known to be gone.
    """
    answers: list[ControlResult] = []
    for start in range(0, len(ids), CANCEL_AT_ONCE):
        part = ids[start : start + CANCEL_AT_ONCE]
        before = await store.get(part)
        answers += map(_cancelled, part, before, await store.cancel(part, by))
    if any(answer.reason == REQUESTED for answer in answers):
        gone = gone_processes(await store.leases(), here)
        answers = [_of_gone(answer, gone) for answer in answers]
    return answers


def _of_gone(answer: ControlResult, gone: str | None) -> ControlResult:
    """Return the result for a job whose process is gone and cannot be requested to stop."""
    if gone is None or answer.reason != REQUESTED:
        return answer
    return replace(answer, text=f"{gone}; the job is taken back, and cancelled, {WHEN_OPENED}")


async def cancel_all(store: Store, which: Filter, by: str, progress: OnProgress | None) -> Summary:
    """Cancel all jobs that match the filter."""

    async def act(jobs: Sequence[Stored]) -> Sequence[ControlResult]:
        ids = [one.job.id for one in jobs]
        return list(map(_cancelled, ids, jobs, await store.cancel(ids, by)))

    which = live(which)
    batches = _newest_first(store, which, CANCEL_AT_ONCE)
    return await _in_batches(store, which, batches, act, progress)


def _cancelled(id: str, before: Stored | None, after: Stored | None) -> ControlResult:
    if after is None:
        if before is not None and before.submitter_blocked:
            return ControlResult(id, True, "cancelled", "it is cancelled; it was not accepted yet")
        return ControlResult(id, False, "not_found", NOT_FOUND)
    ended_before = before is not None and before.job.status.terminal
    if after.job.status is Status.CANCELLED and not ended_before:
        return ControlResult(id, True, "cancelled", "it is cancelled")
    if after.job.status.terminal:
        return ControlResult(id, False, "over", f"it had already ended: {after.job.status.value}")
    return ControlResult(id, True, REQUESTED, "it runs and was asked to stop")


# Retry: each dead job becomes a new job with the same call record, which replaces it.


class Retries:
    """Submits dead jobs again as new jobs."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._requests = JobRequests(runtime)

    async def some(self, ids: Sequence[str], by: str) -> list[ControlResult]:
        """Retry these jobs; return one answer per job."""
        answers: list[ControlResult] = []
        for start in range(0, len(ids), AT_ONCE):
            part = ids[start : start + AT_ONCE]
            found = await self._store.get(part)
            answers += await self._retry_batch(list(zip(part, found, strict=True)), by)
        return answers

    async def all(self, which: Filter, by: str, progress: OnProgress | None) -> Summary:
        """Retry all dead jobs that match the filter.

        After a pool has refused one job as full, the rest of its dead jobs are skipped.
        """
        full: dict[str, ControlResult] = {}

        async def act(jobs: Sequence[Stored]) -> Sequence[ControlResult]:
            skipped = [
                replace(full[one.job.pool], id=one.job.id) for one in jobs if one.job.pool in full
            ]
            wanted = [(one.job.id, one) for one in jobs if one.job.pool not in full]
            answers = await self._retry_batch(wanted, by)
            for (_, one), answer in zip(wanted, answers, strict=True):
                if answer.reason in POOL_FULL:
                    full[one.job.pool] = answer
            return [*answers, *skipped]

        which = replace(which, dead=True)
        batches = _oldest_first(self._store, which, AT_ONCE)
        return await _in_batches(self._store, which, batches, act, progress)

    async def _retry_batch(
        self, jobs: Sequence[tuple[str, Stored | None]], by: str
    ) -> list[ControlResult]:
        answers: dict[int, ControlResult] = {}
        requests: dict[int, JobRequest] = {}
        found = await self._store.get([id for id, _ in jobs], calls=True)
        for place, ((id, stored), kept) in enumerate(zip(jobs, found, strict=True)):
            record = None if kept is None else kept.call_record
            if stored is None or record is None:
                answers[place] = ControlResult(id, False, "not_found", NOT_FOUND)
            elif not stored.dead:
                answers[place] = ControlResult(id, False, "not_dead", _not_dead(stored))
            else:
                requests[place] = self._requests.again(stored.job, record, by)
        results = await self._store.add([JobBatch((request,)) for request in requests.values()])
        for (place, request), result in zip(requests.items(), results, strict=True):
            answers[place] = _retried(request, result)
        return [answers[place] for place in range(len(jobs))]


def _retried(request: JobRequest, result: tuple[Added, ...] | Refusal) -> ControlResult:
    old = request.revives or ""
    if isinstance(result, Refusal):
        return ControlResult(old, False, result.reason, _refused(result))
    (added,) = result
    id = added.job.id
    match added.entry:
        case Admission.ACCEPTED:
            return ControlResult(old, True, "retried", f"it runs again as {id}", id)
        case Admission.JOINED | Admission.BLOCKED_SUBMITTER:
            key = request.job.idempotency_key
            text = f"job {id} replaces it: it already has the idempotency key {key!r}"
            return ControlResult(old, True, "joined", text, id)
        case Admission.REJECTED:
            text = f"pool {request.job.pool!r} dropped it ({added.job.rejection_policy})"
            return ControlResult(old, False, "rejected", text)


def _refused(refusal: Refusal) -> str:
    if refusal.reason == "not_dead":
        return "it was already retried by someone else"
    if refusal.reason == "key" and refusal.holder is not None:
        other = refusal.holder
        return f"its idempotency key now stands for another call: job {other.id} of {other.name}"
    if refusal.reason == "user":
        return "its session now belongs to another user"
    state = f"{refusal.running} running, {refusal.waiting} waiting, {refusal.policy}"
    return f"pool {refusal.pool!r} is full ({state}); try again later or resize the pool"


def _not_dead(stored: Stored) -> str:
    status = stored.job.status
    if status is Status.FAILED:
        return "it was already retried; retry the job that replaced it"
    if status.terminal:
        return f"it is {status.value}; only a failed job can be retried"
    return f"it has not ended yet: {status.value}"


# Dead letters: export and drop.


class DeadLetter(PlainView, frozen=True):
    """A dead letter for an archive: the job and its call.

    `call` is the task with its positional and keyword arguments, or None if they cannot be decoded
    without the code and the keys of the app; `payload` is the stored bytes, in base64.
    """

    job: JobView
    call: Any
    payload: str


class ExportPage(PlainView, frozen=True):
    """A page of dead letters, newest first; `after` is the next cursor, None at the end."""

    letters: tuple[DeadLetter, ...]
    after: int | None


async def export(store: Store, which: Filter, after: int | None, limit: int) -> ExportPage:
    """Return a page of dead letters with their calls."""
    page = await store.find(replace(which, dead=True), after, limit)
    found = await store.get([one.job.id for one in page.jobs], calls=True)
    letters = (
        _letter(one, one.call_record) for one in found if one and one.call_record is not None
    )
    return ExportPage(tuple(letters), page.after)


def _letter(stored: Stored, record: bytes) -> DeadLetter:
    payload, call = b"", None
    try:
        payload = read_call_record(record, stored.job.id).payload
        call = Wire().read(payload, Any, "the call")
    except PoolhandError:
        # Signed, pickled or damaged: only the bytes can be exported.
        pass
    return DeadLetter(job_view(stored, None), call, b64encode(payload).decode())


async def drop(store: Store, ids: Sequence[str], by: str) -> list[ControlResult]:
    """Delete these dead letters; return one answer per job; the audit log records each."""
    found = dict(zip(ids, await store.get(ids), strict=True))
    dead = [id for id, one in found.items() if one is not None and one.dead]
    dropped = set(await store.erase(dead, (), by))
    return [_dropped(id, found[id], id in dropped) for id in ids]


async def drop_all(store: Store, which: Filter, by: str, progress: OnProgress | None) -> Summary:
    """Delete all dead letters that match the filter."""

    async def act(jobs: Sequence[Stored]) -> Sequence[ControlResult]:
        return await drop(store, [one.job.id for one in jobs], by)

    which = replace(which, dead=True)
    return await _in_batches(store, which, _newest_first(store, which, AT_ONCE), act, progress)


def _dropped(id: str, stored: Stored | None, is_dropped: bool) -> ControlResult:
    result = partial(ControlResult, id)
    if is_dropped:
        return result(True, "dropped", "it is deleted")
    if stored is None:
        return result(False, "not_found", NOT_FOUND)
    if not stored.dead:
        return result(False, "not_dead", f"it is not a dead letter: {stored.job.status.value}")
    return result(False, "kept", "its code still runs; drop it when that has ended")
