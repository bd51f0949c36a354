"""Forks: a process that a job forks ends when it comes back to the code that runs jobs.

The fork has copies of everything: of the event loop with the other jobs on it, of slots and
tickets, but of no other thread. If it went on, it would run other jobs a second time and settle
jobs of its parent. A fork that ends by itself, as those of `multiprocessing` do, or that becomes
another program never comes back, and is left alone.
"""

from __future__ import annotations

import os
import signal
from asyncio import AbstractEventLoop, get_running_loop
from contextlib import suppress

from poolhand.context import running

EXIT_CODE = 1

generation = 0  # grows with every fork by a job: what was made before belongs to the parent
_loop: AbstractEventLoop | None = None


def end_fork(job: object, did: str) -> None:
    """End this process, which the code of a job has forked."""
    # Imported only here: few programs need it.
    from poolhand.observe.failures import warn_forked

    warn_forked(job, did, EXIT_CODE)
    os._exit(EXIT_CODE)


def ended_with(error: BaseException | None) -> str:
    """Describe the end of the job's code in a fork."""
    return "returned from the job" if error is None else f"raised {type(error).__name__}: {error}"


def _before() -> None:
    global _loop
    _loop = None
    if running.get() is not None:
        with suppress(RuntimeError):
            # Asyncio forgets the running loop in the fork.
            _loop = get_running_loop()


def _in_fork() -> None:
    """Have the copy of the event loop end this process as soon as the job gives control to it."""
    global generation
    inside = running.get()
    if inside is None:
        return
    generation += 1
    _reset_signals()
    if _loop is not None:
        # Other jobs must not run here. If the loop is not asyncio's own, each may run one step.
        getattr(_loop, "_ready", []).clear()
        _loop.call_soon(end_fork, inside.snapshot(), "awaited")


def _reset_signals() -> None:
    """Let signals end this process: the handlers it inherited stop the worker of the parent."""
    # Otherwise the number of a signal would be written to the loop of the parent.
    signal.set_wakeup_fd(-1)
    if callable(signal.getsignal(signal.SIGTERM)):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_fork)
