"""The store thread: the thread and event loop that a store runs on; user code never runs there.

Other threads reach it through one mailbox. Everything in the mailbox is processed together, so that
the submits of many callers share one write.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import AbstractEventLoop, CancelledError, Future, Task
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future as PlainFuture
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from poolhand.contract import Added, Admission, JobBatch, Refusal, Store
from poolhand.durable.connection.event_relay import EventRelay
from poolhand.errors import PoolhandError, StoreError, Unavailable, UsageError
from poolhand.observe.events import Events, StoreTrouble
from poolhand.observe.failures import warn
from poolhand.pool.slots.runner import own_task
from poolhand.runtime import Runtime

T = TypeVar("T")
Answer = tuple[Added, ...] | Refusal
Work = Callable[[], Coroutine[Any, Any, None]]
RESTART_AFTER = 1.0


class CallResult:
    """The result of a call: goes to a future of an event loop, or of a thread that waits.

    `waiter` is the id of the stored job that awaits the result without a time limit, if any.
    """

    __slots__ = ("dropped", "future", "loop", "task", "waiter")

    def __init__(self, loop: AbstractEventLoop | None) -> None:
        self.loop = loop
        self.dropped = False
        self.waiter: str | None = None
        self.task: Task[None] | None = None
        self.future: Future[Any] | PlainFuture[Any] = (
            PlainFuture() if loop is None else loop.create_future()
        )

    def give(self, value: Any, error: BaseException | None) -> None:
        """Set the result or error; on the loop of the future."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


class AddBatch:
    """A batch to be added; used on the store thread's loop only, apart from its creation.

    When the submitter has `left`, the jobs of the batch must not stay, blocked or not: no caller
    would ever learn of them.
    """

    __slots__ = ("answer", "batch", "left", "reply")

    def __init__(self, batch: JobBatch, reply: CallResult) -> None:
        self.batch = batch
        self.reply = reply
        self.answer: Answer | None = None
        self.left = False

    @property
    def taken(self) -> list[str]:
        """The ids of the jobs of this batch that were accepted or whose submitter is blocked."""
        if self.answer is None or isinstance(self.answer, Refusal):
            return []
        own = {request.job.id for request in self.batch.requests}
        found = (
            one.job.id
            for one in self.answer
            if one.entry in (Admission.ACCEPTED, Admission.BLOCKED_SUBMITTER)
        )
        return [id for id in found if id in own]


