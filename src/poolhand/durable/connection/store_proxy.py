"""A store, as used from outside its store thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from poolhand.contract import (
    Added,
    Filter,
    JobBatch,
    JobPage,
    Lease,
    LogEntry,
    LogLine,
    PoolRow,
    Put,
    Refusal,
    Store,
    Stored,
)
from poolhand.durable.client.ticket import OpenStore
from poolhand.durable.connection.connection import StoreConnection
from poolhand.rules.job import Status

T = TypeVar("T")


class StoreProxy:
    """The store of a store connection, callable from any event loop, as an operator does.

    Every method is one of the contract: it runs on the store thread, and its result comes back.
    """

    def __init__(self, opened: OpenStore) -> None:
        self._opened = opened
        self._station: StoreConnection | None = None  # the one last used

    @property
    def place(self) -> str:
        return "not open yet" if self._station is None else self._station.store.place

    async def get(self, ids: Sequence[str]) -> list[Stored | None]:
        return await self._ask(lambda store: store.get(ids))

    async def find(self, which: Filter, after: int | None = None, limit: int = 100) -> JobPage:
        return await self._ask(lambda store: store.find(which, after, limit))

    async def count(self, which: Filter) -> Mapping[Status, int]:
        return await self._ask(lambda store: store.count(which))

    async def brief(self, id: str) -> bytes | None:
        return await self._ask(lambda store: store.brief(id))

    async def add(self, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]:
        return await self._ask(lambda store: store.add(batches))

    async def cancel(self, ids: Sequence[str], by: str) -> list[Stored | None]:
        return await self._ask(lambda store: store.cancel(ids, by))

    async def pools(self, names: Sequence[str] | None = None) -> list[PoolRow]:
        return await self._ask(lambda store: store.pools(names))

    async def pause(self, pool: str, paused: bool, by: str) -> None:
        await self._ask(lambda store: store.pause(pool, paused, by))

    async def resize(self, pool: str, slots: int | None, by: str) -> None:
        await self._ask(lambda store: store.resize(pool, slots, by))

    async def leases(self) -> list[Lease]:
        return await self._ask(lambda store: store.leases())

    async def erase(
        self, ids: Sequence[str], streams: Sequence[str], by: str, documents: Sequence[str] = ()
    ) -> list[str]:
        return await self._ask(lambda store: store.erase(ids, streams, by, documents))

    async def put(
        self, puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
    ) -> tuple[int, ...] | None:
        return await self._ask(lambda store: store.put(puts, token, log))

    async def delete(self, key: str, expect: int | None = None) -> bool:
        return await self._ask(lambda store: store.delete(key, expect))

    async def get_document(self, key: str) -> tuple[bytes, int] | None:
        return await self._ask(lambda store: store.get_document(key))

    async def expires_in(self, key: str) -> float | None:
        return await self._ask(lambda store: store.expires_in(key))

    async def scan(self, prefix: str, after: str = "", limit: int = 100) -> list[str]:
        return await self._ask(lambda store: store.scan(prefix, after, limit))

    async def append(self, lines: Sequence[LogLine]) -> frozenset[int]:
        return await self._ask(lambda store: store.append(lines))

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> list[LogEntry]:
        return await self._ask(lambda store: store.read(stream, after, limit, kind))

    def publish(self, topic: str) -> None:
        """Publish a signal; it is lost if no other method has opened the store before."""
        if self._station is not None:
            self._station.keeper.post(self._station.store.publish, topic)

    async def _ask(self, verb: Callable[[Store], Awaitable[T]]) -> T:
        station = self._station = await self._opened.station()
        return await station.keeper.ask(lambda: verb(station.store))
