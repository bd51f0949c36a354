"""Helpers of the pool tests: seeded runs, busy slots, parked submitters."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from poolhand import Pool, Ticket, list_pools, wait
from poolhand.observe.events import Event, Events
from poolhand.pool import registry
from poolhand.pool.submitter import Submitter
from poolhand.testing import SeededRuntime, run_seeded
from tests.extent import times

SEEDS = range(times(2, 5))
KEEPING = {"caplog", "monkeypatch", "page", "tmp_path"}
MAX_STEPS = 100_000  # ten times what the longest of these tests takes: a livelock is reported soon


Program = TypeVar("Program", bound=Callable[..., Awaitable[None]])


def seeded(program: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test of an async function whose first parameter is a SeededRuntime.

    It runs once per seed; further parameters are fixtures and parameters as in any test. All
    seeds are one case, unless a fixture keeps what a run leaves: then each seed is a case.
    """
    asked = [one.replace(kind=one.KEYWORD_ONLY) for one in _parameters(program)[1:]]
    apart = not KEEPING.isdisjoint(one.name for one in asked)
    seeds: Sequence[int] = program.__dict__.get("seeds", SEEDS)

    def test(seed: int | None = None, **given: Any) -> None:
        async def main(runtime: SeededRuntime) -> None:
            await program(runtime, **given)

        main.__qualname__ = program.__qualname__
        for one in seeds if seed is None else [seed]:
            try:
                run_seeded(main, one, max_steps=MAX_STEPS)
                assert list_pools() == []
            finally:
                # The names of a failed run must be free for the next tests.
                registry._live.clear()

    # Not functools.wraps: pytest would look through it and ask for a fixture named `runtime`.
    test.__name__, test.__qualname__ = program.__name__, program.__qualname__
    test.__module__, test.__doc__ = program.__module__, program.__doc__
    test.__dict__["pytestmark"] = program.__dict__.get("pytestmark", [])
    seed = [inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY)] if apart else []
    test.__dict__["__signature__"] = inspect.Signature([*asked, *seed])
    return pytest.mark.parametrize("seed", seeds)(test) if apart else test


def large(program: Program) -> Program:
    """Let a seeded test that takes long run with one seed in `make test`."""
    program.__dict__["seeds"] = SEEDS[: times(1, len(SEEDS))]
    return program


def _parameters(program: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(program).parameters.values())


class Journal:
    """Jobs that record that they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def note(self, name: str) -> str:
        self.ran.append(name)
        return name


async def until(condition: Callable[[], bool]) -> None:
    """Yield to other tasks until the condition holds; only if no time has to pass."""
    while not condition():  # noqa: ASYNC110 - there is no event for "anything changed"
        await asyncio.sleep(0)


@asynccontextmanager
async def occupied(pool: Pool, slots: int = 1) -> AsyncIterator[list[Ticket[Any]]]:
    """Keep slots busy inside a block, and check that they are free after it."""
    gate = asyncio.Event()
    # Their own key, so that they take no turn and no place from the keys under test.
    view = pool.with_options(key="occupied")
    tickets: list[Ticket[Any]] = [view.submit_nowait(gate.wait) for _ in range(slots)]
    try:
        yield tickets
    finally:
        gate.set()
        await wait(tickets)


async def park(
    pool: Pool, submitter: Submitter, fn: Callable[..., Any], *args: Any
) -> asyncio.Task[Ticket[Any]]:
    """Start a submit that has to wait for a place, and check that it waits."""
    before = pool.snapshot().blocked_submitters
    task = asyncio.create_task(submitter.submit(fn, *args))
    await until(lambda: pool.snapshot().blocked_submitters > before)
    return task


class Heard:
    """Records the events of a pool; `of` selects one kind."""

    def __init__(self) -> None:
        self.events = Events()
        self.all: list[Event] = []
        self.events.subscribe(self.all.append)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.all if type(event) is kind]
