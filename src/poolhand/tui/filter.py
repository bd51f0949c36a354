"""The job filter of the live view: by state, pool and search text."""

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

SEARCHED = 1_000  # newest jobs that a search covers

STATES = {
    "all": Filter(),
    "waiting": Filter(statuses=tuple(sorted(WAITING))),
    "running": Filter(statuses=(Status.RUNNING,)),
    "ended": Filter(statuses=tuple(sorted(TERMINAL))),
    "failed": Filter(statuses=(Status.FAILED,)),
    "dead": Filter(dead=True),
}


class JobFilter(Struct, frozen=True):
    """A filter: a name of STATES, a pool, a part of an id or of a task name."""

    state: str = "all"
    pool: str | None = None
    search: str = ""

    @property
    def words(self) -> str:
        """The filter as text."""
        pool = "all pools" if self.pool is None else f"pool {safe(self.pool)}"
        search = f" · search {safe(self.search)!r}" if self.search else ""
        return f"{self.state} · {pool}{search}"

    def next_state(self) -> JobFilter:
        """Return the filter for the next state; after the last one, for all."""
        return replace(self, state=_next(list(STATES), self.state))

    def next_pool(self, pools: Sequence[str]) -> JobFilter:
        """Return the filter for the next pool; after the last one, for all."""
        return replace(self, pool=_next([None, *pools], self.pool))


async def jobs_of(operator: Operator, choice: JobFilter, limit: int) -> list[JobView]:
    """Return the jobs that match a filter, newest first.

    A search covers the newest jobs. If none of them matches, it looks up all jobs by id prefix, and
    then by the full task name.
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
