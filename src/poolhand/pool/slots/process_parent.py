"""The parent side of process slots: child processes for CPU work, one job at a time each."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from poolhand.errors import JobLost, UsageError
from poolhand.pool.options import name_of
from poolhand.pool.slots.fault import fault_of
from poolhand.pool.slots.process_answer import Answer, unpack, unprepared
from poolhand.pool.slots.process_child import (
    EXIT,
    LOOK_SECONDS,
    READY,
    ChildReply,
    ChildRequest,
    EmitLine,
    TraceContext,
    serve,
)
from poolhand.rules.job import Job
from poolhand.rules.plain import safe
from poolhand.runtime import Runtime

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from poolhand.pool.slots.attempt import Runnable

# multiprocessing is imported where a process is started: most programs start none.

EXIT_SECONDS = 2.0


class ChildPhase(StrEnum):
    """The phase of a child; a busy child has confirmed that it begins a call."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"


class ChildLost(Exception):
    """A child died, with this exit code, in this phase; only a busy one had begun its call."""

    def __init__(self, pid: int, code: int | None, phase: ChildPhase) -> None:
        super().__init__(pid, code, phase)
        self.pid = pid
        self.code = code
        self.phase = phase

    @property
    def is_by_script(self) -> bool:
        """Return whether the child ended by itself while it imported the script of its parent."""
        return self.phase is ChildPhase.STARTING and self.code is not None and self.code >= 0


class ProcessCall(Struct, frozen=True):
    """A packed call, and the context that its code can read."""

    job: Job
    submitter: str
    token: int | None
    call: bytes
    trace_context: TraceContext | None


class Child:
    """A spawned process with a pipe; all but `ask` and `kill` block and belong to one thread."""

    def __init__(self, runtime: Runtime, name: str, before: bytes | None = None) -> None:
        from multiprocessing import get_context
        from multiprocessing.util import Finalize, is_exiting

        context = get_context("spawn")
        self._orders, theirs = context.Pipe()
        received, self._requests = context.Pipe(duplex=False)
        self._phase = ChildPhase.STARTING
        self._serves: int | None = None
        self._served = 0
        self._dead = False
        self._lock = Lock()
        try:
            with theirs, received, _deaf_to_ctrl_c():
                self._process = runtime.spawn(serve, (theirs, received, before), name)
        except BaseException:
            # Close now, not when the error is freed: spawning may have failed for lack of files.
            self._close_pipes()
            raise
        assert self._process.pid is not None
        self.pid = self._process.pid
        # Created once: every job waits for its child twice.
        self._poller = select.poll()
        self._poller.register(self._orders, select.POLLIN)
        self._poller.register(self._process.sentinel, select.POLLIN)
        # Not atexit: multiprocessing would first wait for this child, or skip atexit entirely.
        self._at_exit = Finalize(self, _kill, (self._process, self.pid), exitpriority=0)
        if is_exiting():
            self.end()

    @property
    def is_new(self) -> bool:
        """Whether this child is at its first call."""
        return self._served <= 1

    @property
    def is_fit(self) -> bool:
        """Whether this child can be given another call."""
        return self._phase is not ChildPhase.BUSY and not self._dead

    def come_up(self) -> None:
        """Wait until the process has started and has run its warm-up call.

        Raises the error of the warm-up, and ChildLost if the child dies.
        """
        if self._phase is ChildPhase.STARTING:
            said = self._receive()
            if said != READY:
                self._dead = True
                raise unprepared(unpack(said))
            self._phase = ChildPhase.IDLE

    def run(self, process_call: ProcessCall, stop_first: bool, work: Runnable) -> Answer:
        """Have the child make a call and return the answer; raises ChildLost if the child dies.

        `stop_first`: the job was asked to stop before it began. `work` receives the events and
        requests of the job.
        """
        header = pickle.dumps(
            (
                self._serves,
                stop_first,
                process_call.job,
                process_call.submitter,
                process_call.token,
                process_call.trace_context,
            )
        )
        with suppress(OSError):
            self._orders.send_bytes(header)
            self._orders.send_bytes(process_call.call)
        self._next_message()
        self._phase = ChildPhase.BUSY
        while True:
            message = self._next_message()
            assert message is not None
            if isinstance(message, EmitLine):
                work.emit(*message)
            elif isinstance(message, ChildRequest):
                self._reply(message, work)
            else:
                self._phase = ChildPhase.IDLE
                return message

    def _reply(self, asking: ChildRequest, work: Runnable) -> None:
        try:
            reply = ChildReply(asking.number, work.ask_sync(asking.verb, *asking.details), None)
        except Exception as error:
            reply = ChildReply(asking.number, None, error)
        with self._lock, suppress(OSError):
            self._requests.send(reply)

    def _next_message(self) -> Answer | EmitLine | ChildRequest | None:
        """Return the child's next message; a message for another call makes the child unusable."""
        said = self._receive()
        with suppress(Exception):
            number, answer = unpack(said)
            if number == self._serves and (answer is None) is (self._phase is ChildPhase.IDLE):
                found: Answer | EmitLine | ChildRequest | None = answer
                return found
        self._dead = True
        raise ChildLost(self.pid, None, self._phase)

    def take(self) -> int:
        """Begin a call and return its number; until `leave`, `ask` and `kill` accept it."""
        with self._lock:
            self._served += 1
            self._serves = self._served
            return self._served

    def leave(self) -> None:
        with self._lock:
            self._serves = None

    def ask(self, call: int) -> None:
        """Ask the job of this call to stop."""
        with self._lock, suppress(OSError):
            if self._serves == call:
                self._requests.send(call)

    def kill(self, call: int) -> None:
        """Kill the child, unless it has moved on to another call."""
        with self._lock:
            if self._serves == call:
                self.end()

    def end(self) -> None:
        """Kill the child and the processes that its job has started."""
        self._dead = True
        _kill(self._process, self.pid)

    def close(self) -> None:
        """Stop an idle child and the processes its jobs started; kill it if it does not stop."""
        from multiprocessing.connection import wait

        with suppress(OSError):
            self._orders.send_bytes(EXIT)
        # Not joined yet: until then the system cannot reuse its process group id.
        wait([self._process.sentinel], EXIT_SECONDS)
        self.dispose()

    def dispose(self) -> None:
        """Kill and join the child, kill what its job has started, and close the pipes."""
        self.end()
        self._process.join()
        self._at_exit.cancel()
        self._close_pipes()

    def _close_pipes(self) -> None:
        self._orders.close()
        self._requests.close()

    def _receive(self) -> bytes:
        try:
            if self._has_message():
                return self._orders.recv_bytes()
        except (EOFError, OSError):
            pass
        self._dead = True
        self._process.join(LOOK_SECONDS)
        raise ChildLost(self.pid, self._process.exitcode, self._phase)

    def _has_message(self) -> bool:
        """Wait until the child sends a message or dies; return whether there is a message."""
        orders = self._orders.fileno()
        while not (ready := [found for found, _ in self._poller.poll(LOOK_SECONDS * 1000)]):
            # A process that the job started may hold both open after the child has died.
            if not self._process.is_alive():
                break
        # The child may have sent it before it died.
        return orders in ready or self._orders.poll()


