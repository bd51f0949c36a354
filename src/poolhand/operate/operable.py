"""The store protocol that the operator needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from poolhand.contract import Added, Filter, JobBatch, LogEntry, LogLine, Put, Refusal, Stored
from poolhand.durable.client.explain import ExplainReader
from poolhand.rules.job import Status


class Operable(ExplainReader, Protocol):
    """The store verbs that an operator needs; `contract` documents what they promise."""

    async def count(self, which: Filter) -> Mapping[Status, int]: ...

    async def brief(self, id: str) -> bytes | None: ...

    async def add(self, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]: ...

    async def cancel(self, ids: Sequence[str], by: str) -> list[Stored | None]: ...

    async def pause(self, pool: str, paused: bool, by: str) -> None: ...

    async def resize(self, pool: str, slots: int | None, by: str) -> None: ...

    async def erase(
        self, ids: Sequence[str], streams: Sequence[str], by: str, documents: Sequence[str] = ()
    ) -> list[str]: ...

    async def put(
        self, puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
    ) -> tuple[int, ...] | None: ...

    async def delete(self, key: str, expect: int | None = None) -> bool: ...

    async def get_document(self, key: str) -> tuple[bytes, int] | None: ...

    async def expires_in(self, key: str) -> float | None: ...

    async def scan(self, prefix: str, after: str = "", limit: int = 100) -> list[str]: ...

    async def append(self, lines: Sequence[LogLine]) -> frozenset[int]: ...

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> list[LogEntry]: ...

    def publish(self, topic: str) -> None: ...
