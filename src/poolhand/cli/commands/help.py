"""`poolhand help`: the help of a command, by its words."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

EXAMPLES = """\b
Examples:
  $ poolhand help
  $ poolhand help jobs list
"""


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command("help", epilog=EXAMPLES)(show_help)


def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]...", help="The command, such as `jobs list`."),
    ] = None,
) -> None:
    """Show the help of a command.

    `poolhand help jobs list` is the same as `poolhand jobs list --help`.
    """
    found = context.find_root()
    for word in words or ():
        command = found.command
        if not isinstance(command, TyperGroup):
            found.fail(f"`{found.command_path}` has no commands below it; leave out {word!r}")
        _, inner, _ = command.resolve_command(found, [word])
        assert inner is not None
        found = type(found)(inner, info_name=word, parent=found)
    typer.echo(found.get_help())
