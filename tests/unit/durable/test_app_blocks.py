"""Blocks of `async with app`: only the last exit closes, and none stops a worker inside of it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from poolhand import App, Pool
from poolhand.errors import Unavailable, UsageError
from poolhand.testing import SeededRuntime
from tests.unit.durable.support import SharedStore, StoreApp, seeded, until

LIMIT = 40


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'jobs.db'}")


def closed_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one for one in caplog.records if "the app is closed while" in one.getMessage()]
    assert all(one.levelno == logging.WARNING for one in found)
    return [one.getMessage() for one in found]


@seeded
async def test_only_the_outermost_exit_closes(runtime: SeededRuntime) -> None:
    app = StoreApp(SharedStore(runtime), runtime)
    async with app:
        opened = app.core.slot.current
        async with app:
            async with app:
                pass
            assert app.core.slot.current is opened
        assert app.core.slot.current is opened
    assert app.core.slot.current is None


@seeded
async def test_an_exit_beside_another_block_leaves_it_the_store(runtime: SeededRuntime) -> None:
    app = StoreApp(SharedStore(runtime), runtime)

    @app.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    async def handle(number: int) -> int:
        async with app:
            return await double.run(number)

    async with app.worker():
        assert await asyncio.gather(*map(handle, range(5))) == [0, 2, 4, 6, 8]
        assert await handle(5) == 10
    async with app:
        pass
    assert not app.core.slot.is_open


@seeded
async def test_a_close_in_between_is_followed_by_a_new_store(runtime: SeededRuntime) -> None:
    app = StoreApp(SharedStore(runtime), runtime)

    @app.task(name="call")
    async def call() -> None: ...

    async with app:
        async with app:
            await app.close()
            assert not app.core.slot.is_open
            await call.submit()
        assert app.core.slot.is_open
    assert not app.core.slot.is_open


@seeded
async def test_a_block_that_cannot_be_entered_does_not_count(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    store.down = True
    with pytest.raises(Unavailable):
        async with app:
            pass
    store.down = False
    with pytest.raises(LookupError):
        async with app:
            raise LookupError
    assert not app.core.slot.is_open


@seeded
async def test_a_worker_without_a_block_of_its_own_outlives_the_blocks_beside_it(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app = StoreApp(SharedStore(runtime), runtime)
    entered, done = asyncio.Event(), asyncio.Event()

    @app.task(name="call")
    async def call() -> int:
        return 1

    async def serve() -> None:
        await entered.wait()
        async with app.worker():
            await done.wait()

    async def submit() -> None:
        async with app:
            entered.set()
            assert await call.run() == 1
        assert await call.run() == 1
        done.set()

    await asyncio.gather(serve(), submit())
    await app.close()
    assert not closed_lines(caplog)


@pytest.mark.parametrize("where", ["loop", "thread"])
@pytest.mark.parametrize("outer", [True, False], ids=["in a block", "alone"])
async def test_a_block_inside_a_task_stops_no_worker(app: App, where: str, outer: bool) -> None:
    @app.task(name="inner")
    async def inner(number: int) -> int:
        return number + 1

    async def go(number: int) -> str:
        async with app:
            return (await inner.submit(number)).id

    @app.task(name="on_loop", retry=None)
    async def on_loop(number: int) -> str:
        return await go(number)

    @app.task(name="in_thread", retry=None)
    def in_thread(number: int) -> str:
        return asyncio.run(go(number))

    outermost = on_loop if where == "loop" else in_thread

    async def work() -> None:
        async with app.worker(slots=2):
            for number in range(3):
                ticket = await app.get(await outermost.run(number))
                assert ticket is not None
                assert await ticket == number + 1

    async with asyncio.timeout(LIMIT):
        if outer:
            async with app:
                await work()
            assert not app.core.slot.is_open
        else:
            await work()
            await app.close()


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_close_inside_a_job_says_what_to_do(app: App, where: str) -> None:
    @app.task(name="on_loop", retry=None)
    async def on_loop() -> None:
        await app.close()

    @app.task(name="in_thread", retry=None)
    def in_thread() -> None:
        asyncio.run(app.close())

    @app.task(name="answer")
    async def answer() -> int:
        return 42

    job = on_loop if where == "loop" else in_thread
    async with asyncio.timeout(LIMIT), app, app.worker(slots=1):
        with pytest.raises(UsageError, match="leave it out, or use `async with app:`"):
            await job.run()
        assert await answer.run() == 42


@seeded
async def test_a_job_may_close_another_app(runtime: SeededRuntime) -> None:
    app = StoreApp(SharedStore(runtime), runtime)
    other = StoreApp(SharedStore(runtime), runtime)

    @app.task(name="close_other", retry=None)
    async def close_other() -> bool:
        await other.close()
        return other.core.slot.is_open

    async with other, app, app.worker(slots=1):
        assert await close_other.run() is False


@seeded
async def test_a_close_beside_a_worker_is_logged_once(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    app = StoreApp(SharedStore(runtime), runtime)
    started = asyncio.Event()

    @app.task(name="hold")
    async def hold() -> None:
        started.set()
        await asyncio.Event().wait()

    async with app.worker(slots=1) as worker:
        await hold.submit()
        await started.wait()
        await app.close()
        await until(lambda: not worker.running)
    (line,) = closed_lines(caplog)
    assert "jobs wait until a worker starts" in line
    async with app, app.worker(slots=1):
        pass
    assert closed_lines(caplog) == [line]


@pytest.mark.parametrize("durable", [False, True], ids=["in memory", "durable"])
async def test_a_block_of_a_pool_inside_its_job_drains_nothing(
    tmp_path: Path, durable: bool
) -> None:
    pool = Pool("nested", max_concurrent=2)
    if durable:
        store = f"sqlite:///{tmp_path / 'pool.db'}"
        pool = Pool("nested", max_concurrent=2, scope="pipeline", scope_id="1", store=store)

    async def inner() -> int:
        return 1

    async def outer() -> int:
        async with pool:
            return await pool.run(inner)

    async with asyncio.timeout(LIMIT):
        async with pool:
            assert await pool.run(outer) == 1
            assert await pool.run(inner) == 1
        with pytest.raises(UsageError, match="was drained"):
            await pool.start()
