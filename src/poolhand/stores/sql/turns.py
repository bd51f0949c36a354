"""The log lines written when a turn of a session ends in favour of another."""

from __future__ import annotations

from poolhand.contract import LogLine
from poolhand.rules.job import Job
from poolhand.rules.queue.on_busy import TURN, OnBusy
from poolhand.rules.streams import rollbacks_of


def ended_for(turn: Job, on_busy: OnBusy) -> list[LogLine]:
    """Return the line that invalidates the writes of a turn that is rolled back."""
    if on_busy is not OnBusy.ROLLBACK or turn.session is None:
        return []
    return [LogLine(rollbacks_of(turn.tenant, turn.session), TURN, turn.id.encode())]
