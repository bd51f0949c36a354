"""The hand of a worker: what claims and writes for it, on the keeper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from poolhand.contract import Change, Claim, Replaced, Wanted
from poolhand.errors import StoreError
from poolhand.farm.heartbeat import Heartbeat
from poolhand.farm.keeper import Keeper
from poolhand.farm.watch import Outcomes

POLL = 1.0  # hints may be lost; what is true is asked for this often
RETRY_FIRST, RETRY_MOST = 0.05, 1.0


class Done(Struct, frozen=True):
    """What became of a claimed job, and what it raised, for those who wait in this process.

    `value` is what a closure returned: it is kept nowhere else.
    """

    change: Change
    error: BaseException | None = None
    value: Any = None


class Delivery(Struct, frozen=True):
    """What the hand brings: new claims, and which of the things done were written."""

    claims: tuple[Claim, ...]
    written: tuple[Done, ...] = ()
    refused: tuple[Done, ...] = ()


class Hand:
    """Settles what is done and claims for the slots that are free, both in one write.

    While a write is on its way, what comes gathers for the next. What could not be written is kept
    and tried again: a finished job is not lost because a store is away for a moment.
    """

    def __init__(
        self,
        keeper: Keeper,
        heart: Heartbeat,
        outcomes: Outcomes,
        pools: tuple[str, ...] | None,
        deliver: Callable[[Delivery], None],
    ) -> None:
        self._keeper = keeper
        self._heart = heart
        self._outcomes = outcomes
        self._pools = pools
        self._deliver = deliver
        self._done: list[Done] = []
        self._free: list[int] = []
        self._released: list[int] = []
        self._wake = asyncio.Event()
        self._retry_in = 0.0
        self._claiming = True
        self._writes = False
        self._settled = asyncio.Event()

    def take(self, done: Sequence[Done], free: Sequence[int], released: Sequence[int]) -> None:
        """Take over what is done, which slots are free, and which tokens have left theirs."""
        self._done += done
        self._free += free
        self._released += released
        self._wake.set()

    def stop_claiming(self) -> None:
        self._claiming = False

    async def written(self) -> None:
        """Wait until everything that was done is written."""
        while self._done or self._released or self._writes:
            self._settled.clear()
            await self._settled.wait()

    def hint(self) -> None:
        if self._free:
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._woken()
            if self._done or self._released or (self._free and self._claiming):
                self._writes = True
                await self._write()
                self._writes = False
            self._settled.set()

    async def _woken(self) -> None:
        if self._retry_in:
            await asyncio.sleep(self._retry_in)
            return
        try:
            async with asyncio.timeout(POLL):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _write(self) -> None:
        done, self._done = self._done, []
        released, self._released = self._released, []
        free, self._free = (self._free, []) if self._claiming else ([], self._free)
        try:
            replaced = await self._exchange(done, free, released)
        except StoreError as error:
            self._done, self._free = done + self._done, free + self._free
            self._released = released + self._released
            self._retry_in = min(RETRY_MOST, max(RETRY_FIRST, self._retry_in * 2))
            self._keeper.trouble("worker", error)
            return
        self._retry_in = 0.0
        self._keeper.well("worker")
        taken = {claim.slot for claim in replaced.claims}
        self._free += [slot for slot in free if slot not in taken]
        self._tell(done, replaced)

    async def _exchange(self, done: list[Done], free: list[int], released: list[int]) -> Replaced:
        store = self._keeper.store
        wanted = Wanted(self._heart.owner.id, tuple(free), self._pools) if free else None
        if released:
            await store.release(released)
        if done:
            return await store.replace([one.change for one in done], wanted)
        claims = () if wanted is None else tuple(await store.claim(wanted))
        return Replaced((), claims)

    def _tell(self, done: list[Done], replaced: Replaced) -> None:
        if not done and not replaced.claims:
            return
        written: list[Done] = []
        refused: list[Done] = []
        for one, made in zip(done, replaced.made, strict=True):
            (written if made else refused).append(one)
            if made and one.change.job.status.terminal:
                self._outcomes.tell(one.change.job, one.value, one.error)
        self._deliver(Delivery(replaced.claims, tuple(written), tuple(refused)))
