"""Runtime: time, randomness, threads and processes, passed in so that tests can replace them."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import sys
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from poolhand.errors import UsageError

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

IDLE_THREAD_SECONDS = 10.0
TIME_NAMESPACES = ("time", "time_for_children")

Identity = tuple[str, str, int, str]
_ThreadCall = tuple[str, Callable[[], None]]  # the thread's name, and the function to call


class Runtime:
    """The real process: its clocks, its randomness, its threads and child processes."""

    def __init__(self, seed: int | None = None) -> None:
        self.random = random.Random(seed)  # noqa: S311 - jitter and ids, not secrets
        self._process = os.getpid()
        self._idle: list[SimpleQueue[_ThreadCall]] = []

    # The bare function, because every job reads the time several times.
    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    def clock_ahead(self) -> float:
        """Return by how much `monotonic` is ahead of the same clock elsewhere on this machine.

        Subtract it from a reading that other processes use: a time namespace has its own clocks.
        """
        return clock_offsets().get("monotonic", 0) / 1e9

    def since_boot(self) -> float:
        """Return a time that cannot be set, and that advances while the machine sleeps."""
        boot_time = getattr(time, "CLOCK_BOOTTIME", None)
        return self.monotonic() if boot_time is None else time.clock_gettime(boot_time)

    def wall(self) -> datetime:
        return datetime.now(UTC)

    def salt(self) -> str:
        """Return 12 random characters, unique to this process; a fork gets others."""
        return secrets.token_hex(6)

    def identity(self) -> Identity:
        """Return the host, its boot id, this process id and its start time: globally unique."""
        pid = os.getpid()
        return host(), boot_id(), pid, process_started(pid) or ""

    def in_thread(self, call: Callable[[], None], name: str) -> None:
        """Run `call` once outside the event loop.

        Threads are daemons: one that never returns must not stop the process from exiting.
        """
        if os.getpid() != self._process:
            # A fork copies the list of idle threads, but not the threads.
            self._process, self._idle = os.getpid(), []
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
        inbox.put((name, call))

    def loop_beside(self, name: str) -> AbstractEventLoop:
        """Start a thread with an event loop of its own and return that loop, running."""
        loop = asyncio.new_event_loop()
        try:
            threading.Thread(target=_run_loop, args=(loop,), name=name, daemon=True).start()
        except BaseException:
            loop.close()
            raise
        return loop

    def end_loop(self, loop: AbstractEventLoop) -> None:
        """Stop a loop of `loop_beside` after its current callbacks; from any thread."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(loop.stop)

    def spawn(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> BaseProcess:
        """Start a process that calls `target`; spawned, because a fork copies held locks.

        The child does not import this process's main script before it calls `target`.
        """
        from poolhand.spawning import ChildProcess

        process = ChildProcess(target=target, args=args, name=name)
        process.start()
        return process

    def watch(self, call: Callable[[], None]) -> bool:
        """Run the watchdog of the event loop in a thread; False if there is nothing to watch."""
        threading.Thread(target=call, name="poolhand-watchdog", daemon=True).start()
        return True

    def cpu_of_thread(self, thread: threading.Thread) -> float | None:
        """Return the CPU time of a living thread, None where it cannot be read."""
        # By the kernel's thread id: asking the thread library about an ended thread crashes.
        return None if thread.native_id is None else _cpu_of((~thread.native_id << 3) | 6)

    def cpu_of_process(self, pid: int) -> float | None:
        """Return the CPU time of a child process, None where it cannot be read."""
        return _cpu_of((~pid << 3) | 2)

    def _serve(self, inbox: SimpleQueue[_ThreadCall]) -> None:
        work: _ThreadCall | None = inbox.get()
        while work is not None:
            threading.current_thread().name, call = work
            call()
            # An idle thread must not keep the call, and all that it references, alive.
            del call
            work = None
            self._idle.append(inbox)
            work = self._next(inbox)

    def _next(self, inbox: SimpleQueue[_ThreadCall]) -> _ThreadCall | None:
        try:
            return inbox.get(timeout=IDLE_THREAD_SECONDS)
        except Empty:
            pass
        try:
            self._idle.remove(inbox)
        except ValueError:
            # `in_thread` took this thread while it was about to exit: its call will arrive.
            return inbox.get()
        return None


def _run_loop(loop: AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def host() -> str:
    """Return the name of the machine, with the id of this container's process namespace.

    Two containers of one machine may have the same name and boot id, but their process ids mean
    different processes.
    """
    try:
        return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def is_coming_up() -> bool:
    """Return whether this is a child process that still imports its parent's script."""
    process: Any = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)


GUARD = 'put what it does under `if __name__ == "__main__":`'


class Importing:
    """The import of an app's module by a command; it must not submit or run jobs.

    `refused` is the error of what it tried to do. After the import, code that it started is no
    longer restricted.
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self.is_over = False
        self.refused: UsageError | None = None

    def refuse(self, what: str) -> UsageError:
        text = f"{what} while {self.module} is imported, to submit jobs or to run them; {GUARD}"
        self.refused = UsageError(text)
        return self.refused


importing: ContextVar[Importing | None] = ContextVar("poolhand_importing", default=None)


def current_import() -> Importing | None:
    """Return the import of an app that the running code belongs to."""
    found = importing.get()
    return None if found is None or found.is_over else found


def check_script(what: str) -> None:
    """Raise UsageError if called while a script or an app's module is only being imported."""
    imported = current_import()
    if imported is not None:
        raise imported.refuse(what)
    if is_coming_up():
        raise UsageError(
            f"{what} by a script that is only being imported, by a child for one of its jobs: keep "
            "what it does under `if __name__ == '__main__':`"
        )


def boot_id() -> str:
    """Return the id of this boot of the machine, empty where there is none."""
    return _text_of("/proc/sys/kernel/random/boot_id").strip()


def process_started(pid: int) -> str | None:
    """Return when a living process started, in clock ticks of its machine; None if it has ended.

    Empty where that cannot be read: a process id alone may have been reused. The value is the same
    in every time namespace, except for the last tick.
    """
    if not sys.platform.startswith("linux"):
        return "" if _has_process(pid) else None
    fields = _text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
    # The state, then 19 more fields up to the start time; a zombie has ended but is not reaped.
    if len(fields) <= 19 or fields[0] in "ZX":
        return None
    # The kernel reports it relative to the clock of the reading process.
    ahead = clock_offsets().get("boottime", 0) * os.sysconf("SC_CLK_TCK") // 10**9
    return str(int(fields[19]) - ahead)


def is_running(pid: int, started: str) -> bool:
    """Return whether the process with this id and start time still runs."""
    found = process_started(pid)
    if found is None or found == started:
        return found is not None
    # Offsets that are not whole ticks are rounded; a process id is not reused that soon.
    return found.isdecimal() and started.isdecimal() and abs(int(found) - int(started)) <= 1


def clock_offsets() -> dict[str, int]:
    """Return by how many nanoseconds the clocks of this process are ahead of the machine's.

    Empty outside a time namespace.
    """
    try:
        own, childrens = (os.stat(f"/proc/self/ns/{one}").st_ino for one in TIME_NAMESPACES)
    except OSError:
        return {}
    if own != childrens:
        # The offsets that can be read apply to future children; this process has not moved.
        return {}
    lines = [line.split() for line in _text_of("/proc/self/timens_offsets").splitlines()]
    return {line[0]: int(line[1]) * 10**9 + int(line[2]) for line in lines if len(line) == 3}


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes, 0 where it cannot be read."""
    fields = _text_of("/proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _cpu_of(clock: int) -> float | None:
    """Read the CPU clock of a process or a thread by its Linux clock id."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return time.clock_gettime(clock)
    except OSError:
        return None
