"""Run programs under a seeded schedule: their runtime, and the checks at their end."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from poolhand.runtime import Runtime
from poolhand.testing.seeded_loop import (
    MAX_STEPS,
    START_TIME,
    Fault,
    Order,
    SeededLoop,
    Stalled,
    describe_task,
)

__all__ = ["SeededLoop", "SeededRuntime", "Stalled", "run_seeded"]

T = TypeVar("T")
START_WALL = datetime(2030, 1, 1, tzinfo=UTC)
MAX_THREAD_SECONDS = 0.05
RUN_DOWN_ROUNDS = 3
RUN_DOWN_STEPS = 20_000


class SeededRuntime(Runtime):
    """The runtime of a seeded loop: its virtual clock, an adjustable wall clock, its randomness."""

    def __init__(self, loop: SeededLoop) -> None:
        # Not the loop's random stream: drawing a jitter must not mirror the choice of a callback.
        super().__init__(loop.seed ^ 0x9E3779B97F4A7C15)
        self.loop = loop
        self.wall_offset = 0.0

    def monotonic(self) -> float:
        return self.loop.time()

    def clock_ahead(self) -> float:
        return 0.0

    def since_boot(self) -> float:
        return self.monotonic()

    def wall(self) -> datetime:
        return START_WALL + timedelta(seconds=self.loop.time() - START_TIME + self.wall_offset)

    def salt(self) -> str:
        return f"{self.random.getrandbits(48):012x}"

    def in_thread(self, call: Callable[[], None], name: str) -> None:
        """Make `call` on the loop, in one piece, after up to 50 ms of virtual time."""
        self.loop.call_outside(self.random.uniform(0, MAX_THREAD_SECONDS), call)

    def identity(self) -> tuple[str, str, int, str]:
        return "seeded-host", "seeded-boot", 1, "0"

    def loop_beside(self, name: str) -> AbstractEventLoop:
        """Return the one shared loop, so that the schedule controls everything."""
        return self.loop

    def end_loop(self, loop: AbstractEventLoop) -> None:
        """Do nothing: the loop is shared."""

    def watch(self, call: Callable[[], None]) -> bool:
        """Do not watch the loop: its time stands still while a callback runs."""
        return False


def run_seeded(
    main: Callable[[SeededRuntime], Awaitable[T]],
    seed: int,
    *,
    order: Order = "permute",
    max_steps: int = MAX_STEPS,
    allow_leftovers: bool = False,
) -> T:
    """Run `main` under the schedule of `seed` and return its value.

    Raises Stalled for a hang, an exception group of the errors that escaped from callbacks, and
    AssertionError for tasks left behind: those still waiting when `main` is done and no callback
    is ready.
    """
    loop = SeededLoop(seed, order=order, max_steps=max_steps)
    try:
        value = loop.run_until_complete(loop.create_task(_program(main, loop), name="main"))
        loop.run_ready()
        _check(loop, allow_leftovers=allow_leftovers)
        return value
    except BaseException as error:
        label = getattr(main, "__qualname__", type(main).__qualname__)
        how = "" if order == "permute" else f", order={order!r}"
        error.add_note(f"seed={seed} replay with run_seeded({label}, seed={seed}{how})")
        loop.sweep()
        for fault in loop.failures:
            error.add_note(f"failed on the loop: {_as_error(fault)!r}")
        raise
    finally:
        _run_down(loop)
        loop.close()


async def _program(main: Callable[[SeededRuntime], Awaitable[T]], loop: SeededLoop) -> T:
    # Called inside the loop, so that a `main` that is no coroutine function finds it running.
    return await main(SeededRuntime(loop))


def _check(loop: SeededLoop, *, allow_leftovers: bool) -> None:
    loop.sweep()
    faults = [_as_error(fault) for fault in loop.failures]
    if not allow_leftovers and (left := loop.pending_tasks()):
        names = "".join(f"\n  {describe_task(task)}" for task in left)
        faults.append(AssertionError(f"{len(left)} tasks left behind:{names}"))
    if not loop.failures and faults:
        raise faults[0]
    if faults:
        raise BaseExceptionGroup("failed on the loop", faults)


def _run_down(loop: SeededLoop) -> None:
    """Cancel the remaining tasks and run them to their end; failures here are not recorded."""
    recorded = len(loop.failures)
    for _ in range(RUN_DOWN_ROUNDS):
        loop.max_steps = loop.steps + RUN_DOWN_STEPS
        left = loop.pending_tasks()
        for task in left:
            task.cancel()
        with contextlib.suppress(Stalled):
            loop.run_until_complete(_ended(left))
            loop.run_until_complete(loop.shutdown_asyncgens())
            break
    loop.sweep()
    del loop.failures[recorded:]


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    # gather retrieves the exceptions, so that none is reported as never retrieved.
    await asyncio.gather(*tasks, return_exceptions=True)


def _as_error(fault: Fault) -> BaseException:
    error = fault.get("exception")
    return error if isinstance(error, BaseException) else AssertionError(fault.get("message"))