def _kill(process: BaseProcess, pid: int) -> None:
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    process.kill()


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Block SIGINT while a process starts, so that Ctrl-C does not kill it before it ignores it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing.resource_tracker import ensure_running

    # Start the tracker first: starting it later would unblock SIGINT on this thread.
    ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Children:
    """The child processes of one pool: started on demand, reused, at most one per slot.

    `before` is the packed warm-up call that each makes before its first job, if any.
    """

    def __init__(self, pool: str, runtime: Runtime) -> None:
        self._pool = pool
        self._runtime = runtime
        self.before: bytes | None = None
        self._lock = Lock()
        self._idle: list[Child] = []
        self._keep = 0
        self._living = 0
        self._made = 0

    def take(self) -> Child:
        """Return an idle child; this can take as long as starting a process."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self._living += 1
            self._made += 1
            name = f"{self._pool}-process-{self._made:03d}"
        try:
            return Child(self._runtime, name, self.before)
        except BaseException:
            with self._lock:
                self._living -= 1
            raise

    def give_back(self, child: Child) -> None:
        """Keep a child for the next job if it is usable and not surplus; otherwise end it."""
        child.leave()
        with self._lock:
            kept = child.is_fit and self._living <= self._keep
            if kept:
                self._idle.append(child)
            else:
                self._living -= 1
        if not child.is_fit:
            child.dispose()
        elif not kept:
            self._let_go(child)

    def keep(self, count: int) -> None:
        """Limit the number of children from now on; surplus busy ones end once they are idle."""
        with self._lock:
            self._keep = count
            surplus = min(len(self._idle), self._living - count)
            gone = [self._idle.pop() for _ in range(surplus)]
            self._living -= len(gone)
        for child in gone:
            self._let_go(child)

    def _let_go(self, child: Child) -> None:
        try:
            self._runtime.in_thread(child.close, f"{self._pool}-close")
        except Exception:
            # No thread is available to wait for the child.
            child.end()


def pack(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Serialize a call for a child."""
    try:
        return pickle.dumps(partial(fn, *args, **kwargs))
    except Exception as error:
        why = fault_of(error).message
        raise UsageError(
            f"run_in='process': the call of {name_of(fn)} cannot be sent to another process "
            f"({why}); use a function at the top level of a module, and arguments that are data"
        ) from error


def lost(job_id: str, loss: ChildLost) -> JobLost:
    """Return the error that the callers of a job get if its child died."""
    text = f"job {job_id} was lost: its process {loss.pid} {ending(loss.code)}"
    if loss.phase is ChildPhase.STARTING:
        text += " before it was ready"
        if loss.is_by_script:
            text += f": {unguarded()}"
    return JobLost(text, job_id=job_id)


def ending(code: int | None) -> str:
    """Describe how a process ended."""
    if code is None:
        return "closed its pipe or sent an unexpected message"
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def unguarded() -> str:
    """Return why a child that imports the script cannot start, and the fix."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script == "<stdin>":
        return (
            "each process that is started for a job imports the script, and a script that is read "
            "from stdin cannot be imported: save it as a file and run `python file.py`, or use "
            "run_in='thread'"
        )
    named = "the script" if script is None else f"the script {safe(str(script))}"
    return (
        f"each process that is started for a job imports {named}, and that import ended it; the "
        "guard is missing there: put what the script does under `if __name__ == '__main__':`"
    )
