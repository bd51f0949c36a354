"""Transactions: jobs that are accepted together with the user's own writes, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, runtime_checkable

from poolhand.contract import JobBatch, JobRequest, Refusal, StoreTransaction
from poolhand.durable.client.job_request import refused
from poolhand.durable.connection.connection import StoreConnection
from poolhand.errors import UsageError

# The innermost transaction opened around the running code, possibly already over.
AROUND: ContextVar[Transaction | None] = ContextVar("poolhand_transaction", default=None)


@runtime_checkable
class UserConnection(Protocol):
    """A connection of the user's own to the database of a store, such as one of asyncpg."""

    def is_in_transaction(self) -> bool: ...

    async def fetch(self, query: str, *args: Any) -> Any: ...


class Transaction:
    """Writes of the user in the store's own file, and the jobs submitted with them.

    Keep it short: while it is open, no other process can write to the file.
    """

    def __init__(self, connection: StoreConnection, kept: StoreTransaction) -> None:
        self.connection = connection
        self.kept = kept
        self.task = asyncio.current_task()
        self.over = False

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one SQL statement and return its rows."""
        return await self.connection.thread.ask(lambda: self.kept.execute(sql, parameters))

    async def add(self, request: JobRequest) -> str:
        """Accept a job if the transaction commits; return its id."""
        batch = JobBatch((request,))
        answer = await self.connection.thread.ask(lambda: self.kept.add(batch))
        if isinstance(answer, Refusal):
            raise refused(answer, request.job.name)
        return answer[0].job.id


@asynccontextmanager
async def transaction(connection: StoreConnection) -> AsyncIterator[Transaction]:
    """Open a transaction; leaving the block commits it, an exception rolls it back."""
    refuse_within(connection, "the transaction that is open")
    ask = connection.thread.ask
    opened = Transaction(connection, await _begun(connection))
    AROUND.set(opened)
    try:
        yield opened
    except BaseException:
        await ask(opened.kept.roll_back)
        raise
    else:
        await ask(opened.kept.commit)
    finally:
        opened.over = True


def refuse_within(connection: StoreConnection, instead: str) -> None:
    """Raise if the caller is inside a transaction: a separate write would deadlock with it."""
    around = AROUND.get()
    if around is None or around.over or around.connection is not connection:
        return
    # Tasks started inside run on their own, and may wait.
    if around.task is asyncio.current_task():
        raise UsageError(
            f"a transaction on this store is open here, and this would wait for its end; use "
            f"{instead}"
        )


async def _begun(connection: StoreConnection) -> StoreTransaction:
    """Begin a transaction; if cancelled, roll it back, as it would block all other writers."""
    beginning = asyncio.ensure_future(connection.thread.ask(connection.store.begin))
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        beginning.add_done_callback(partial(_unwanted, connection))
        raise


def _unwanted(connection: StoreConnection, begun: asyncio.Future[StoreTransaction]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        connection.thread.do("roll back", begun.result().roll_back)
