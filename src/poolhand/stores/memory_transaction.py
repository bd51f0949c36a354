"""A transaction on the memory store: there are no tables, but jobs can wait for its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from poolhand.contract import Added, Batch, Entry, Jobs, Refusal
from poolhand.errors import Unsupported


class MemoryTransaction:
    """Keeps batches until it commits; they are decided then, each by itself."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._batches: list[Batch] = []

    async def execute(self, sql: str, parameters: Sequence[Any]) -> NoReturn:
        raise Unsupported("memory:// has no tables to write to; use sqlite:///file.db")

    async def add(self, batch: Batch) -> tuple[Added, ...] | Refusal:
        self._batches.append(batch)
        return tuple(Added(order.job, Entry.TAKEN) for order in batch.orders)

    async def commit(self) -> None:
        await self._jobs.add(self._batches)

    async def roll_back(self) -> None:
        self._batches.clear()
