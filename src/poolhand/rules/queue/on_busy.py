"""Turns of a session: what a newcomer does that finds another one there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Generic

from msgspec import Struct

from poolhand.rules.job import Job
from poolhand.rules.queue.entry import E
from poolhand.rules.streams import session_of

TURN = "turn"  # what comes to the inbox of one that waits


class OnBusy(StrEnum):
    """What becomes of a turn whose session is busy.

    It waits; it is refused; the turn that is there is cancelled for it, and what that had saved is
    kept, or rolled back; or it joins one that waits.
    """

    ENQUEUE = "enqueue"
    REJECT = "reject"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"
    MERGE = "merge"


class BusyAction(StrEnum):
    """How a newcomer goes on."""

    ENTER = "enter"
    REFUSE = "refuse"
    REPLACE = "replace"
    JOIN = "join"


class BusyResult(Struct, Generic[E], frozen=True):
    """How a newcomer goes on, and the turn that this is about."""

    way: BusyAction
    turn: E | None = None


def meet(
    job: Job, on_busy: OnBusy, holder: E | None, last: Callable[[], E | None]
) -> BusyResult[E]:
    """Say how a newcomer goes on whose session may be held; `last` waits behind all others."""
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
    """Tell whether a session of one user is open to another; one without a user is a user too."""
    return owner == user


def stranger(jobs: Iterable[Job], owners: Mapping[str, str | None]) -> Job | None:
    """Return the first job whose session belongs to another user, None where there is none.

    `owners` are the users of sessions by their keys. A session that has none belongs to the user of
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
    """Tell whether a turn has not begun, and is of the same code."""
    return turn.status.waiting and turn.started_at is None and turn.name == job.name
