"""Sight: what is known of a store as of the last look, asked for as far as it is shown."""

from __future__ import annotations

from msgspec.structs import replace

from poolhand.errors import PoolhandError
from poolhand.farm.roster import KEEP, FarmRecord, FarmState
from poolhand.operate.actions import Operator
from poolhand.operate.farms import LoneWorker
from poolhand.operate.showing import safe
from poolhand.operate.views import JobView, PoolView
from poolhand.runtime import Runtime
from poolhand.tui.choice import Choice, jobs_of
from poolhand.tui.rows import Running, running_in
from poolhand.tui.summary import head
from poolhand.tui.throughput import Throughput
from poolhand.tui.words import lasting

PAGE = 100  # jobs that are asked for at first, and more each time the last one is reached
MOST_JOBS = 1_000
SLOW = 3.0  # seconds without an answer after which that is said

WORKERS, JOBS, POOLS = VIEWS = ("workers", "jobs", "pools")


class Sight:
    """Looks at all farms of a store, or at one alone."""

    def __init__(self, operator: Operator, farm_id: str | None, runtime: Runtime) -> None:
        self.farms: list[FarmRecord] = []
        self.alone: tuple[LoneWorker, ...] = ()
        self.jobs: list[JobView] = []
        self.pools: list[PoolView] = []
        self.choice = Choice()
        self.limit = PAGE
        self._operator = operator
        self._farm_id = farm_id
        self._runtime = runtime
        self._throughput = Throughput(runtime.monotonic())
        self._away: str | None = None
        self._asked_at: float | None = None
        self._last: FarmRecord | None = None
        self._last_at = 0.0

    async def look(self, view: str | None) -> bool:
        """Ask for what a view shows, None: the farms alone; a store that is away is only noted."""
        self._asked_at = self._runtime.monotonic()
        try:
            await self._look_at_farms(view)
            if view == JOBS:
                self.jobs = await jobs_of(self._operator, self.choice, self.limit)
            elif view == POOLS:
                self.pools = await self._operator.pools()
        except PoolhandError as error:
            self._away = str(error)
            return False
        finally:
            self._asked_at = None
        self._away = None
        return True

    async def _look_at_farms(self, view: str | None) -> None:
        if self._farm_id is not None:
            farm = await self._operator.farm(self._farm_id)
            self.farms = [] if farm is None else [farm]
            if farm is not None:
                self._last, self._last_at = farm, self._runtime.monotonic()
        elif view == WORKERS:
            workers = await self._operator.workers()
            self.farms, self.alone = list(workers.farms), workers.alone
        else:
            self.farms = await self._operator.farms()
        counts = {farm.id: farm.completed + farm.failed for farm in self.farms}
        self._throughput.note(self._runtime.monotonic(), counts)

    def ended(self, asked_to: bool) -> bool:
        """Tell whether the one farm has ended: it was stopping, or has not written for long.

        A record that is gone may only be late: it does not outlive a store that is away.
        """
        if self._last is None or self.farms or self._away is not None:
            return False
        stopping = asked_to or self._last.state is FarmState.STOPPING
        return stopping or self._runtime.monotonic() - self._last_at > KEEP

    def choose(self, choice: Choice) -> None:
        """Look at other jobs from now on."""
        if choice != self.choice:
            self.choice, self.limit = choice, PAGE

    def search(self, text: str) -> None:
        """Look for jobs by this text from now on."""
        self.choose(replace(self.choice, search=text.strip()))

    def want_more(self) -> bool:
        """Ask for more jobs from now on; tell whether there may be any."""
        if len(self.jobs) < self.limit or self.limit >= MOST_JOBS:
            return False
        self.limit += PAGE
        return True

    def head(self, width: int) -> list[str]:
        """Return the lines that stand above every view."""
        at = self._runtime.monotonic()
        if self._last is None and self._farm_id is not None:
            lines = [f"farm {safe(self._farm_id)} has not written yet"]
        else:
            lines = head(self.farms, self._throughput, self._runtime.wall(), at, width)
        late = 0.0 if self._asked_at is None else at - self._asked_at
        if self._away is not None:
            return [*lines[:3], f"STORE AWAY, asked again: {safe(self._away)}"]
        if late > SLOW:
            return [*lines[:3], f"STORE SLOW: no answer for {lasting(late)}"]
        return lines

    def farm_of(self, chosen: str | None) -> FarmRecord | None:
        """Return the farm that is chosen itself, or by one of its workers; else the only one."""
        for farm in self.farms:
            if chosen == farm.id or any(chosen == worker.id for worker in farm.workers):
                return farm
        return self.farms[0] if len(self.farms) == 1 else None

    def pool_of(self, job: str | None) -> str | None:
        """Return the pool of a job that is shown."""
        return next((one.pool for one in self.jobs if one.id == job), None)

    def where(self, job: str) -> Running | None:
        """Return where a job runs, if a farm says so."""
        return running_in(self.farms).get(job)
