"""CPU time to drain a full queue: every strategy of poolhand, and a bare heapq."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from contestants import LIMIT, TIMEOUT, Job, TaskPerJob

if TYPE_CHECKING:
    from poolhand import Pool

LEVELS = 10
WARM_UP = 1_000
HEAPQ = "bare heapq + task per job"


class Timing(NamedTuple):
    """Seconds of CPU and of wall time."""

    cpu: float
    wall: float


Round = Callable[[int], Awaitable[Timing]]


class Countdown:
    """Jobs that time their own drain, from the first start to the last end."""

    def __init__(self, count: int) -> None:
        self._count = self._left = count
        self._started = self.taken = Timing(0.0, 0.0)
        self.done = asyncio.Event()

    async def job(self) -> None:
        """One job: counts itself."""
        if self._left == self._count:
            self._started = Timing(time.process_time(), time.perf_counter())
        self._left -= 1
        if not self._left:
            cpu, wall = time.process_time(), time.perf_counter()
            self.taken = Timing(cpu - self._started.cpu, wall - self._started.wall)
            self.done.set()


class Gate:
    """LIMIT jobs that hold every slot until the queue behind them is full."""

    def __init__(self) -> None:
        self._inside = 0
        self._opened = asyncio.Event()
        self.full = asyncio.Event()

    async def hold(self) -> None:
        """Occupies one slot."""
        self._inside += 1
        if self._inside == LIMIT:
            self.full.set()
        await self._opened.wait()

    def open(self) -> None:
        """Starts the drain."""
        self._opened.set()


async def drain_heapq(size: int) -> Timing:
    """Pushes all, then pops each into a task of its own."""
    heap: list[tuple[int, int, Job]] = []
    slots = TaskPerJob(lambda: heapq.heappop(heap)[2] if heap else None)
    gate, countdown = Gate(), Countdown(size)
    for _ in range(LIMIT):
        slots.start(gate.hold)
    await gate.full.wait()
    for sequence in range(size):
        # A bound method made here is a separate object, as a record would be.
        heapq.heappush(heap, (-(sequence % LEVELS), sequence, countdown.job))
    gate.open()
    await countdown.done.wait()
    await slots.idle.wait()
    return countdown.taken


class Strategy(NamedTuple):
    """A queue strategy by its public name, and how its jobs differ from each other."""

    factory: str
    aging: float | None = None
    levels: int = 1
    keys: int = 0

    def make(self) -> Any:
        """The value for `Pool(queue=)`."""
        import poolhand

        factory = getattr(poolhand, self.factory)
        return factory() if self.aging is None else factory(aging=self.aging)

    def submitters(self, pool: Pool) -> list[Callable[[Job], object]]:
        """One submit method per key or priority level; jobs alternate between them."""
        if self.keys:
            views = [pool.with_options(key=f"key-{number}") for number in range(self.keys)]
        else:
            views = [pool.with_options(priority=level) for level in range(self.levels)]
        return [view.submit_nowait for view in views]


STRATEGIES = {
    "fifo": Strategy("fifo"),
    "lifo": Strategy("lifo"),
    "priority, 10 levels": Strategy("priority", levels=LEVELS),
    "priority(aging=60), 10 levels": Strategy("priority", aging=60, levels=LEVELS),
    "fair, 1 key": Strategy("fair_round_robin", keys=1),
    "fair, 50 keys": Strategy("fair_round_robin", keys=50),
    "fair, 5,000 keys": Strategy("fair_round_robin", keys=5_000),
}


async def drain_ours(
    pool: Pool, submitters: Sequence[Callable[[Job], object]], size: int
) -> Timing:
    """Fills the pool's queue behind a gate, then drains it; all tickets are held."""
    gate, countdown = Gate(), Countdown(size)
    held = [pool.submit_nowait(gate.hold) for _ in range(LIMIT)]
    await gate.full.wait()
    tickets = [submit(countdown.job) for submit in islice(cycle(submitters), size)]
    gate.open()
    await countdown.done.wait()
    for ticket in held:
        await ticket
    del tickets
    return countdown.taken


async def drain(name: str, size: int, rounds: int) -> Timing:
    """Seconds per job over all rounds, after one warm-up round that fills the history."""
    total = Timing(0.0, 0.0)
    async with AsyncExitStack() as stack:
        one_round: Round = drain_heapq
        if name != HEAPQ:
            one_round = await stack.enter_async_context(ours(STRATEGIES[name]))
        await one_round(min(size, WARM_UP))
        for _ in range(rounds):
            taken = await one_round(size)
            total = Timing(total.cpu + taken.cpu, total.wall + taken.wall)
    jobs = size * rounds
    return Timing(total.cpu / jobs, total.wall / jobs)


@asynccontextmanager
async def ours(strategy: Strategy) -> AsyncIterator[Round]:
    """One pool for all rounds."""
    from poolhand import Pool

    queue = strategy.make()
    async with Pool("bench", max_concurrent=LIMIT, queue=queue, timeout=TIMEOUT) as pool:
        submitters = strategy.submitters(pool)
        yield lambda size: drain_ours(pool, submitters, size)
