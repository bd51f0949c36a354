"""The child side of a process slot: makes the calls that its parent sends, one at a time."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import traceback
from asyncio import Future, get_running_loop
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from itertools import count
from threading import Lock, Thread, Timer
from typing import TYPE_CHECKING, Any, NamedTuple

from poolhand.context import EMITTED, running
from poolhand.pool.slots.fault import fault_of
from poolhand.pool.slots.forks import end_fork
from poolhand.pool.slots.process_answer import Answer, raised_fault, unpack
from poolhand.rules.job import Fault, Job

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

READY = b"ready"
EXIT = b""
LOOK_SECONDS = 1.0  # how often each end checks whether the other one lives

SLOW_IMPORT = 30.0
SLOW = (
    "poolhand: the process of a job has been importing its script for 30 s; put what the "
    "script does under `if __name__ == '__main__':`, because each process imports it\n"
)

TraceContext = Callable[[], object]


class EmitLine(NamedTuple):
    """An event that the job emits: its kind and its data."""

    kind: str
    data: bytes


class ChildRequest(NamedTuple):
    """A request of the job to the store; the reply has the same number."""

    number: int
    verb: str
    details: tuple[Any, ...]


class ChildReply(NamedTuple):
    """The store's reply, or the error it raised."""

    number: int
    value: Any
    error: Exception | None


# The number of the call and a message; None says that the call has begun.
ChildMessage = tuple[int, Answer | EmitLine | ChildRequest | None]


class ChildRun:
    """The view of a job in a child on itself; `stop_first`: asked to stop before it began."""

    stop_requested_for = 0  # the number of the call that should stop

    def __init__(
        self,
        channel: ChildChannel,
        number: int,
        stop_first: bool,
        job: Job,
        submitter: str,
        token: int | None,
    ) -> None:
        self._channel = channel
        self.number = number
        self.stop_first = stop_first
        self.job = job
        self.submitter = submitter
        self.token = token
        self.attempt_values: dict[str, Any] = {}

    @property
    def stop_requested(self) -> bool:
        return self.stop_first or ChildRun.stop_requested_for == self.number

    def snapshot(self) -> Job:
        return self.job

    def emit(self, kind: str, data: bytes) -> Awaitable[None]:
        # If the parent cannot keep up, the pipe is full and this call blocks.
        self._channel.send((self.number, EmitLine(str(kind), data)))
        return EMITTED

    async def ask(self, verb: str, *details: Any) -> Any:
        return await self._channel.ask(self.number, verb, details)


class ChildChannel:
    """Sends one message at a time, from any thread of the job, and receives replies."""

    def __init__(self, orders: Connection) -> None:
        self._orders = orders
        self._lock = Lock()
        self._asked = count(1)
        self._waiting: dict[int, Future[Any]] = {}

    def send(self, message: ChildMessage) -> None:
        with self._lock:
            self._orders.send(message)

    async def ask(self, call: int, verb: str, details: tuple[Any, ...]) -> Any:
        number = next(self._asked)
        future = self._waiting[number] = get_running_loop().create_future()
        try:
            self.send((call, ChildRequest(number, verb, details)))
            return await future
        finally:
            del self._waiting[number]

    def hear(self, reply: ChildReply) -> None:
        """Pass a reply to the loop that waits for it; any thread may call this."""
        future = self._waiting.get(reply.number)
        if future is not None:
            with suppress(RuntimeError):
                # Its loop is closed: the job did not wait for the reply.
                future.get_loop().call_soon_threadsafe(_give, future, reply)


def _give(future: Future[Any], reply: ChildReply) -> None:
    if future.done():
        return
    if reply.error is None:
        future.set_result(reply.value)
    else:
        future.set_exception(reply.error)


