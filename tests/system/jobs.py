"""Jobs that run in child processes, which import this module."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from contextvars import ContextVar
from pathlib import Path
from threading import Event
from typing import Any

from poolhand import Pool, Snooze, current_job, stop_requested
from poolhand.views import Job

COLOUR: ContextVar[str] = ContextVar("COLOUR", default="none")


def echo(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def look() -> tuple[Job | None, bool]:
    return current_job(), stop_requested()


def nest(wire: str) -> None:
    """Run a pool in this process, with a child of its own that does not stop."""

    async def main() -> None:
        async with Pool(run_in="process") as pool:
            await pool.run(be_stubborn, wire)

    asyncio.run(main())


def colour(new: str) -> str:
    """Return the colour of this context and change it."""
    before = COLOUR.get()
    COLOUR.set(new)
    return before


# Errors and results, some of which cannot be sent


class Quota(Exception):
    """An error with an attribute of its own."""

    def __init__(self, message: str, left: int = 0) -> None:
        super().__init__(message)
        self.left = left


class TwoParts(Exception):
    """An error that can be pickled and not unpickled."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")


class Shy:
    """A value that can be pickled and not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("not here")


def fail(error: BaseException) -> None:
    raise error


def fail_with_quota() -> None:
    raise Quota("spent", left=7)


def fail_in_two_parts() -> None:
    raise TwoParts(7, "out of paper")


def fail_locally() -> None:
    class Local(Exception):
        pass

    raise Local("nobody else knows me")


def return_lambda() -> Any:
    return lambda: None


def return_shy() -> Shy:
    return Shy()


# Jobs that fail or never end


def exit_now(code: int) -> None:
    os._exit(code)


def send_self(number: int) -> None:
    os.kill(os.getpid(), number)
    signal.pause()


def count(path: str) -> int:
    """Return how often this was called with the same path."""
    with Path(path).open("a") as file:
        file.write(".")
    return Path(path).stat().st_size


def die_once(path: str) -> int:
    """Die at the first call."""
    calls = count(path)
    if calls == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return calls


def fail_once(path: str, error: BaseException) -> int:
    """Raise at the first call."""
    calls = count(path)
    if calls == 1:
        raise error
    return calls


class Picky(Exception):
    """An error that can be sent and not rebuilt."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first)
        self.second = second


def be_picky() -> None:
    raise Picky(1, 2)


def snooze_once(path: str) -> int:
    return fail_once(path, Snooze(0.0))


# Jobs that report to a test; see `Wire` there


def report(wire: str, *pids: int) -> int:
    """Report the pid of this process, and others, to the test."""
    with Path(wire, "news").open("w") as news:
        news.write(" ".join(map(str, (os.getpid(), *pids))) + "\n")
    return os.getpid()


def hold(wire: str) -> int:
    """Work until the test releases it."""
    report(wire)
    with Path(wire, "leave").open("rb", buffering=0) as leave:
        leave.read(1)
    return os.getpid()


def be_polite(wire: str) -> str:
    """Work until asked to stop."""
    report(wire)
    pause = Event()
    while not stop_requested():
        pause.wait(0.001)
    return "stopped by itself"


def be_stubborn(wire: str) -> None:
    """Never stop."""
    report(wire)
    while True:
        signal.pause()


def hold_interpreter(wire: str) -> None:
    """Never stop, and let no other thread of this process run."""
    report(wire)
    re.match(r"(a+)+$", "a" * 200 + "b")


def be_stubborn_with_company(wire: str) -> None:
    """Never stop, after starting a program that does not stop either."""
    company = subprocess.Popen(["sleep", "1000"])
    report(wire, company.pid)
    signal.pause()


def leave_fork_behind(wire: str) -> None:
    """Die, and leave a process behind that has the pipes of this one."""
    fork = os.fork()
    if not fork:
        signal.pause()
    report(wire, fork)
    os._exit(3)


def fork_and_return(text: str) -> str:
    """Fork, and return in both: the fork must not answer."""
    if os.fork() == 0:
        return "the fork"
    return text


def fork_and_raise() -> str:
    if os.fork() == 0:
        raise FileNotFoundError("no such program")
    return "the parent"


def leave_running() -> int:
    """Start a program that outlives the job; return its pid."""
    return subprocess.Popen(["sleep", "60"]).pid


class Sealed(Exception):
    """An error whose attributes cannot be set."""

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("sealed")


class Odd(Exception):
    """An error whose `with_traceback` raises."""

    def with_traceback(self, trace: object) -> Exception:  # type: ignore[override]
        raise RuntimeError("not with me")


def raise_sealed() -> None:
    raise Sealed("kept")


def raise_odd() -> None:
    raise Odd("kept")
