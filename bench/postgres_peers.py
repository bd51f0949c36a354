"""Other queues over PostgreSQL, each as its documentation advises for many short jobs.

Their data survives a crash of the server, as that of poolhand does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from durable_cases import BATCH, SLOTS, Countdown, Span

if TYPE_CHECKING:
    import asyncpg

PAYLOAD = b"x" * 150
NAME = "no_op"


class PgQueuerQueue:
    """pgqueuer: a finished job is deleted; a line of its log stays."""

    def __init__(self, url: str, connection: asyncpg.Connection, bounded: bool) -> None:
        from pgqueuer.queries import Queries

        self._url = url
        self._connection = connection
        # It needs room for two batches within its bound.
        self._batch, self._bound = (SLOTS // 2, SLOTS) if bounded else (BATCH, 0)
        self._queries = Queries.from_asyncpg_connection(connection)

    async def install(self) -> None:
        """Make the tables, with the autovacuum settings it advises; they are logged by default."""
        await self._queries.install()
        await self._queries.optimize_autovacuum()

    async def put(self, count: int) -> None:
        """One call, which is one statement."""
        await self._queries.enqueue([NAME] * count, [PAYLOAD] * count, [0] * count)

    async def drain(self, count: int) -> Span:
        import asyncpg
        from pgqueuer import PgQueuer

        connection = await asyncpg.connect(self._url)
        worker = PgQueuer.from_asyncpg_connection(connection)
        countdown = Countdown(count, worker.shutdown)

        @worker.entrypoint(NAME)  # type: ignore[untyped-decorator, unused-ignore]
        async def no_op(job: object) -> None:
            countdown.one()

        await worker.run(batch_size=self._batch, max_concurrent_tasks=self._bound)
        countdown.span.stop()
        await connection.close()
        return countdown.span

    async def done(self) -> int:
        left: int = await self._connection.fetchval("SELECT count(*) FROM pgqueuer")
        assert not left
        over: int = await self._connection.fetchval(
            "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"
        )
        return over


@asynccontextmanager
async def pgqueuer(url: str, bounded: bool = True) -> AsyncIterator[PgQueuerQueue]:
    """pgqueuer in an empty database."""
    import asyncpg

    connection = await asyncpg.connect(url)
    queue = PgQueuerQueue(url, connection, bounded)
    await queue.install()
    yield queue
    await connection.close()


class ProcrastinateQueue:
    """procrastinate: a job stays, with a row for each of its events."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._countdown = Countdown(0)

        @app.task(name=NAME)  # type: ignore[untyped-decorator, unused-ignore]
        async def no_op(number: int) -> None:
            self._countdown.one()

        self._no_op = no_op

    async def put(self, count: int) -> None:
        """One call, which is one statement."""
        await self._no_op.batch_defer_async(*({"number": number} for number in range(count)))

    async def drain(self, count: int) -> Span:
        self._countdown = countdown = Countdown(count)
        await self._app.run_worker_async(
            concurrency=SLOTS, wait=False, install_signal_handlers=False
        )
        countdown.span.stop()
        return countdown.span

    async def done(self) -> int:
        return len(list(await self._app.job_manager.list_jobs_async(status="succeeded")))


@asynccontextmanager
async def procrastinate(url: str) -> AsyncIterator[ProcrastinateQueue]:
    """procrastinate in an empty database, with its default connection pool."""
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        yield ProcrastinateQueue(app)
