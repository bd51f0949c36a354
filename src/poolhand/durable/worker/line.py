"""Connects a worker with its dispatcher on the store thread: the two run on different loops."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Task
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from poolhand.contract import Claim
from poolhand.durable.catalogue import PublishedTasks
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.worker.executor import hand_back, stopped
from poolhand.durable.worker.hand import Choose, Delivery, Dispatcher, SettledClaim
from poolhand.durable.worker.running_claim import RunningClaim
from poolhand.durable.worker.tray import SettleQueue
from poolhand.pool.engine.drain import STOP_GRACE
from poolhand.pool.slots.slots import Slots
from poolhand.rules.waits.nested_waits import WorkerSlots


class WorkerSide(Protocol):
    """The methods of a worker that the store thread calls; they run on the worker's loop."""

    @property
    def loop(self) -> AbstractEventLoop: ...

    @property
    def running(self) -> Mapping[int, RunningClaim]:
        """The running claims by their token."""

    @property
    def stuck(self) -> Collection[int]:
        """The tokens of jobs that are over while their code still runs."""

    @property
    def slots(self) -> Slots[RunningClaim]: ...

    def receive(self) -> None: ...

    def lose(self, tokens: Sequence[int]) -> None: ...

    def give_up(self) -> None: ...

    def cancel(self, tokens: Sequence[int]) -> None: ...

    def stop_now(self, grace: float) -> None: ...


class DispatcherLine:
    """A worker, as the store thread uses it: a holder of leases that claims.

    All but `begin` runs on the store thread's loop. The worker puts its output on the `tray`;
    deliveries to it wait in `claims` and `news`.
    """

    def __init__(self, station: StoreConnection, choose: Choose, crew: WorkerSide) -> None:
        self.task: Task[None] | None = None
        self.claims: deque[Claim] = deque()
        self.news: deque[Delivery] = deque()
        self.catalogue: PublishedTasks | None = None
        self._station = station
        self._choose = choose
        self._crew = crew
        self.hand = Dispatcher(
            station.keeper,
            station.heart,
            station.outcomes,
            (station.chronicle, station.ledger),
            choose,
            self,
        )
        self.tray = SettleQueue(crew.loop, self.hand)

    def begin(self) -> None:
        """Register the worker with the store thread; on the worker's loop."""
        self._station.keeper.post(self._begin)

    def _begin(self) -> None:
        if not self._station.keeper.closed:
            self._station.heart.join(self)
            self._station.workers.append(self)
            self.task = self._station.keeper.start("worker", self._serve)

    async def _serve(self) -> None:
        await self.hand.run()
        self._leave()

    def _leave(self) -> None:
        if self in self._station.workers:
            self._station.heart.part(self)
            self._station.workers.remove(self)

    async def finish(self, within: float) -> None:
        """Write what is settled, for up to `within` seconds.

        Writes that take longer, and jobs that have not ended, are written when that is possible.
        """
        self.hand.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.hand.ended()
                if not self.at_work:
                    self._leave()

    @property
    def at_work(self) -> bool:
        crew = self._crew
        return bool(self.claims) or bool(crew.running) or bool(crew.stuck) or self.tray.full

    @property
    def gone(self) -> bool:
        return self._crew.loop.is_closed()

    def tokens(self) -> Sequence[int]:
        return list(self._crew.running)

    def slots_held(self, awaited: dict[str, list[str]]) -> WorkerSlots:
        """Return the slots of the worker and what runs there, given which ids each job awaits."""
        slots = self._crew.slots
        # Copy to a list first: that is atomic, while jobs begin and end on another thread.
        ids = [work.id for work in list(self._crew.running.values())]
        ids += [claim.job.id for claim in list(self.claims)]
        held = {id: tuple(awaited.get(id, ())) for id in ids}
        return WorkerSlots(len(slots.all), self.pools(), held, slots.stuck)

    def pools(self) -> tuple[str, ...] | None:
        return self._choose()[0]

    def hint(self) -> None:
        self.hand.hint()

    def deliver(self, delivery: Delivery) -> None:
        self.claims += delivery.claims
        self.news.append(delivery)
        self._tell(self._crew.receive)

    def lose(self, tokens: Sequence[int]) -> None:
        self._tell(self._crew.lose, tokens)

    def give_up(self) -> None:
        self._tell(self._crew.give_up)

    def cancel(self, tokens: Sequence[int]) -> None:
        self._tell(self._crew.cancel, tokens)

    def dismiss(self) -> None:
        self.hand.close()
        self._tell(self._crew.stop_now, STOP_GRACE)

    def left_behind(self) -> list[SettledClaim]:
        """Return the changes that the worker did not send before its loop was closed."""
        self.tray.send()
        self.hand.put((), (), tuple(self._crew.stuck))
        at = self._station.keeper.runtime.wall()
        begun = [work.claim for work in self._crew.running.values() if not work.lost]
        changes = [stopped(claim, at) for claim in begun]
        changes += [hand_back(claim) for claim in self.claims]
        return [SettledClaim(change) for change in changes]

    def _tell(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):
            # RuntimeError: the loop is closed, which the dispatcher detects by itself.
            self._crew.loop.call_soon_threadsafe(call, *args)
