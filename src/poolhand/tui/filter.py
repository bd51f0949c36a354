"""Which jobs are shown: of a state, of a pool, those that are searched for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from poolhand.contract import Filter
from poolhand.operate.actions import Operator
from poolhand.operate.views import JobView
from poolhand.rules.job import TERMINAL, WAITING, Status
from poolhand.rules.values.escape import safe

T = TypeVar("T")

SEARCHED = 1_000  # the newest jobs that a search looks through

STATES = {
    "all": Filter(),
    "waiting": Filter(statuses=tuple(sorted(WAITING))),
    "running": Filter(statuses=(Status.RUNNING,)),
    "ended": Filter(statuses=tuple(sorted(TERMINAL))),
    "failed": Filter(statuses=(Status.FAILED,)),
    "dead": Filter(dead=True),
}


class JobFilter(Struct, frozen=True):
    """What is chosen: a name of STATES, a pool, a part of an id or of a task's name."""

    state: str = "all"
    pool: str | None = None
    search: str = ""

    @property
    def words(self) -> str:
        """The choice, as a person reads it."""
        pool = "all pools" if self.pool is None else f"pool {safe(self.pool)}"
        search = f" · search {safe(self.search)!r}" if self.search else ""
        return f"{self.state} · {pool}{search}"

    def next_state(self) -> JobFilter:
        """Go on to the next state, after the last one to all."""
        return replace(self, state=_next(list(STATES), self.state))

    def next_pool(self, pools: Sequence[str]) -> JobFilter:
        """Go on to the next pool, after the last one to all."""
        return replace(self, pool=_next([None, *pools], self.pool))


async def jobs_of(operator: Operator, choice: JobFilter, limit: int) -> list[JobView]:
    """Return the jobs of a choice, newest first.

    A search goes through the newest ones; what is not among them is found by its whole id, or by
    the whole name of its task.
    """
    which = replace(STATES[choice.state], pool=choice.pool)
    if not choice.search:
        return list(await operator.jobs(which, None, limit))
    text = choice.search.lower()
    newest = await operator.jobs(which, None, SEARCHED)
    found = [job for job in newest if text in job.id.lower() or text in job.name.lower()]
    if found:
        return found[:limit]
    alike = await operator.jobs(Filter(id_prefix=choice.search), None, limit)
    if alike.jobs:
        return list(alike)
    return list(await operator.jobs(replace(which, name=choice.search), None, limit))


def _next(things: Sequence[T], now: T) -> T:
    place = things.index(now) if now in things else -1
    return things[(place + 1) % len(things)]
