"""The child of a process slot: makes the calls that its parent sends, one after the other."""

from __future__ import annotations

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

from poolhand.context import TOLD, running
from poolhand.pool.slots.fault import fault_of
from poolhand.pool.slots.process_error import raised_fault
from poolhand.rules.job import Fault, Job

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

READY = b"ready"
BYE = b""
LOOK_SECONDS = 1.0  # how often each end looks whether the other one lives

SLOW_IMPORT = 30.0
SLOW = (
    "poolhand: the process of a job has been importing its script for 30 s; a script keeps what it "
    "does under `if __name__ == '__main__':`, because each process imports it\n"
)

Luggage = Callable[[], object]
# True and the pickled value, or False, the pickled error (empty: it cannot be sent) and its text.
Answer = tuple[bool, bytes, Fault | None]


class EmitLine(NamedTuple):
    """What the job tells: the kind and the data of an event."""

    kind: str
    data: bytes


class ChildRequest(NamedTuple):
    """What the job asks of the store; the answer bears the same number."""

    number: int
    verb: str
    details: tuple[Any, ...]


class ChildReply(NamedTuple):
    """What the store answered, or raised."""

    number: int
    value: Any
    error: Exception | None


# The number of the order, and its answer; none while it is only begun.
Word = tuple[int, Answer | EmitLine | ChildRequest | None]


def unpack(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - both ends of the pipe are ours


class ChildRun:
    """What a job in a child can see of itself; `told` to stop before it began, or wished to."""

    stop_wished = 0  # the number of the order that shall stop

    def __init__(
        self,
        speaking: ChildChannel,
        number: int,
        told: bool,
        job: Job,
        submitter: str,
        token: int | None,
    ) -> None:
        self._speaking = speaking
        self.number = number
        self.told = told
        self.job = job
        self.submitter = submitter
        self.token = token
        self.shelf: dict[str, Any] = {}

    @property
    def stop_requested(self) -> bool:
        return self.told or ChildRun.stop_wished == self.number

    def snapshot(self) -> Job:
        return self.job

    def tell(self, kind: str, data: bytes) -> Awaitable[None]:
        # Where the parent cannot follow, the pipe is full, and this waits.
        self._speaking.say((self.number, EmitLine(str(kind), data)))
        return TOLD

    async def ask(self, verb: str, *details: Any) -> Any:
        return await self._speaking.ask(self.number, verb, details)


class ChildChannel:
    """Says one thing after the other, whichever thread of the job says it, and hears replies."""

    def __init__(self, orders: Connection) -> None:
        self._orders = orders
        self._lock = Lock()
        self._asked = count(1)
        self._waiting: dict[int, Future[Any]] = {}

    def say(self, word: Word) -> None:
        with self._lock:
            self._orders.send(word)

    async def ask(self, order: int, verb: str, details: tuple[Any, ...]) -> Any:
        number = next(self._asked)
        future = self._waiting[number] = get_running_loop().create_future()
        try:
            self.say((order, ChildRequest(number, verb, details)))
            return await future
        finally:
            del self._waiting[number]

    def hear(self, reply: ChildReply) -> None:
        """Hand a reply to the loop that waits for it; from any thread."""
        future = self._waiting.get(reply.number)
        if future is not None:
            with suppress(RuntimeError):
                # Its loop is closed: the job did not wait for it.
                future.get_loop().call_soon_threadsafe(_give, future, reply)


def _give(future: Future[Any], reply: ChildReply) -> None:
    if future.done():
        return
    if reply.error is None:
        future.set_result(reply.value)
    else:
        future.set_exception(reply.error)


def serve(orders: Connection, wishes: Connection, before: bytes | None) -> None:
    """Carry out orders until the parent says goodbye, or is gone; make the call `before` first."""
    from multiprocessing import parent_process

    if os.name == "posix":
        # A group of its own: Ctrl-C is for the parent, and a kill takes along what the job started.
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        # Blocked by the parent until it could be ignored.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = parent_process()
    assert parent is not None
    _die_with(parent.sentinel)
    speaking = ChildChannel(orders)
    obeying = (wishes, speaking, parent.pid)
    Thread(target=_obey, args=obeying, name="poolhand-wishes", daemon=True).start()
    # Only now: code of the user may stay there for ever.
    _import_script()
    try:
        orders.send_bytes(READY if before is None else _prepared(before))
        while _serve_next(orders, speaking):
            pass
    except (EOFError, OSError):
        _vanish()


def _import_script() -> None:
    """Import the script that the parent was started with: it may hold the functions of jobs."""
    from poolhand.spawning import import_main

    notice = Timer(SLOW_IMPORT, sys.stderr.write, [SLOW])
    notice.daemon = True
    notice.start()
    try:
        import_main()
    except BaseException:
        # Told here, and ended at once: it may have started threads that do not end.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    notice.cancel()


def _prepared(before: bytes) -> bytes:
    """Make the call that comes before all jobs; return what the parent is told of it."""
    try:
        unpack(before)()
    except BaseException as error:
        return pickle.dumps(_failed(error))
    return READY


def _die_with(parent: int) -> None:
    """Have the kernel kill this group when the parent, which this pipe comes from, is gone.

    A thread that looks for it is not enough: a job may hold the interpreter for hours.
    """
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(parent, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(parent, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent, fcntl.F_SETFL, fcntl.fcntl(parent, fcntl.F_GETFL) | os.O_ASYNC)
    if os.name == "posix" and select.select([parent], [], [], 0)[0]:
        # It has gone before: the kernel tells what happens from now on.
        _vanish()


def _obey(wishes: Connection, speaking: ChildChannel, parent: int) -> None:
    try:
        while True:
            if wishes.poll(LOOK_SECONDS):
                heard = wishes.recv()
                if isinstance(heard, ChildReply):
                    speaking.hear(heard)
                else:
                    ChildRun.stop_wished = heard
            elif os.name == "posix" and os.getppid() != parent:
                # A fork of the parent holds the pipe open.
                _vanish()
    except (EOFError, OSError):
        _vanish()


def _vanish() -> None:
    """End at once: nobody is left who could use what this process does."""
    if os.name == "posix":
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _serve_next(orders: Connection, speaking: ChildChannel) -> bool:
    header = orders.recv_bytes()
    if header == BYE:
        return False
    call = orders.recv_bytes()
    number, told, job, submitter, token, luggage = unpack(header)
    # Until this arrives the parent may have the call made by another child.
    speaking.say((number, None))
    child = os.getpid()
    run = ChildRun(speaking, number, told, job, submitter, token)
    # In a context of its own: the next job must not see what this one sets.
    answer = copy_context().run(_carry_out, run, luggage, call)
    if os.getpid() != child:
        # The job has forked, and this is the fork: it has nothing to say here.
        os._exit(0)
    speaking.say((number, answer))
    return True


def _carry_out(run: ChildRun, luggage: Luggage | None, call: bytes) -> Answer:
    try:
        running.set(run)
        if luggage is not None:
            luggage()
        todo = unpack(call)
    except BaseException as error:
        return _unreadable(error)
    try:
        value = todo()
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
