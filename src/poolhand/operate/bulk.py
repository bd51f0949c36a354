"""Bulk cancel: many jobs in batches, each batch in a transaction of its own."""

from __future__ import annotations

from msgspec.structs import replace

from poolhand.contract import Filter, Stored
from poolhand.durable.client.explain import WHEN_OPENED, gone_processes
from poolhand.errors import UsageError
from poolhand.operate.operable import Operable
from poolhand.operate.retry import MOST_ANSWERS, NOT_FOUND, Progress, Tell
from poolhand.operate.views import ControlResult, Summary
from poolhand.rules.job import WAITING, Status
from poolhand.runtime import Identity

CANCEL_AT_ONCE = 500  # jobs in one transaction: it holds the pools of these jobs
ASKED = "asked"
LIVE = (*sorted(WAITING), Status.RUNNING)


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
    store: Operable, ids: list[str], by: str, here: Identity | None = None
) -> list[ControlResult]:
    """Cancel these jobs; each answer stands by itself.

    `here` is the identity of this process, by which others of its host are known to be gone.
    """
    answers: list[ControlResult] = []
    for start in range(0, len(ids), CANCEL_AT_ONCE):
        part = ids[start : start + CANCEL_AT_ONCE]
        before = await store.get(part)
        answers += map(_cancelled, part, before, await store.cancel(part, by))
    if any(answer.reason == ASKED for answer in answers):
        gone = gone_processes(await store.leases(), here)
        answers = [_of_gone(answer, gone) for answer in answers]
    return answers


def _of_gone(answer: ControlResult, gone: str | None) -> ControlResult:
    """Return the result for a job whose process is gone, so that it cannot be asked to stop."""
    if gone is None or answer.reason != ASKED:
        return answer
    return replace(answer, text=f"{gone}; the job is taken back, and cancelled, {WHEN_OPENED}")


async def cancel_all(store: Operable, which: Filter, by: str, tell: Tell | None) -> Summary:
    """Cancel all jobs that match the filter and were accepted before the call.

    Pages go back in time, so jobs submitted meanwhile are not cancelled.
    """
    which = live(which)
    total = sum((await store.count(which)).values())
    done = not_done = 0
    kept: list[ControlResult] = []
    after: int | None = None
    while True:
        page = await store.find(which, after, CANCEL_AT_ONCE)
        ids = [one.job.id for one in page.jobs]
        found = await store.cancel(ids, by) if ids else []
        answers = list(map(_cancelled, ids, page.jobs, found))
        missed = [answer for answer in answers if not answer.done]
        done += len(answers) - len(missed)
        not_done += len(missed)
        kept += missed[: MOST_ANSWERS - len(kept)]
        if tell is not None and ids:
            tell(Progress(done, not_done, max(total, done + not_done)))
        if page.after is None:
            return Summary(done, not_done, tuple(kept))
        after = page.after


def _cancelled(id: str, before: Stored | None, after: Stored | None) -> ControlResult:
    if after is None:
        if before is not None and before.parked:
            return ControlResult(id, True, "cancelled", "it is taken back; it had not come in yet")
        return ControlResult(id, False, "not_found", NOT_FOUND)
    if before is not None and before.job.status.terminal:
        return ControlResult(id, False, "over", f"it was over before: {after.job.status.value}")
    if after.job.status is Status.CANCELLED:
        return ControlResult(id, True, "cancelled", "it is cancelled")
    if after.job.status.terminal:
        return ControlResult(id, False, "over", f"it was over before: {after.job.status.value}")
    return ControlResult(id, True, ASKED, "it runs and was asked to stop")
