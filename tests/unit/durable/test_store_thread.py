"""The store thread: every caller gets an answer, on whatever loop or thread it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from poolhand import UsageError
from poolhand.app import App
from poolhand.contract import JobBatch
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.errors import PoolFull, Unavailable
from poolhand.observe.events import StoreTrouble
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.store import MemoryStore
from poolhand.testing import SeededRuntime
from tests.unit.durable.support import Heard, SharedStore, seeded

request: ContextVar[str] = ContextVar("request", default="none")


async def nothing() -> None: ...


def store_thread_of(runtime: Runtime, heard: Heard | None = None) -> StoreThread:
    return StoreThread(MemoryStore(runtime), runtime, (heard or Heard()).events)


async def test_an_answer_is_returned_on_the_calling_loop() -> None:
    store_thread = store_thread_of(Runtime())

    async def where() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise LookupError("no")

    assert await store_thread.ask(where) == "poolhand-store"
    with pytest.raises(LookupError, match="no"):
        await store_thread.ask(fail)
    assert await asyncio.to_thread(store_thread.ask_sync, where) == "poolhand-store"
    with pytest.raises(LookupError, match="no"):
        await asyncio.to_thread(store_thread.ask_sync, fail)
    await store_thread.close(store_thread.stop)


class Asked(MemoryStore):
    """Notes the context variable of each `add`."""

    def __init__(self, runtime: Runtime, found: list[str]) -> None:
        super().__init__(runtime)
        self._found = found

    async def add(self, batches: Sequence[JobBatch]) -> Any:
        self._found.append(request.get())
        return await super().add(batches)


async def test_a_call_on_the_store_thread_does_not_run_in_the_context_of_its_caller() -> None:
    found: list[str] = []
    runtime = Runtime()
    store = Asked(runtime, found)
    store_thread = StoreThread(store, runtime, Heard().events)

    async def look() -> None:
        found.append(request.get())

    request.set("a request")
    await store_thread.ask(store.open)
    await store_thread.ask(look)
    await store_thread.add(JobBatch(()))
    store_thread.do("look", look)
    await asyncio.to_thread(store_thread.ask_sync, look)
    await store_thread.close(store_thread.stop)
    assert found == ["none"] * 4


async def test_a_closed_store_thread_raises_unavailable() -> None:
    before = set(threading.enumerate())
    store_thread = store_thread_of(Runtime())
    await store_thread.ask(nothing)
    (thread,) = set(threading.enumerate()) - before
    await store_thread.close(store_thread.stop)
    for _ in range(2):
        with pytest.raises(Unavailable, match="closed"):
            await store_thread.ask(nothing)
        with pytest.raises(Unavailable, match="closed"):
            await store_thread.add(JobBatch(()))
        with pytest.raises(Unavailable, match="closed"):
            await store_thread.wait(lambda reply: None)
        with pytest.raises(Unavailable, match="closed"):
            await asyncio.to_thread(store_thread.ask_sync, nothing)
        store_thread.do("anything", nothing)
        # Until the thread has ended, and after that.
        await asyncio.to_thread(thread.join)


@seeded
async def test_every_call_made_during_a_close_is_answered(runtime: SeededRuntime) -> None:
    for _ in range(20):
        store_thread = store_thread_of(runtime)

        async def slow() -> str:
            await asyncio.sleep(runtime.random.choice([0, 0, 1, 100]))
            return "done"

        asked: list[asyncio.Future[Any]] = []
        asked += [asyncio.ensure_future(store_thread.ask(slow)) for _ in range(5)]
        asked += [asyncio.ensure_future(store_thread.add(JobBatch(()))) for _ in range(5)]
        for _ in range(runtime.random.randrange(10)):
            await asyncio.sleep(0)
        closing = asyncio.ensure_future(store_thread.close(store_thread.stop))
        asked += [asyncio.ensure_future(store_thread.ask(slow)) for _ in range(5)]
        await closing
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(one) for one in found} <= {str, tuple, Unavailable}


async def test_calls_from_threads_during_a_close_are_answered() -> None:
    store_thread = store_thread_of(Runtime())
    found: list[str] = []
    started = threading.Semaphore(0)

    def ask_on() -> None:
        try:
            while True:
                store_thread.ask_sync(nothing)
                started.release()
        except Unavailable:
            found.append("refused")

    threads = [threading.Thread(target=ask_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        await asyncio.to_thread(started.acquire)
    await store_thread.close(store_thread.stop)
    for thread in threads:
        await asyncio.to_thread(thread.join, 20)
    assert found == ["refused"] * 4


async def test_closing_continues_when_its_caller_is_cancelled() -> None:
    store_thread = store_thread_of(Runtime())
    proceed = threading.Event()

    async def last() -> None:
        await asyncio.to_thread(proceed.wait)
        await store_thread.stop()

    closing = asyncio.ensure_future(store_thread.close(last))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    proceed.set()
    while not store_thread.loop.is_closed():  # noqa: ASYNC110 - it is closed on another thread
        await asyncio.sleep(0)


@seeded
async def test_a_failed_background_call_is_reported(runtime: SeededRuntime) -> None:
    heard = Heard()
    store_thread = store_thread_of(runtime, heard)

    async def fail() -> None:
        raise OSError("no")

    for work in (fail, fail, nothing, fail):
        store_thread.do("work", work)
        await asyncio.sleep(1)
    await store_thread.close(store_thread.stop)
    assert [event.error for event in heard.of(StoreTrouble)] == ["OSError: no"] * 2


@seeded
async def test_only_a_retried_call_is_logged_as_retried(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    store_thread = store_thread_of(runtime)

    async def fail(error: Exception) -> None:
        raise error

    away = Unavailable("the store is away")
    store_thread.do("cancel", lambda: fail(away))
    store_thread.do("withdraw", lambda: fail(OSError("no")))
    store_thread.trouble("schedule of note", PoolFull("pool 'p' is full"))
    store_thread.trouble("outcomes", away)
    await asyncio.sleep(1)
    await store_thread.close(store_thread.stop)
    assert sorted(record.getMessage() for record in caplog.records) == [
        "cancel: the store is away",
        "schedule of note: pool 'p' is full",
        f"the store connection fails at 'outcomes' and is retried: Unavailable: {away}",
        "withdraw: OSError: no",
    ]


@seeded
async def test_a_background_loop_restarts_after_a_failure_and_ends_when_done(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    store_thread = store_thread_of(runtime, heard)
    runs: list[float] = []

    async def work() -> None:
        runs.append(runtime.monotonic())
        if len(runs) < 4:
            raise [ValueError(), asyncio.CancelledError(), KeyError()][len(runs) - 1]

    task = store_thread.start("work", work)
    await asyncio.wait([task])
    assert len(runs) == 4
    assert runs[-1] - runs[0] == pytest.approx(3)
    assert len(heard.of(StoreTrouble)) == 3
    await store_thread.close(store_thread.stop)


@seeded
async def test_a_background_loop_ends_with_the_store_thread(runtime: SeededRuntime) -> None:
    store_thread = store_thread_of(runtime)
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("work")

    store_thread.start("work", work)
    await asyncio.sleep(1)
    await store_thread.close(store_thread.stop)
    assert ended == ["work"]


class Interrupting(Runtime):
    """Presses Ctrl-C once, while the loop of the store thread is being woken."""

    wanted = False

    def loop_beside(self, name: str) -> asyncio.AbstractEventLoop:
        loop = super().loop_beside(name)
        wake = loop.call_soon_threadsafe

        def interrupted(*args: Any, **kwargs: Any) -> asyncio.Handle:
            if self.wanted:
                self.wanted = False
                raise KeyboardInterrupt
            return wake(*args, **kwargs)

        loop.call_soon_threadsafe = interrupted  # type: ignore[assignment, method-assign]
        return loop


def test_ctrl_c_during_a_wake_up_does_not_leave_the_store_thread_asleep() -> None:
    runtime = Interrupting()
    store_thread = StoreThread(MemoryStore(runtime), runtime, Heard().events)
    asked: list[str] = []

    async def ask(what: str) -> str:
        asked.append(what)
        return what

    runtime.wanted = True
    with pytest.raises(KeyboardInterrupt):
        store_thread.ask_sync(lambda: ask("left"))
    assert store_thread.ask_sync(lambda: ask("heard")) == "heard"
    assert asked == ["heard"]
    runtime.end_loop(store_thread.loop)


@seeded
async def test_a_store_is_asked_in_the_order_of_the_askers(runtime: SeededRuntime) -> None:
    """In order: a caller sees its own earlier writes when it asks again."""
    store = SharedStore(runtime)
    store_thread = StoreThread(store, runtime, Heard().events)
    seen: list[int] = []

    async def note(number: int) -> None:
        seen.append(number)

    for number in range(20):
        await store_thread.ask(lambda number=number: note(number))  # type: ignore[misc]
    assert seen == list(range(20))
    await store_thread.close(store_thread.stop)


def test_an_invalid_store_url_is_refused() -> None:
    for url in ("jobs.db", "sqlite://jobs.db", "sqlite:///", ""):
        with pytest.raises(UsageError, match=r"give memory://, sqlite:///file\.db"):
            App(url)
    wrong: Any = 5
    with pytest.raises(UsageError):
        App(wrong)
