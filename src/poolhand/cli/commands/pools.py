"""`poolhand pools`: list pools; pause, resume and resize them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from poolhand.cli import options, screen
from poolhand.cli.session import Exit, fail, missing, operate
from poolhand.operate.actions import Operator
from poolhand.operate.views import PoolView

T = TypeVar("T")

commands = options.Commands(no_args_is_help=True, help="List, pause, resume and resize pools.")

Pool = Annotated[str, typer.Argument(metavar="POOL", help="The name of a pool.")]

COLUMNS = (
    "pool", "state", "slots", "running", "queued", "blocked", "scheduled", "submitters", "strategy",
    "policy",
)  # fmt: skip
SPARE = ("strategy", "submitters", "scheduled", "blocked")


@commands.add("list", "poolhand pools list --json")
def list_pools(source: options.Target) -> None:
    """List pools: their settings, and how many jobs run and wait."""
    pools = operate(source, lambda operator: operator.pools())
    if source.wrote(pools):
        return
    screen.table(COLUMNS, [_row(pool) for pool in pools], SPARE)
    if not pools:
        screen.to_stderr(
            "no pools yet; they appear when an app first submits a job or starts a worker"
        )


@commands.add("pause", "poolhand pools pause research")
def pause(pool: Pool, by: options.By, source: options.Target) -> None:
    """Pause a pool: none of its jobs starts, running ones continue."""
    _act(pool, lambda operator: operator.pause(pool, by), source)


@commands.add("resume", "poolhand pools resume research")
def resume(pool: Pool, by: options.By, source: options.Target) -> None:
    """Resume a pool: its jobs start again."""
    _act(pool, lambda operator: operator.resume(pool, by), source)


@commands.add(
    "resize", "poolhand pools resize research 20", "poolhand pools resize research --declared"
)
def resize(
    pool: Pool,
    slots: Annotated[
        int | None,
        typer.Argument(metavar="SLOTS", min=1, help="The concurrency: jobs that run at once."),
    ] = None,
    declared: Annotated[
        bool, typer.Option("--declared", help="Restore the number that the app declares.")
    ] = False,
    *,
    by: options.By,
    source: options.Target,
) -> None:
    """Set the concurrency of a pool: how many jobs run at once.

    The number overrides what the app declares, until --declared.
    """
    if (slots is None) != declared:
        raise fail("give the number of slots, or --declared", Exit.USAGE)
    _act(pool, lambda operator: operator.resize(pool, slots, by), source)


def _act(
    name: str,
    act: Callable[[Operator], Awaitable[PoolView | None]],
    source: options.Target,
) -> None:
    """Act on a pool, and show its new state."""

    async def known(operator: Operator) -> PoolView:
        pool = await act(operator)
        if pool is None:
            raise fail(missing("pool", name, await _names(operator)), Exit.NOT_FOUND)
        return pool

    found = operate(source, known)
    if not source.wrote(found):
        screen.table(COLUMNS, [_row(found)], SPARE)


async def known_pool(operator: Operator, pool: str | None, work: Callable[[], Awaitable[T]]) -> T:
    """Make a change to jobs of a pool; fail if no pool has that name."""
    if pool is not None and pool not in (names := await _names(operator)):
        raise fail(missing("pool", pool, names), Exit.NOT_FOUND)
    return await work()


async def of_pool(operator: Operator, pool: str | None, work: Awaitable[T]) -> T:
    """Await `work`; warn first if no pool has that name, as it may be a typo."""
    if pool is not None and pool not in (names := await _names(operator)):
        screen.warn(missing("pool", pool, names))
    return await work


async def _names(operator: Operator) -> list[str]:
    return [pool.name for pool in await operator.pools()]


def _row(pool: PoolView) -> tuple[object, ...]:
    state = "paused" if pool.paused else "open"
    counts = (pool.running, pool.queued, pool.blocked, pool.scheduled, pool.blocked_submitters)
    return (pool.name, state, _slots(pool), *counts, pool.strategy, pool.policy)


def _slots(pool: PoolView) -> str:
    in_force = "no cap" if pool.slots is None else str(pool.slots)
    if not pool.resized:
        return in_force
    declared = "no cap" if pool.declared_slots is None else pool.declared_slots
    return f"{in_force} (declared: {declared})"
