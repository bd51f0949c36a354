"""`poolhand schedules`: see what runs by the clock."""

from __future__ import annotations

import typer

from poolhand.cli import options, screen
from poolhand.cli.door import operate

commands = typer.Typer(no_args_is_help=True, help="See what runs by the clock.")

COLUMNS = ("task", "when", "missed", "last", "next")


@commands.callback()
def _group() -> None:
    """Keep the word `list`: a group of one command would do without it."""


@commands.command("list", epilog=options.examples("poolhand schedules list --json"))
def list_schedules(
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """List schedules that a worker has seen: up to where they are done with, and what is next."""
    found = operate(store, app, lambda operator: operator.schedules())
    if json:
        screen.as_json(found)
        return
    rows = [(one.task, one.when, one.missed, one.last, one.next) for one in found]
    screen.table(COLUMNS, rows, ("missed", "last"))
    if not found:
        screen.aside("no schedules; a worker writes them down when it first sees them")
