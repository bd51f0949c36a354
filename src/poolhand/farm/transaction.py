"""Transactions: jobs that are taken together with the user's own writes, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from poolhand.contract import Batch, Order, Refusal, StoreTransaction
from poolhand.farm.station import Station
from poolhand.farm.submit import refused


class Transaction:
    """Writes of the user in the store's own file, and jobs that go with them.

    Keep it short: while it is open nobody else can write to the file.
    """

    def __init__(self, station: Station, kept: StoreTransaction) -> None:
        self._station = station
        self._kept = kept

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one SQL statement and return its rows."""
        return await self._station.keeper.ask(lambda: self._kept.execute(sql, parameters))

    async def add(self, order: Order) -> str:
        """Take an order in if the transaction commits; return the id of its job."""
        batch = Batch((order,))
        answer = await self._station.keeper.ask(lambda: self._kept.add(batch))
        if isinstance(answer, Refusal):
            raise refused(answer)
        return answer[0].job.id


@asynccontextmanager
async def transaction(station: Station) -> AsyncIterator[Transaction]:
    """Open a transaction; leaving the block commits it, an exception takes everything back."""
    ask = station.keeper.ask
    kept = await ask(station.store.begin)
    try:
        yield Transaction(station, kept)
    except BaseException:
        await ask(kept.roll_back)
        raise
    await ask(kept.commit)
