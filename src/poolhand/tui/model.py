"""The model of the live view: the store at the last poll, the job filter, the actions of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from poolhand.contract import Filter
from poolhand.errors import PoolhandError
from poolhand.farm.records import KEEP, ControlAnswer, FarmRecord, FarmState, Snapshot
from poolhand.operate import summary
from poolhand.operate.actions import Operator
from poolhand.operate.farms import LoneWorker
from poolhand.operate.format import lasting
from poolhand.operate.summary import Counts, Part, Throughput
from poolhand.operate.tables import RunningRow, running_in
from poolhand.operate.views import JobView, PoolView
from poolhand.rules.job import TERMINAL, WAITING, Status
from poolhand.rules.plain import safe
from poolhand.runtime import Runtime

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
            return [(f"STORE DOWN, retrying: {safe(self._away)}", "bold red")]
        if late > SLOW:
            return [(f"STORE SLOW: no answer for {lasting(late)}", "bold red")]
        if not self.farms and self._looked and (self._farm_id is None or self._last is not None):
            return [(summary.NO_FARM, "yellow")]
        return summary.silent(self.farms) or summary.held(self.farms)

    def hint(self) -> str:
        """Return a hint for the status line, shown while it has no message."""
        return summary.limits(self.farms, self.pools)

    def troubles(self) -> list[Part]:
        """Return how many troubles the farms report, and how long ago the last one was."""
        return summary.troubles(self.farms, self._runtime.wall())

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


MOST_PAGES = 10
ANSWERED_WITHIN = 12.0  # seconds a farm may take to answer a control request
WRITTEN_WITHIN = 2.0  # seconds it may then take to write its record


class KeyActions:
    """Runs actions through the operator, with `by` as the actor."""

    def __init__(self, operator: Operator, by: str, clock: Callable[[], float]) -> None:
        self._operator = operator
        self._by = by
        self._clock = clock
        self._requested: dict[str, tuple[tuple[int, int], float]] = {}

    async def retry(self, job: str) -> str:
        """Retry a dead job."""
        (answer,) = await self._operator.retry([job], self._by)
        return f"{job}: {answer.text}"

    async def cancel(self, job: str) -> str:
        """Cancel a waiting job, or request a running one to stop."""
        (answer,) = await self._operator.cancel([job], self._by)
        return f"{job}: {answer.text}"

    async def switch_pool(self, name: str) -> str:
        """Pause a pool, or resume a paused one."""
        paused = {pool.name: pool.paused for pool in await self._operator.pools()}
        if name not in paused:
            return f"there is no pool {name!r}"
        if paused[name]:
            await self._operator.resume(name, self._by)
            return f"pool {name!r}: jobs start again"
        await self._operator.pause(name, self._by)
        return f"pool {name!r} is paused: running jobs continue, no job starts"

    async def move_bounds(self, farm: FarmRecord, minimum: int, maximum: int) -> str:
        """Change the minimum and maximum number of workers of a farm by these amounts."""
        least, most = self._bounds(farm)
        wanted = (least + minimum, most + maximum)
        self._request(farm.id, wanted, ANSWERED_WITHIN)
        try:
            changed = (wanted[0] if minimum else None, wanted[1] if maximum else None)
            answer = await self._operator.set_bounds(farm.id, *changed, self._by)
        except BaseException:
            self._requested.pop(farm.id, None)
            raise
        if answer is None or not answer.done:
            self._requested.pop(farm.id, None)
        else:
            self._request(farm.id, self._requested.get(farm.id, (wanted, 0.0))[0], WRITTEN_WITHIN)
        return _said(farm.id, answer)

    def _bounds(self, farm: FarmRecord) -> tuple[int, int]:
        """Return the bounds last requested, or else recorded: keys are faster than records."""
        requested, until = self._requested.get(farm.id, ((0, 0), 0.0))
        return requested if self._clock() < until else (farm.minimum, farm.maximum)

    def _request(self, farm: str, bounds: tuple[int, int], seconds: float) -> None:
        self._requested[farm] = (bounds, self._clock() + seconds)

    async def drain(self, farm: str) -> str:
        """Stop a farm after its running jobs have finished."""
        return _said(farm, await self._operator.drain_farm(farm, self._by))

    async def snapshot(self, id: str) -> Snapshot | str:
        """Return the running and recently finished jobs of a farm or worker, or why not."""
        whole: Snapshot | None = None
        after: int | None = 0
        for _ in range(MOST_PAGES):
            answer = await self._operator.snapshot(id, after or 0, PAGE)
            if answer is None or answer.snapshot is None:
                return _said(id, answer)
            page = answer.snapshot
            seen = () if whole is None else whole.finished
            whole = replace(page, finished=(*seen, *page.finished))
            after = page.after
            if after is None:
                break
        assert whole is not None
        return whole


def _said(id: str, answer: ControlAnswer | None) -> str:
    if answer is None:
        return f"{id} no longer exists"
    return f"{id}: {answer.text}"
