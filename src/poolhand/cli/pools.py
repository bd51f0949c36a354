"""`poolhand pools`: see pools, pause, resume and resize them."""

from __future__ import annotations

from typing import Annotated

import typer

from poolhand import config
from poolhand.cli import exits, options, screen
from poolhand.cli.door import fail, operate
from poolhand.operate.actions import Operator
from poolhand.operate.views import PoolView

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
    by: options.By = None,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Let no job of a pool start; those that run go on, new ones wait."""
    who = by or config.person()

    async def act(operator: Operator) -> PoolView:
        return await operator.pause(pool, who) or await _unknown(operator, pool)

    _show(operate(store, app, act), json)


@commands.command(epilog=options.examples("poolhand pools resume research"))
def resume(
    pool: Pool,
    by: options.By = None,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Let jobs of a pool start again."""
    who = by or config.person()

    async def act(operator: Operator) -> PoolView:
        return await operator.resume(pool, who) or await _unknown(operator, pool)

    _show(operate(store, app, act), json)


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
    declared: Annotated[
        bool, typer.Option("--declared", help="Go back to what the app declares.")
    ] = False,
    by: options.By = None,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Change how many jobs of a pool may run.

    The number wins over what the app declares, until --declared.
    """
    if (slots is None) != declared:
        raise fail("give the number of slots, or --declared", exits.USAGE)
    who = by or config.person()

    async def act(operator: Operator) -> PoolView:
        return await operator.resize(pool, slots, who) or await _unknown(operator, pool)

    _show(operate(store, app, act), json)


async def _unknown(operator: Operator, pool: str) -> PoolView:
    near = await operator.near(pool)
    hint = "see `poolhand pools list`" if near is None else f"did you mean {near!r}?"
    raise fail(f"there is no pool {pool!r}; {hint}", exits.NOT_FOUND)


def _show(pool: PoolView, json: bool) -> None:
    if json:
        screen.as_json(pool)
    else:
        screen.table(COLUMNS, [_row(pool)], SPARE)


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
