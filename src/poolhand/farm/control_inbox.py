"""The control inbox of a farm: its record in the store, and the control requests to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from poolhand.contract import Put
from poolhand.durable.connection.connection import StoreConnection
from poolhand.farm.records import (
    ANSWERS,
    FARMS,
    KEEP,
    KEEP_REQUEST,
    REQUESTS,
    TOPIC,
    WRITE_EVERY,
    ControlAnswer,
    ControlRequest,
    FarmRecord,
    write,
)


class ControlInbox:
    """Writes and reads for one farm, on the store thread; every method may raise a StoreError."""

    def __init__(self, connection: StoreConnection, farm: str) -> None:
        self._connection = connection
        self._key = f"{FARMS}{farm}"
        self._requests = f"{REQUESTS}{farm}/"
        self._now = connection.thread.runtime.monotonic
        self._written: tuple[object, ...] = ()
        self._written_at = 0.0

    async def publish(self, record: FarmRecord) -> None:
        """Write the record if it has changed, or if the stored one would soon expire."""
        gist, now = _gist(record), self._now()
        if gist == self._written and now - self._written_at < WRITE_EVERY:
            return
        put = Put(self._key, write(record), None, KEEP)
        await self._connection.thread.ask(lambda: self._connection.store.put([put]))
        self._written, self._written_at = gist, now

    async def withdraw(self) -> None:
        await self._connection.thread.ask(
            lambda: self._connection.store.put([Put(self._key, None)])
        )

    async def handle(self, handle: Callable[[ControlRequest], Awaitable[ControlAnswer]]) -> None:
        """Take all control requests, one after the other, and answer them."""
        for key in await self._connection.thread.ask(
            lambda: self._connection.store.scan(self._requests)
        ):
            request = await self._take(key)
            if request is not None:
                answer = await handle(request)
                await self._answer(request, answer)

    async def _take(self, key: str) -> ControlRequest | None:
        store = self._connection.store
        found = await self._connection.thread.ask(lambda: store.get_document(key))
        if found is None:
            return None
        taken = Put(key, None, found.version)
        if await self._connection.thread.ask(lambda: store.put([taken])) is None:
            return None
        return found.read(ControlRequest)

    async def _answer(self, request: ControlRequest, answer: ControlAnswer) -> None:
        put = Put(f"{ANSWERS}{request.id}", write(answer), None, KEEP_REQUEST)
        await self._connection.thread.ask(lambda: self._connection.store.put([put]))
        self._connection.thread.post(self._connection.store.publish, TOPIC)


def _gist(record: FarmRecord) -> tuple[object, ...]:
    """Return the part of a record whose change is worth a write: no times."""
    workers = [
        (one.id, one.state, one.active, one.stuck, one.completed, one.failed, one.heard > 2.0)
        for one in record.workers
    ]
    load = (record.state, record.wanted, record.demand, record.queued, record.capacity)
    bounds = (record.minimum, record.maximum, record.held, record.completed, record.failed)
    return (*load, *bounds, workers, record.troubles)
