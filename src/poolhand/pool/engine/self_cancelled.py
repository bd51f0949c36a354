"""Jobs that end as cancelled although no one cancelled them: their code raised CancelledError."""

from __future__ import annotations

from asyncio import current_task
from typing import Any

from poolhand.pool.slots.attempt import Attempt
from poolhand.pool.slots.fault import fault_of
from poolhand.rules.job import Fault
from poolhand.rules.outcome import SELF_CANCELLED, Cancelled, Failed, Outcome, StopRequest


def fault_of_end(attempt: Attempt[Any], outcome: Outcome) -> Fault | None:
    """Return what the code of an attempt raised, None where it ended otherwise.

    Called in the step in which the attempt ended.
    """
    if isinstance(outcome, Failed):
        return fault_of(outcome.error)
    is_own = isinstance(outcome, Cancelled) and _raised_it_itself(attempt)
    return SELF_CANCELLED if is_own else None


def _raised_it_itself(attempt: Attempt[Any]) -> bool:
    """Return whether neither the slot nor code outside asked for the cancellation of an attempt."""
    if attempt.asked is not StopRequest.NOTHING or attempt.unwanted or not attempt.entered:
        return False
    if attempt.outside is not None:
        return True
    task = current_task()
    return task is not None and not task.cancelling()
