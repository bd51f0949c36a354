"""Planted bugs: each replaces one method by a plausible wrong version.

A schedule inside `with PLANTED[name]():` must fail sooner or later: that proves the checker.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from poolhand.pool.engine.work import Work
from poolhand.pool.slots.slots import Slots
from poolhand.rules.job import Status
from poolhand.rules.outcome import StopRequest
from poolhand.rules.queue.desk import Desk
from poolhand.rules.queue.entry import WaitingLine
from poolhand.rules.queue.gates import KeyGates, Sessions


@contextmanager
def replaced(owner: type, name: str, wrong: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a method inside a block by the result of `wrong`."""
    right = getattr(owner, name)
    setattr(owner, name, wrong(right))
    try:
        yield
    finally:
        setattr(owner, name, right)


def lost_wake_up() -> AbstractContextManager[None]:
    """A blocked submitter is not woken when a job starts and frees its place."""

    def wrong(right: Any) -> Any:
        def take_next(desk: Any, now: float) -> Any:
            blocked_submitters, desk.blocked_submitters = desk.blocked_submitters, WaitingLine()
            try:
                return right(desk, now)
            finally:
                desk.blocked_submitters = blocked_submitters

        return take_next

    return replaced(Desk, "next", wrong)


def session_kept() -> AbstractContextManager[None]:
    """A turn that is cancelled before its start does not release its session."""

    def wrong(right: Any) -> Any:
        def leave(sessions: Any, entry: Any) -> Any:
            is_new = entry.job.status is Status.CANCELLED and not entry.job.attempts
            return None if is_new else right(sessions, entry)

        return leave

    return replaced(Sessions, "leave", wrong)


def first_waiter_only() -> AbstractContextManager[None]:
    """Of several callers that await one job only the first is answered."""

    def wrong(_: Any) -> Any:
        def wake(work: Any) -> None:
            if work.waiters:
                first = work.waiters.pop(0)
                if not first.done():
                    first.set_result(None)

        return wake

    return replaced(Work, "wake", wrong)


def worker_killed() -> AbstractContextManager[None]:
    """A job that raises CancelledError by itself ends the task of its slot before it is settled."""

    def wrong(right: Any) -> Any:
        def ended(slots: Any, attempt: Any, value: Any, error: BaseException | None) -> None:
            alive = attempt.task is not None and not attempt.task.done()
            if isinstance(error, CancelledError) and alive and attempt.asked is StopRequest.NOTHING:
                raise error
            right(slots, attempt, value, error)

        return ended

    return replaced(Slots, "_ended", wrong)


def waiting_forgotten() -> AbstractContextManager[None]:
    """A job that returns for a retry is not counted as waiting."""

    def wrong(right: Any) -> Any:
        def give_back(desk: Any, entry: Any, opens_at: float, now: float) -> None:
            right(desk, entry, opens_at, now)
            desk.waiting -= 1

        return give_back

    return replaced(Desk, "give_back", wrong)


def permit_leaked() -> AbstractContextManager[None]:
    """A queued job that is cancelled or evicted keeps the permit of its key."""

    def wrong(_: Any) -> Any:
        def withdraw(gates: Any, entry: Any) -> None:
            gates.start(entry)

        return withdraw

    return replaced(KeyGates, "withdraw", wrong)


def shrinking_ignored() -> AbstractContextManager[None]:
    """A pool that shrinks while its slots are busy keeps the number of busy slots."""

    def wrong(right: Any) -> Any:
        def resize(desk: Any, slots: int, now: float) -> None:
            right(desk, max(slots, desk.running), now)

        return resize

    return replaced(Desk, "resize", wrong)


PLANTED: dict[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug
    for bug in (
        lost_wake_up,
        session_kept,
        first_waiter_only,
        worker_killed,
        waiting_forgotten,
        permit_leaked,
        shrinking_ignored,
    )
}