def serve(orders: Connection, requests: Connection, before: bytes | None) -> None:
    """Execute orders until the parent says goodbye or dies; make the call `before` first."""
    from multiprocessing import parent_process

    if os.name == "posix":
        # Its own process group: Ctrl-C is for the parent, and a kill includes the job's processes.
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        # The parent blocked SIGINT until it could be ignored.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = parent_process()
    assert parent is not None
    _die_with(parent.sentinel)
    channel = ChildChannel(orders)
    handling = (requests, channel, parent.pid)
    Thread(target=_handle_requests, args=handling, name="poolhand-requests", daemon=True).start()
    # Import last: the user's script may block for ever.
    _import_script()
    # What was imported stays until the end: no collection needs to look through it.
    gc.freeze()
    try:
        orders.send_bytes(READY if before is None else _prepared(before))
        while _serve_next(orders, channel):
            pass
    except (EOFError, OSError):
        _vanish()


def _import_script() -> None:
    """Import the script that the parent was started with: it may define the jobs' functions."""
    from poolhand.spawning import import_main

    notice = Timer(SLOW_IMPORT, sys.stderr.write, [SLOW])
    notice.daemon = True
    notice.start()
    try:
        import_main()
    except BaseException:
        # Report it here and exit at once: the script may have started threads that do not end.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    notice.cancel()


def _prepared(before: bytes) -> bytes:
    """Make the warm-up call; return the message that reports it to the parent."""
    try:
        unpack(before)()
    except BaseException as error:
        return pickle.dumps(_failed(error))
    return READY


def _die_with(parent: int) -> None:
    """Have the kernel kill this process group when the parent, which this pipe comes from, dies.

    A thread that checks for it is not enough: a job may hold the interpreter lock for hours.
    """
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(parent, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(parent, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent, fcntl.F_SETFL, fcntl.fcntl(parent, fcntl.F_GETFL) | os.O_ASYNC)
    if os.name == "posix" and select.select([parent], [], [], 0)[0]:
        # The parent died earlier: the kernel signals only what happens from now on.
        _vanish()


def _handle_requests(requests: Connection, channel: ChildChannel, parent: int) -> None:
    try:
        while True:
            if requests.poll(LOOK_SECONDS):
                received = requests.recv()
                if isinstance(received, ChildReply):
                    channel.hear(received)
                else:
                    ChildRun.stop_requested_for = received
            elif os.name == "posix" and os.getppid() != parent:
                # The parent is gone, but a fork of it holds the pipe open.
                _vanish()
    except (EOFError, OSError):
        _vanish()


def _vanish() -> None:
    """Exit at once: the parent is gone, so no result can be used."""
    if os.name == "posix":
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _serve_next(orders: Connection, channel: ChildChannel) -> bool:
    header = orders.recv_bytes()
    if header == EXIT:
        return False
    call = orders.recv_bytes()
    number, stop_first, job, submitter, token, trace_context = unpack(header)
    # Until this arrives, the parent may give the call to another child.
    channel.send((number, None))
    child = os.getpid()
    run = ChildRun(channel, number, stop_first, job, submitter, token)
    # Run in a copy of the context: the next job must not see what this one sets.
    answer = copy_context().run(_make_call, run, trace_context, call)
    if os.getpid() != child:
        # The job forked and this is the fork: it must not answer.
        end_fork(job, "returned from the job" if answer[0] else "raised an error in the job")
    channel.send((number, answer))
    return True


def _make_call(run: ChildRun, trace_context: TraceContext | None, call: bytes) -> Answer:
    try:
        running.set(run)
        if trace_context is not None:
            trace_context()
        function = unpack(call)
    except BaseException as error:
        return _unreadable(error)
    try:
        value = function()
    except BaseException as error:
        return _failed(error)
    try:
        return True, pickle.dumps(value), None
    except BaseException as error:
        return _unsendable(value, error)


def _failed(error: BaseException) -> Answer:
    fault = raised_fault(error)
    try:
        return False, pickle.dumps(error), fault
    except BaseException:
        return False, b"", fault


def _unreadable(error: BaseException) -> Answer:
    fault = fault_of(error)
    text = (
        f"the call cannot be made from what was sent ({fault.type}: {fault.message}); use a "
        "function and arguments from modules that its process can import"
    )
    return False, b"", Fault("UnreadableCall", text, fault.traceback)


def _unsendable(value: object, error: BaseException) -> Answer:
    kind = type(value).__qualname__
    why = fault_of(error).message
    text = f"it returned a {kind}, which cannot be sent from its process ({why}); return data"
    return False, b"", Fault("UnsendableResult", text)
