"""The station: all that one process has on one store, beside its submits and its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from poolhand.contract import Store
from poolhand.farm.heartbeat import OWNERS, Heartbeat
from poolhand.farm.keeper import Keeper
from poolhand.farm.maintenance import Leader, Reaper
from poolhand.farm.watch import Outcomes, Watch, is_in
from poolhand.observe.events import Events
from poolhand.rules.spec import PoolSpec
from poolhand.runtime import Runtime


class Hinted(Protocol):
    """Who wants to know when something can be claimed."""

    def hint(self) -> None: ...


class Station:
    """Opens a store on its keeper and keeps it going: leases, outcomes, maintenance."""

    def __init__(self, store: Store, runtime: Runtime, events: Events, keep: float) -> None:
        self.keeper = Keeper(store, runtime, events)
        self.heart = Heartbeat(self.keeper)
        self.outcomes = Outcomes(self.keeper)
        self.parking = Watch(self.keeper, is_in)
        self.claimers: list[Hinted] = []
        self._reaper = Reaper(self.keeper, self.heart)
        self._leader = Leader(self.keeper, self.heart, keep)
        self._unsubscribe: Callable[[], None] | None = None

    @property
    def store(self) -> Store:
        return self.keeper.store

    @property
    def events(self) -> Events:
        return self.keeper.events

    async def open(self, specs: Iterable[PoolSpec]) -> None:
        """Open the store and begin; on the keeper's loop."""
        await self.store.open()
        await self.declare(specs)
        await self.heart.enroll()
        self._unsubscribe = self.store.subscribe(self._hear)
        # At once: what an earlier run of this program left behind is to go on.
        await self._reaper.look()
        for name, work in (
            ("heartbeat", self.heart.run),
            ("outcomes", self.outcomes.watch.run),
            ("parking", self.parking.run),
            ("reaper", self._reaper.run),
            ("leader", self._leader.run),
        ):
            self.keeper.start(name, work)

    async def declare(self, specs: Iterable[PoolSpec]) -> None:
        for spec in specs:
            await self.store.declare(spec)

    async def abandon(self) -> None:
        """Let go of a store that could not be opened; on the keeper's loop."""
        with suppress(Exception):
            await self.store.close()
        self.keeper.runtime.end_loop(self.keeper.loop)

    def forsake(self) -> None:
        """End as if the process had died: leases and jobs stay as they are; from any thread."""
        OWNERS.discard(self.heart.owner.id)
        self.keeper.do("forsake", self._forsake)

    async def _forsake(self) -> None:
        await self.keeper.stop()
        await self.abandon()

    def _hear(self, topic: str) -> None:
        match topic:
            case "ready":
                for claimer in self.claimers:
                    claimer.hint()
            case "over":
                self.outcomes.watch.hint()
            case "entered":
                self.parking.hint()
            case "wish":
                self.heart.hint()
            case _:
                pass  # Somebody else's.
