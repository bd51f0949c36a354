"""The child of a process slot: makes the calls that its parent sends, one after the other."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextvars import copy_context
from threading import Thread
from typing import TYPE_CHECKING, Any

from poolhand.context import running
from poolhand.pool.fault import fault_of
from poolhand.rules.job import Fault, Job

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

READY = b"ready"
BEGUN = b"begun"
BYE = b""
LOOK_SECONDS = 1.0  # how often each end looks whether the other one lives

Luggage = Callable[[], object]
# True and the pickled value, or False, the pickled error (empty: it cannot be sent) and its text.
Answer = tuple[bool, bytes, Fault | None]


def unpack(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - both ends of the pipe are ours


class ChildRun:
    """What a job in a child can see of itself; `told` to stop before it began, or wished to."""

    stop_wished = 0  # the number of the order that shall stop

    def __init__(self, number: int, told: bool, job: Job, submitter: str) -> None:
        self.number = number
        self.told = told
        self.job = job
        self.submitter = submitter

    @property
    def stop_requested(self) -> bool:
        return self.told or ChildRun.stop_wished == self.number

    def snapshot(self) -> Job:
        return self.job


def serve(orders: Connection, wishes: Connection) -> None:
    """Carry out orders until the parent says goodbye, or is gone."""
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
    Thread(target=_obey, args=(wishes, parent.pid), name="poolhand-wishes", daemon=True).start()
    try:
        orders.send_bytes(READY)
        while _serve_next(orders):
            pass
    except (EOFError, OSError):
        _vanish()


def _die_with(parent: int) -> None:
    """Have the kernel kill this group when the parent, which this pipe comes from, is gone.

    A thread that looks for it is not enough: a job may hold the interpreter for hours.
    """
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(parent, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(parent, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent, fcntl.F_SETFL, fcntl.fcntl(parent, fcntl.F_GETFL) | os.O_ASYNC)


def _obey(wishes: Connection, parent: int) -> None:
    try:
        while True:
            if wishes.poll(LOOK_SECONDS):
                ChildRun.stop_wished = wishes.recv()
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


def _serve_next(orders: Connection) -> bool:
    header = orders.recv_bytes()
    if header == BYE:
        return False
    call = orders.recv_bytes()
    # Until this arrives the parent may have the call made by another child.
    orders.send_bytes(BEGUN)
    # In a context of its own: the next job must not see what this one sets.
    orders.send_bytes(copy_context().run(_carry_out, header, call))
    return True


def _carry_out(header: bytes, call: bytes) -> bytes:
    try:
        number, told, job, submitter, luggage = unpack(header)
        running.set(ChildRun(number, told, job, submitter))
        if luggage is not None:
            luggage()
        todo = unpack(call)
    except BaseException as error:
        return _pack_unreadable(error)
    try:
        value = todo()
    except BaseException as error:
        own = error.__traceback__
        return _pack_error(error.with_traceback(own and own.tb_next))
    try:
        return _pack(True, pickle.dumps(value))
    except BaseException as error:
        return _pack_unsendable(value, error)


def _pack(succeeded: bool, content: bytes, fault: Fault | None = None) -> bytes:
    answer: Answer = succeeded, content, fault
    return pickle.dumps(answer)


def _pack_error(error: BaseException) -> bytes:
    try:
        packed = pickle.dumps(error)
    except BaseException:
        packed = b""
    return _pack(False, packed, fault_of(error))


def _pack_unreadable(error: BaseException) -> bytes:
    fault = fault_of(error)
    text = (
        f"the call cannot be made from what was sent ({fault.type}: {fault.message}); use a "
        "function and arguments from modules that its process can import"
    )
    return _pack(False, b"", Fault("UnreadableCall", text, fault.traceback))


def _pack_unsendable(value: object, error: BaseException) -> bytes:
    kind = type(value).__qualname__
    why = fault_of(error).message
    text = f"it returned a {kind}, which cannot be sent from its process ({why}); return data"
    return _pack(False, b"", Fault("UnsendableResult", text))