class StoreThread:
    """Runs calls on its own loop and returns their results, many at a time.

    Every call gets an answer; once the store thread is closed, that is an error.
    """

    def __init__(self, store: Store, runtime: Runtime, events: Events) -> None:
        self.store = store
        self.runtime = runtime
        self.events = events
        self.relay = EventRelay(runtime, events)
        self.loop = runtime.loop_beside("poolhand-store")
        self.endings: list[Callable[[BaseException], None]] = []
        self._adds: deque[AddBatch] = deque()
        self._calls: deque[tuple[Callable[[], Awaitable[Any]], CallResult]] = deque()
        self._waits: deque[tuple[Callable[[CallResult], None], CallResult]] = deque()
        self._awake = False
        self._process = os.getpid()
        self.closed = False
        self._answers: dict[
            AbstractEventLoop, list[tuple[CallResult, Any, BaseException | None]]
        ] = {}
        self._tasks: dict[Task[None], Sequence[CallResult]] = {}
        self._reported: dict[str, type[BaseException]] = {}

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call` on the store thread; return its result on the running loop."""
        reply = CallResult(asyncio.get_running_loop())
        self._calls.append((call, reply))
        self._wake()
        assert isinstance(reply.future, Future)
        value: T = await reply.future
        return value

    def ask_sync(self, call: Callable[[], Awaitable[T]], within: float | None = None) -> T:
        """Await `call` on the store thread while this thread waits, up to `within` seconds."""
        reply = CallResult(None)
        assert isinstance(reply.future, PlainFuture)
        try:
            self._calls.append((call, reply))
            self._wake()
            value: T = reply.future.result(within)
        except KeyboardInterrupt:
            # No caller waits any more, and the call might wait for long.
            reply.dropped = True
            self.post(self._drop, reply)
            raise
        return value

    async def wait(self, register: Callable[[CallResult], None]) -> Any:
        """Wait for a result that code on the store thread sets once it is known."""
        reply = CallResult(asyncio.get_running_loop())
        self._waits.append((register, reply))
        self._wake()
        assert isinstance(reply.future, Future)
        return await reply.future

    async def add(self, batch: JobBatch) -> Answer:
        """Add a batch, in one write with the batches of other callers."""
        reply = CallResult(asyncio.get_running_loop())
        adding = AddBatch(batch, reply)
        self._adds.append(adding)
        self._wake()
        assert isinstance(reply.future, Future)
        try:
            answer: Answer = await reply.future
        except BaseException:
            self.post(self._leave, adding)
            raise
        return answer

    def do(self, name: str, work: Work) -> None:
        """Run `work` once on the store thread without waiting; a failure is reported."""
        self.post(self._do, name, work)

    def _do(self, name: str, work: Work) -> None:
        if not self.closed:
            self._keep(self._task(self._once(name, work), f"poolhand-{name}"))

    async def _once(self, name: str, work: Work) -> None:
        try:
            await work()
        except Exception as error:
            self.trouble(name, error, is_retried=False)
        else:
            self.well(name)

    def post(self, call: Callable[..., None], *args: Any) -> None:
        """Make a plain call on the store thread without waiting for it."""
        with suppress(RuntimeError):
            # RuntimeError: the loop is closed, so the call cannot be made.
            self.loop.call_soon_threadsafe(call, *args)

    def answer(self, reply: CallResult, value: Any, error: BaseException | None = None) -> None:
        """Return a result to its caller; on the store thread's loop."""
        if reply.loop is None or reply.loop is self.loop:
            reply.give(value, error)
            return
        answers = self._answers.get(reply.loop)
        if answers is None:
            answers = self._answers[reply.loop] = []
            self.loop.call_soon(self._hand_over, reply.loop)
        answers.append((reply, value, error))

    def start(self, name: str, work: Work) -> Task[None]:
        """Run `work` until the store thread stops; when it fails, report that and restart it."""
        task = self._task(self._supervise(name, work), f"poolhand-{name}")
        self._keep(task)
        return task

    def trouble(self, what: str, error: BaseException, is_retried: bool = True) -> None:
        """Report a failure, once until `well` clears it."""
        if self._reported.get(what) is not type(error):
            self._reported[what] = type(error)
            text = f"{type(error).__name__}: {error}"
            if is_retried and isinstance(error, StoreError):
                line = f"the store connection fails at {what!r} and is retried: {text}"
            else:
                # One-off work, or an error that is not about the connection, such as PoolFull.
                line = f"{what}: {error.message if isinstance(error, PoolhandError) else text}"
            self.relay.do(partial(warn, line, StoreTrouble, self.events))
            self.relay.emit(StoreTrouble("", what, text))

    def well(self, what: str) -> None:
        """Note that something works again."""
        self._reported.pop(what, None)

    async def close(self, work: Work) -> None:
        """Run the last work, then end the loop, even if cancelled; from another loop."""
        closing = own_task(asyncio.get_running_loop(), self.ask(work), "store-close")
        closing.add_done_callback(self._ended)
        await asyncio.shield(closing)

    def _ended(self, closing: Future[None]) -> None:
        self.runtime.end_loop(self.loop)
        if not closing.cancelled():
            closing.exception()  # Retrieve it, as the caller may have been cancelled.

    async def stop(self) -> None:
        """Cancel everything started here and refuse later calls; on the store thread's loop."""
        self.closed = True
        tasks = {one: self._tasks[one] for one in self._tasks if one is not asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replies in tasks.values():
            # A task cancelled before its first step has not answered; for the others this has no
            # effect.
            for reply in replies:
                self.answer(reply, None, _closed())
        self._refuse()
        for end in self.endings:
            end(_closed())

    def _wake(self) -> None:
        if self._process != os.getpid():
            raise UsageError(
                f"this process ({os.getpid()}) is a fork of the one that opened the store: it "
                "cannot read or write for the jobs that run there"
            )
        if not self._awake:
            try:
                self._awake = True
                self.post(self._look)
            except BaseException:
                # Ctrl-C during this call: let the next call wake the store thread.
                self._awake = False
                raise
        # Check after the call is in the mailbox; `closed` is set before the mailbox is emptied for
        # the last time. So either this check or that emptying finds the call.
        if self.closed or self.loop.is_closed():
            self._refuse()

    def _look(self) -> None:
        # Clear first: calls added from now on wake the store thread again.
        self._awake = False
        if self.closed:
            # Start nothing: a call added at this very moment is refused by its sender in `_wake`.
            self._refuse()
            return
        adds: list[AddBatch] = []
        while self._adds:
            adds.append(self._adds.popleft())
        if adds:
            self._keep(self._task(self._add(adds)), [one.reply for one in adds])
        while self._calls:
            call, reply = self._calls.popleft()
            if reply.dropped:
                continue
            reply.task = self._task(self._call(call, reply))
            self._keep(reply.task, (reply,))
        while self._waits:
            register, reply = self._waits.popleft()
            register(reply)

    def _task(self, work: Coroutine[Any, Any, None], name: str | None = None) -> Task[None]:
        """Start a task in an empty context: the waker's may belong to a job or a request."""
        return self.loop.create_task(work, name=name, context=Context())

    def _drop(self, reply: CallResult) -> None:
        if reply.task is not None:
            reply.task.cancel()

    def _keep(self, task: Task[None], replies: Sequence[CallResult] = ()) -> None:
        self._tasks[task] = replies
        task.add_done_callback(self._tasks.pop)

    def _refuse(self) -> None:
        """Fail every call in the mailbox of a closed store thread; from any thread."""
        with suppress(IndexError):
            while True:
                _give_up(self._adds.popleft().reply)
        for box in (self._calls, self._waits):
            with suppress(IndexError):
                while True:
                    _give_up(box.popleft()[1])

    async def _add(self, adds: list[AddBatch]) -> None:
        try:
            answers = await self.store.add([one.batch for one in adds])
        except BaseException as error:
            if len(adds) > 1 and isinstance(error, Exception) and not isinstance(error, StoreError):
                # One batch caused it; add them one by one, so that the others do not fail with it.
                for one in adds:
                    await self._add([one])
                return
            for one in adds:
                self.answer(one.reply, None, _for_caller(error))
            if isinstance(error, CancelledError):
                raise
            return
        for one, answer in zip(adds, answers, strict=True):
            one.answer = answer
            self.answer(one.reply, answer)
            if one.left:
                self._take_back(one)

    def _leave(self, adding: AddBatch) -> None:
        """Note that the submitter does not wait for a batch any more."""
        adding.left = True
        self._take_back(adding)

    def _take_back(self, adding: AddBatch) -> None:
        ids = adding.taken
        if ids:
            self._do("withdraw", lambda: give_up(self.store, ids))

    async def _call(self, call: Callable[[], Awaitable[Any]], reply: CallResult) -> None:
        try:
            value = await call()
        except BaseException as error:
            self.answer(reply, None, _for_caller(error))
            if isinstance(error, CancelledError):
                raise
        else:
            self.answer(reply, value)

    def _hand_over(self, loop: AbstractEventLoop) -> None:
        answers = self._answers.pop(loop)
        with suppress(RuntimeError):
            # RuntimeError: the calling loop is closed, so nothing waits there.
            loop.call_soon_threadsafe(_give, answers)

    async def _supervise(self, name: str, work: Work) -> None:
        while True:
            try:
                await work()
                return
            except CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # This task was not cancelled: something that it awaited was.
                self.trouble(name, error)
            except Exception as error:
                self.trouble(name, error)
            await asyncio.sleep(RESTART_AFTER)


async def give_up(store: Store, ids: list[str]) -> None:
    """Withdraw jobs whose submitter left.

    Of those accepted meanwhile, cancel the ones without an idempotency key.
    """
    found = await store.cancel(ids, "submitter", blocked_only=True)
    jobs = (one.job for one in found if one is not None)
    unwanted = [job.id for job in jobs if job.idempotency_key is None]
    if unwanted:
        await store.cancel(unwanted, "submitter")


def _closed() -> Unavailable:
    return Unavailable("this process closed the store before it answered; use the app again")


def _for_caller(error: BaseException) -> BaseException:
    """Translate an error for the caller: a cancellation of the store thread becomes Unavailable."""
    return _closed() if isinstance(error, CancelledError) else error


def _give_up(reply: CallResult) -> None:
    if reply.loop is None:
        reply.give(None, _closed())
    else:
        with suppress(RuntimeError):
            reply.loop.call_soon_threadsafe(reply.give, None, _closed())


def _give(answers: list[tuple[CallResult, Any, BaseException | None]]) -> None:
    for reply, value, error in answers:
        reply.give(value, error)
