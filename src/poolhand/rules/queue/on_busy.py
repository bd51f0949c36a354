"""Busy sessions: what happens to a new turn when its session already has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Generic

from msgspec import Struct

from poolhand.rules.job import Job
from poolhand.rules.queue.entry import E
from poolhand.rules.streams import session_of

TURN = "turn"  # the kind of a message in the inbox of a waiting turn


class OnBusy(StrEnum):
    """What happens to a new turn whose session is busy.

    It waits; it is refused; it cancels the current turn, whose saved state remains or is rolled
    back; or it is merged into a waiting turn.
    """

    ENQUEUE = "enqueue"
    REJECT = "reject"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"
    MERGE = "merge"


class BusyAction(StrEnum):
    """The decision about a new turn."""

    ENTER = "enter"
    REFUSE = "refuse"
    REPLACE = "replace"
    JOIN = "join"


class BusyResult(Struct, Generic[E], frozen=True):
    """The decision about a new turn, and the existing turn it concerns."""

    way: BusyAction
    turn: E | None = None


def meet(
    job: Job, on_busy: OnBusy, holder: E | None, last: Callable[[], E | None]
) -> BusyResult[E]:
    """Decide about a new turn, given its session's holder; `last` is the last waiting turn."""
    if job.session is None or holder is None:
        return BusyResult(BusyAction.ENTER)
    match on_busy:
        case OnBusy.ENQUEUE:
            return BusyResult(BusyAction.ENTER)
        case OnBusy.REJECT:
            return BusyResult(BusyAction.REFUSE, holder)
        case OnBusy.INTERRUPT | OnBusy.ROLLBACK:
            return BusyResult(BusyAction.REPLACE, holder)
        case OnBusy.MERGE:
            for turn in (last(), holder):
                if turn is not None and _may_be_joined(turn.job, job):
                    return BusyResult(BusyAction.JOIN, turn)
            return BusyResult(BusyAction.ENTER)


def may_use(owner: str | None, user: str | None) -> bool:
    """Return whether a user may use a session of `owner`; None, no user, counts as a user."""
    return owner == user


def stranger(jobs: Iterable[Job], owners: Mapping[str, str | None]) -> Job | None:
    """Return the first job whose session belongs to another user, None where there is none.

    `owners` maps the keys of sessions to their users. A session not in it belongs to the user of
    its first turn.
    """
    begun: dict[str, str | None] = {}
    for job in jobs:
        if job.session is not None:
            key = session_of(job.tenant, job.session)
            owner = owners[key] if key in owners else begun.setdefault(key, job.user)
            if not may_use(owner, job.user):
                return job
    return None


def _may_be_joined(turn: Job, job: Job) -> bool:
    """Return whether a turn has not started, and runs the same task."""
    return turn.status.waiting and turn.started_at is None and turn.name == job.name
