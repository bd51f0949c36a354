"""The position of a job in its pool, as input for an explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolhand.pool.engine.work import Work
from poolhand.rules.explain import Explanation, Standing, explain
from poolhand.rules.job import Status

if TYPE_CHECKING:
    from poolhand.pool.engine.engine import Engine


def explain_work(engine: Engine, work: Work) -> Explanation:
    """Explain why a job waits and for about how long."""
    desk = engine.desk
    job = work.snapshot()
    holder = desk.sessions.holder(job)
    due_at = desk.due_of(work) if job.status is Status.SCHEDULED else None
    now = engine.clock.now()
    ran = now - work.began if job.status is Status.RUNNING else None
    hard = work.terms.hard
    return explain(
        Standing(
            job=job,
            slots=desk.slots,
            paused=desk.paused,
            parked=work.place is desk.parked,
            ahead=_ahead(engine, work),
            average=engine.slots.average_seconds(),
            due_in=None if due_at is None else due_at - now,
            holder=None if holder is None else holder.id,
            max_per_key=engine.config.max_per_key,
            stuck=engine.slots.stuck,
            ran=ran,
            left=None if ran is None or hard is None else max(0.0, hard - ran),
        )
    )


def _ahead(engine: Engine, work: Work) -> int | None:
    desk, job = engine.desk, work.job
    if work.place is not desk.parked:
        if job.status is Status.QUEUED:
            return desk.ahead_of(work)
        if job.status is not Status.BLOCKED:
            return None
        if job.blocked_on == "key" and desk.gates is not None:
            return desk.gates.ahead_of(work)
    count = 0
    one = work.before
    while one is not None:
        count, one = count + 1, one.before
    return count
