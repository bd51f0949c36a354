"""The verbs that change a SQL store, each as the steps of one write."""

from __future__ import annotations

from collections.abc import Sequence

from poolhand.contract import Added, Change, ClaimRequest, JobBatch, Refusal, ReplacedJob, Stored
from poolhand.rules import audit
from poolhand.rules.queue.pool_spec import PoolSpec, undeclared
from poolhand.stores.sql.admission import StoredAdmission
from poolhand.stores.sql.claims import StoredLeases
from poolhand.stores.sql.steps import Steps


def declare(steps: Steps, spec: PoolSpec) -> None:
    """Create a pool, or apply its new spec."""
    pool = steps.pools.named(spec.name)
    if pool is None:
        steps.act(audit.CREATE, steps.pools.open(spec), "", "")
    elif pool.spec != spec:
        pool = steps.pools.declare(pool, spec)
        steps.freed.add(pool.no)
        steps.welcome(pool)


def know(steps: Steps, name: str) -> None:
    """Create a pool unless there is one of that name."""
    if steps.pools.named(name) is None:
        steps.pools.open(undeclared(name))


def pause(steps: Steps, name: str, paused: bool, by: str) -> None:
    """Pause or resume claims from a pool."""
    pool = steps.pools.known(name)
    steps.act(audit.PAUSE if paused else audit.RESUME, pool, by, "")
    steps.pools.pause(pool, paused)
    steps.freed.add(pool.no)
    steps.welcome(pool)


def resize(steps: Steps, name: str, slots: int | None, by: str) -> None:
    """Override the slots of a pool; None restores the declared ones."""
    pool = steps.pools.known(name)
    steps.act(audit.RESIZE, pool, by, "" if slots is None else str(slots))
    steps.pools.resize(pool, slots)
    steps.freed.add(pool.no)
    steps.welcome(pool)


def add(steps: Steps, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]:
    """Admit batches, each independently."""
    intake = StoredAdmission(steps)
    intake.expect(order.job for batch in batches for order in batch.orders)
    return [intake.take(batch) for batch in batches]


def unpark(steps: Steps, ids: Sequence[str]) -> list[str]:
    """Withdraw jobs of blocked submitters; return the ids of those already admitted."""
    rows = [row for row in map(steps.books.row_named, ids) if row is not None]
    came_in = [row.job.id for row in rows if not row.parked]
    steps.unpark(*dict.fromkeys(row for row in rows if row.parked))
    return came_in


def replace(steps: Steps, changes: Sequence[Change], wanted: ClaimRequest | None) -> ReplacedJob:
    """Settle claimed jobs, then claim."""
    leases = StoredLeases(steps)
    made = leases.change_all(changes)
    return ReplacedJob(made, () if wanted is None else tuple(leases.claim(wanted)))


def cancel(steps: Steps, asked: Sequence[tuple[str, str]]) -> list[Stored | None]:
    """Cancel waiting jobs and request it of running ones; `asked` pairs ids and requesters."""
    # If several callers cancel the same job, the first is recorded.
    whose: dict[str, str] = {}
    for id, by in asked:
        whose.setdefault(id, by)
    rows = steps.cancel_all(whose)
    found = {id: row.stored() for id, row in rows.items()}
    return [found.get(id) for id, _ in asked]
