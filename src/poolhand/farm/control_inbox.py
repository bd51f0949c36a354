"""The control inbox of a farm: its record in the store, and the control requests to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from poolhand.contract import Put
from poolhand.durable.connection.connection import StoreConnection
from poolhand.farm.records import (
    ANSWERS,
    FARMS,
    KEEP,
    KEEP_WISH,
    TOPIC,
    WISHES,
    WRITE_EVERY,
    ControlAnswer,
    ControlRequest,
    FarmRecord,
    read,
    write,
)


class ControlInbox:
    """Writes and reads for one farm, on the store thread; every method may raise a StoreError."""

    def __init__(self, station: StoreConnection, farm: str) -> None:
        self._station = station
        self._key = f"{FARMS}{farm}"
        self._wishes = f"{WISHES}{farm}/"
        self._now = station.keeper.runtime.monotonic
        self._written: tuple[object, ...] = ()
        self._written_at = 0.0

    async def tell(self, record: FarmRecord) -> None:
        """Write the record if it has changed, or if the stored one would soon expire."""
        says, now = _gist(record), self._now()
        if says == self._written and now - self._written_at < WRITE_EVERY:
            return
        put = Put(self._key, write(record), None, KEEP)
        await self._station.keeper.ask(lambda: self._station.store.put([put]))
        self._written, self._written_at = says, now

    async def withdraw(self) -> None:
        await self._station.keeper.ask(lambda: self._station.store.delete(self._key))

    async def grant(self, grant: Callable[[ControlRequest], Awaitable[ControlAnswer]]) -> None:
        """Take all control requests, one after the other, and answer them."""
        for key in await self._station.keeper.ask(lambda: self._station.store.scan(self._wishes)):
            wish = await self._take(key)
            if wish is not None:
                answer = await grant(wish)
                await self._answer(wish, answer)

    async def _take(self, key: str) -> ControlRequest | None:
        store = self._station.store
        found = await self._station.keeper.ask(lambda: store.get_document(key))
        if found is None or not await self._station.keeper.ask(lambda: store.delete(key, found[1])):
            return None
        return read(found[0], ControlRequest)

    async def _answer(self, wish: ControlRequest, answer: ControlAnswer) -> None:
        put = Put(f"{ANSWERS}{wish.id}", write(answer), None, KEEP_WISH)
        await self._station.keeper.ask(lambda: self._station.store.put([put]))
        self._station.keeper.post(self._station.store.publish, TOPIC)


def _gist(record: FarmRecord) -> tuple[object, ...]:
    """Return the part of a record whose change is worth a write: no times."""
    workers = [
        (one.id, one.state, one.active, one.stuck, one.completed, one.failed, one.heard > 2.0)
        for one in record.workers
    ]
    load = (record.state, record.wanted, record.demand, record.queued, record.capacity)
    bounds = (record.minimum, record.maximum, record.held, record.completed, record.failed)
    return (*load, *bounds, workers, record.troubles)
