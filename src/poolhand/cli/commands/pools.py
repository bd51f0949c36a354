"""`poolhand pools`: list pools; pause, resume and resize them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, NoReturn, TypeVar

import typer

from poolhand.cli import exits, options, screen
from poolhand.cli.session import fail, operate
from poolhand.operate.actions import Operator
from poolhand.operate.views import PoolView

T = TypeVar("T")

commands = typer.Typer(no_args_is_help=True, help="See pools, pause, resume and resize them.")

Pool = Annotated[str, typer.Argument(metavar="POOL", help="The name of a pool.")]

COLUMNS = (
    "pool", "state", "slots", "running", "queued", "blocked", "scheduled", "parked", "strategy",
    "policy",
)  # fmt: skip
SPARE = ("strategy", "parked", "scheduled", "blocked")


@commands.command("list", epilog=options.examples("poolhand pools list --json"))
def list_pools(
    json: options.Json = False, store: options.Store = None, app: options.App = None
) -> None:
    """List pools: their rules, and how many jobs are where."""
    pools = operate(store, app, lambda operator: operator.pools())
    if json:
        screen.as_json(pools)
        return
    screen.table(COLUMNS, [_row(pool) for pool in pools], SPARE)
    if not pools:
        screen.aside("no pools yet: the first job makes one")


@commands.command(epilog=options.examples("poolhand pools pause research"))
def pause(
    pool: Pool,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Let no job of a pool start; those that run go on, new ones wait."""
    _act(pool, lambda operator: operator.pause(pool, by), json, store, app)


@commands.command(epilog=options.examples("poolhand pools resume research"))
def resume(
    pool: Pool,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Let jobs of a pool start again."""
    _act(pool, lambda operator: operator.resume(pool, by), json, store, app)


@commands.command(
    epilog=options.examples(
        "poolhand pools resize research 20", "poolhand pools resize research --declared"
    )
)
def resize(
    pool: Pool,
    slots: Annotated[
        int | None, typer.Argument(metavar="SLOTS", min=1, help="How many jobs may run at once.")
    ] = None,
    *,
    declared: Annotated[
        bool, typer.Option("--declared", help="Go back to what the app declares.")
    ] = False,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Change how many jobs of a pool may run.

    The number wins over what the app declares, until --declared.
    """
    if (slots is None) != declared:
        raise fail("give the number of slots, or --declared", exits.USAGE)
    _act(pool, lambda operator: operator.resize(pool, slots, by), json, store, app)


def _act(
    name: str,
    act: Callable[[Operator], Awaitable[PoolView | None]],
    json: bool,
    store: str | None,
    app: str | None,
) -> None:
    """Act on a pool, and show its new state."""

    async def known(operator: Operator) -> PoolView:
        return await act(operator) or await _unknown(operator, name)

    pool = operate(store, app, known)
    if json:
        screen.as_json(pool)
    else:
        screen.table(COLUMNS, [_row(pool)], SPARE)


async def _unknown(operator: Operator, pool: str) -> NoReturn:
    raise fail(await _missing(operator, pool), exits.NOT_FOUND)


async def of_pool(operator: Operator, pool: str | None, work: Awaitable[T]) -> T:
    """Await `work`; warn first if no pool has that name, as it may be a typo."""
    if pool is not None and await operator.near(pool) != pool:
        screen.aside(f"poolhand: {screen.safe(await _missing(operator, pool))}")
    return await work


async def _missing(operator: Operator, pool: str) -> str:
    near = await operator.near(pool)
    hint = "see `poolhand pools list`" if near is None else f"did you mean {near!r}?"
    return f"there is no pool {pool!r}; {hint}"


def _row(pool: PoolView) -> tuple[object, ...]:
    return (
        pool.name,
        "paused" if pool.paused else "open",
        _slots(pool),
        pool.running,
        pool.queued,
        pool.blocked,
        pool.scheduled,
        pool.parked,
        pool.strategy,
        pool.policy,
    )


def _slots(pool: PoolView) -> str:
    in_force = "no cap" if pool.slots is None else str(pool.slots)
    if not pool.resized:
        return in_force
    declared = "no cap" if pool.declared_slots is None else pool.declared_slots
    return f"{in_force} (declared: {declared})"
