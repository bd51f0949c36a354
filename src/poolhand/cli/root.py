"""The root of the commands: each command is imported when it is run, not to list its name.

`poolhand --help` and a typo need names and one line of help. What a command imports (the operator,
a store's driver, the live view) costs more than all the rest of such a call.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_group

from poolhand.rules.validation import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator


class CommandModule(NamedTuple):
    """The module of `poolhand.cli` that holds a command, and the line that says what it does."""

    module: str
    help: str


COMMANDS = {
    "work": CommandModule("work", "Run the jobs of an app in worker processes."),
    "top": CommandModule("top", "Show farms, workers, jobs and pools, live."),
    "jobs": CommandModule("jobs", "See jobs, cancel them, run failed ones again."),
    "dead": CommandModule("dead", "Dead letters: see them, run them again, export and drop them."),
    "pools": CommandModule("pools", "See pools, pause, resume and resize them."),
    "sessions": CommandModule("sessions", "See conversations, their state and their turns."),
    "schedules": CommandModule(
        "schedules", "See what runs by the clock; pause, resume and trigger it."
    ),
    "workers": CommandModule("workers", "See who runs jobs, and steer their farms."),
    "audit": CommandModule("upkeep", "List what happened, and who did it."),
    "doctor": CommandModule("upkeep", "Check everything, and say how to fix what is wrong."),
    "migrate": CommandModule("upkeep", "Bring a store to the newest schema, or make one."),
    "config": CommandModule("upkeep", "Show all settings and where they came from."),
    "version": CommandModule("upkeep", "Show the versions of poolhand and Python."),
    "help": CommandModule("help", "Show the help of a command."),
}
"""In the order of the help; a test compares each line with the command's own help."""

ELSEWHERE = {
    "cancel": "poolhand jobs cancel",
    "retry": "poolhand jobs retry",
    "pause": "poolhand pools pause",
    "resume": "poolhand pools resume",
    "resize": "poolhand pools resize",
    "drain": "poolhand workers drain",
    "restart": "poolhand workers restart",
    "trigger": "poolhand schedules trigger",
    "list": "poolhand jobs list",
    "show": "poolhand jobs show",
    "run": "poolhand work",
    "start": "poolhand work",
    "status": "poolhand top --inline",
}
"""Verbs that stand below a noun here, and at the top in other programs."""


class LazyGroup(TyperGroup):
    """All commands by name; those added to the Typer app itself work as everywhere."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *(name for name in self.commands if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = load(cmd_name)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lines()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}. {self._hint(ctx, name)}")
        return super().resolve_command(ctx, args)

    def _hint(self, ctx: Any, name: str) -> str:
        if name.casefold() in ELSEWHERE:
            return f"Did you mean `{ELSEWHERE[name.casefold()]}`?"
        near = nearest(name, self.list_commands(ctx))
        return "See `poolhand --help`." if near is None else f"Did you mean {near!r}?"

    def _lines(self) -> Iterator[tuple[str, str]]:
        for name in self.list_commands(None):
            if name in COMMANDS:
                yield name, COMMANDS[name].help
            elif not self.commands[name].hidden:
                yield name, self.commands[name].get_short_help_str(limit=60)


def load(name: str) -> Any:
    """Import a command, with what it needs."""
    folder = "poolhand.cli" if name == "help" else "poolhand.cli.commands"
    module = import_module(f"{folder}.{COMMANDS[name].module}")
    made = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    if hasattr(module, "commands"):
        made.add_typer(module.commands, name=name)
    else:
        module.add_to(made)
    return get_group(made).commands[name]
