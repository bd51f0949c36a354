"""The keeper: the thread and event loop where a store lives and user code never runs.

Others reach it through one mailbox. What lies there when the keeper looks is done together, so
that the submits of many callers share one write.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future, Task
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future as PlainFuture
from contextlib import suppress
from typing import Any, TypeVar

from poolhand.contract import Added, Batch, Refusal, Store
from poolhand.errors import PoolhandError
from poolhand.observe.events import Events, StoreTrouble
from poolhand.runtime import Runtime

T = TypeVar("T")
Answer = tuple[Added, ...] | Refusal
RESTART_AFTER = 1.0


class Reply:
    """Where an answer goes: to a future of an event loop, or of a thread that waits."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: AbstractEventLoop | None) -> None:
        self.loop = loop
        self.future: Future[Any] | PlainFuture[Any] = (
            PlainFuture() if loop is None else loop.create_future()
        )

    def give(self, value: Any, error: BaseException | None) -> None:
        """Answer; on the loop of the future."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


class Keeper:
    """Runs what is asked of it on its own loop and brings the answers back, many at a time."""

    def __init__(self, store: Store, runtime: Runtime, events: Events) -> None:
        self.store = store
        self.runtime = runtime
        self.events = events
        self.loop = runtime.loop_beside("poolhand-keeper")
        self._adds: deque[tuple[Batch, Reply]] = deque()
        self._calls: deque[tuple[Callable[[], Awaitable[Any]], Reply]] = deque()
        self._awake = False
        self._answers: dict[AbstractEventLoop, list[tuple[Reply, Any, BaseException | None]]] = {}
        self._tasks: set[Task[None]] = set()
        self._told: dict[str, str] = {}

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Have `call` awaited on the keeper; the answer comes to the loop that runs here."""
        reply = Reply(asyncio.get_running_loop())
        self._calls.append((call, reply))
        self._wake()
        assert isinstance(reply.future, Future)
        value: T = await reply.future
        return value

    def ask_sync(self, call: Callable[[], Awaitable[T]]) -> T:
        """Have `call` awaited on the keeper while this thread waits."""
        reply = Reply(None)
        self._calls.append((call, reply))
        self._wake()
        assert isinstance(reply.future, PlainFuture)
        value: T = reply.future.result()
        return value

    async def add(self, batch: Batch) -> Answer:
        """Have a batch added, together with those of others."""
        reply = Reply(asyncio.get_running_loop())
        self._adds.append((batch, reply))
        self._wake()
        assert isinstance(reply.future, Future)
        answer: Answer = await reply.future
        return answer

    def do(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something done once on the keeper; nobody waits, but a failure is told."""
        self.post(self._do, name, work)

    def _do(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._keep(self.loop.create_task(self._once(name, work), name=f"poolhand-{name}"))

    async def _once(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:
            self.trouble(name, error)

    def post(self, call: Callable[..., None], *args: Any) -> None:
        """Have a plain call made on the keeper; nobody waits for it."""
        with suppress(RuntimeError):
            # The loop is closed: there is nobody left who could do it.
            self.loop.call_soon_threadsafe(call, *args)

    def answer(self, reply: Reply, value: Any, error: BaseException | None = None) -> None:
        """Bring an answer back; on the keeper's loop."""
        if reply.loop is None or reply.loop is self.loop:
            reply.give(value, error)
            return
        answers = self._answers.get(reply.loop)
        if answers is None:
            answers = self._answers[reply.loop] = []
            self.loop.call_soon(self._hand_over, reply.loop)
        answers.append((reply, value, error))

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Task[None]:
        """Do `work` for as long as the keeper lives; when it fails, tell and begin anew."""
        task = self.loop.create_task(self._supervise(name, work), name=f"poolhand-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def trouble(self, what: str, error: BaseException) -> None:
        """Tell that something does not go as it should, once until it does again."""
        text = f"{type(error).__name__}: {error}"
        if self._told.get(what) != text:
            self._told[what] = text
            if self.events.live:
                self.events.emit(StoreTrouble("", what, text))

    def well(self, what: str) -> None:
        """Note that something goes as it should again."""
        self._told.pop(what, None)

    async def close(self) -> None:
        """End everything that was started here, then the store and the loop; from another loop."""
        try:
            await self.ask(self._close)
        finally:
            self.runtime.end_loop(self.loop)

    def close_sync(self) -> None:
        try:
            self.ask_sync(self._close)
        finally:
            self.runtime.end_loop(self.loop)

    async def stop(self) -> None:
        """End everything that was started here; on the keeper's loop."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _close(self) -> None:
        await self.stop()
        await self.store.close()

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            self.loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        # First: what is put in from now on wakes the keeper again.
        self._awake = False
        adds: list[tuple[Batch, Reply]] = []
        while self._adds:
            adds.append(self._adds.popleft())
        if adds:
            self._keep(self.loop.create_task(self._add(adds)))
        while self._calls:
            call, reply = self._calls.popleft()
            self._keep(self.loop.create_task(self._call(call, reply)))

    def _keep(self, task: Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _add(self, adds: list[tuple[Batch, Reply]]) -> None:
        try:
            answers = await self.store.add([batch for batch, _ in adds])
        except BaseException as error:
            for _, reply in adds:
                self.answer(reply, None, error)
            return
        for (_, reply), answer in zip(adds, answers, strict=True):
            self.answer(reply, answer)

    async def _call(self, call: Callable[[], Awaitable[Any]], reply: Reply) -> None:
        try:
            value = await call()
        except BaseException as error:
            self.answer(reply, None, error)
        else:
            self.answer(reply, value)

    def _hand_over(self, loop: AbstractEventLoop) -> None:
        answers = self._answers.pop(loop)
        with suppress(RuntimeError):
            # The loop that asked is closed: nobody waits there.
            loop.call_soon_threadsafe(_give, answers)

    async def _supervise(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
                return
            except PoolhandError as error:
                self.trouble(name, error)
            except Exception as error:
                self.trouble(name, error)
            await asyncio.sleep(RESTART_AFTER)


def _give(answers: list[tuple[Reply, Any, BaseException | None]]) -> None:
    for reply, value, error in answers:
        reply.give(value, error)
