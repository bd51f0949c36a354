"""The model of the live view: the state of a store at the last poll, as far as it is shown."""

from __future__ import annotations

from msgspec.structs import replace

from poolhand.contract import Filter
from poolhand.errors import PoolhandError
from poolhand.farm.records import KEEP, FarmRecord, FarmState
from poolhand.operate.actions import Operator
from poolhand.operate.farms import LoneWorker
from poolhand.operate.views import JobView, PoolView
from poolhand.rules.values.escape import safe
from poolhand.runtime import Runtime
from poolhand.tui import summary
from poolhand.tui.filter import JobFilter, jobs_of
from poolhand.tui.format import lasting
from poolhand.tui.rows import RunningRow, running_in
from poolhand.tui.summary import Counts, Part
from poolhand.tui.throughput import Throughput

PAGE = 100  # jobs loaded at first, and again each time the cursor reaches the last one
MOST_JOBS = 1_000
RECENT = 50  # newest jobs shown below the workers
ALL_JOBS = Filter()
SLOW = 3.0  # seconds without an answer until the store is reported as slow

WORKERS, JOBS, POOLS = VIEWS = ("workers", "jobs", "pools")


class ViewModel:
    """Polls all farms of a store, or only one."""

    def __init__(self, operator: Operator, farm_id: str | None, runtime: Runtime) -> None:
        self.farms: list[FarmRecord] = []
        self.alone: tuple[LoneWorker, ...] = ()
        self.jobs: list[JobView] = []
        self.recent: list[JobView] = []
        self.counts: Counts = {}
        self.pools: list[PoolView] = []
        self.choice = JobFilter()
        self.limit = PAGE
        self._operator = operator
        self._farm_id = farm_id
        self._runtime = runtime
        self._throughput = Throughput(runtime.monotonic())
        self._away: str | None = None
        self._looked = False
        self._asked_at: float | None = None
        self._last: FarmRecord | None = None
        self._last_at = 0.0

    async def look(self, view: str | None) -> bool:
        """Poll the data of a view (None: only what all views show); return False on an error."""
        self._asked_at = self._runtime.monotonic()
        try:
            await self._look_at_farms(view)
            self.counts = await self._operator.count()
            self.pools = await self._operator.pools()
            if view == WORKERS:
                self.recent = list(await self._operator.jobs(ALL_JOBS, None, RECENT))
            elif view == JOBS:
                self.jobs = await jobs_of(self._operator, self.choice, self.limit)
        except PoolhandError as error:
            self._away = str(error)
            return False
        finally:
            self._asked_at = None
        self._away, self._looked = None, True
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
        """Return whether the shown farm has ended: it was stopping, or has long had no record.

        A missing record may only be late: it expires while the store is unavailable.
        """
        if self._last is None or self.farms or self._away is not None:
            return False
        stopping = asked_to or self._last.state is FarmState.STOPPING
        return stopping or self._runtime.monotonic() - self._last_at > KEEP

    def choose(self, choice: JobFilter) -> None:
        """Set the job filter."""
        if choice != self.choice:
            self.choice, self.limit = choice, PAGE

    def search(self, text: str) -> None:
        """Set the search text of the job filter."""
        self.choose(replace(self.choice, search=text.strip()))

    def want_more(self) -> bool:
        """Load more jobs from now on; return whether there may be any."""
        if len(self.jobs) < self.limit or self.limit >= MOST_JOBS:
            return False
        self.limit += PAGE
        return True

    def who(self) -> list[Part]:
        """Return the names of the shown farms."""
        if self._last is None and self._farm_id is not None:
            return [("farm ", ""), (safe(self._farm_id), "bold"), (" has not reported yet", "")]
        return summary.who(self.farms)

    def state(self) -> list[Part]:
        """Return the state of the farms."""
        return summary.state(self.farms, self._runtime.wall())

    def load(self, width: int) -> list[list[Part]]:
        """Return the load line and the throughput line."""
        at = self._runtime.monotonic()
        speed = summary.speed(self.farms, self.counts, self._throughput, at, width)
        return [summary.load(self.farms, self.counts), speed]

    def alert(self) -> list[Part]:
        """Return the problem that blocks the view or the farm; empty if there is none."""
        late = 0.0
        if self._asked_at is not None:
            late = self._runtime.monotonic() - self._asked_at
        if self._away is not None:
            return [(f"STORE AWAY, asked again: {safe(self._away)}", "bold red")]
        if late > SLOW:
            return [(f"STORE SLOW: no answer for {lasting(late)}", "bold red")]
        if not self.farms and self._looked and (self._farm_id is None or self._last is not None):
            return [(summary.NO_FARM, "yellow")]
        return summary.silent(self.farms) or summary.held(self.farms)

    def hint(self) -> str:
        """Return a hint for the status line, shown while it has no message."""
        return summary.limits(self.farms, self.pools)

    @property
    def troubles(self) -> int:
        """How many troubles the farms report."""
        return sum(len(farm.troubles) for farm in self.farms)

    def farm_of(self, chosen: str | None) -> FarmRecord | None:
        """Return the farm with this id or with a worker of this id; else the only farm."""
        for farm in self.farms:
            if chosen == farm.id or any(chosen == worker.id for worker in farm.workers):
                return farm
        return self.farms[0] if len(self.farms) == 1 else None

    def pool_of(self, job: str | None) -> str | None:
        """Return the pool of a shown job."""
        known = [*self.jobs, *self.recent]
        return next((one.pool for one in known if one.id == job), None)

    def where(self, job: str) -> RunningRow | None:
        """Return the worker of a running job, if a farm's record lists it."""
        return running_in(self.farms).get(job)
