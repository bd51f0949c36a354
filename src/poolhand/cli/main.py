"""The entry point of the command line `poolhand`: its root command, and its streams."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_group

from poolhand.rules.validation import is_writable, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator


class SafeStream(TextIOWrapper):
    """A text stream that keeps its first write error as `lost` and drops the rest."""

    lost: OSError | None = None

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        self.lost = self.lost or error
        # Send the rest of the buffer to /dev/null, or Python reports an error at exit.
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def take_over() -> None:
    """Replace stdout and stderr by safe streams."""
    sys.stdout, sys.stderr = _stream(sys.stdout), _stream(sys.stderr)


def output_is_lost() -> bool:
    """Flush stdout, and return whether some output was lost; report that on stderr.

    A reader that has closed the pipe, as `head` does, is not reported.
    """
    sys.stdout.flush()
    lost = sys.stdout.lost if isinstance(sys.stdout, SafeStream) else None
    if lost is not None and not isinstance(lost, BrokenPipeError):
        sys.stderr.write(f"poolhand: the output could not be written: {lost.strerror}\n")
    return lost is not None


def _stream(file: TextIO | None) -> TextIO:
    if file is None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        return open(nowhere, "w", encoding="utf-8", closefd=False)
    if not isinstance(file, TextIOWrapper):
        return file
    return SafeStream(
        file.buffer,
        file.encoding,
        # A character that the terminal cannot show is written as its number.
        "backslashreplace",
        line_buffering=file.line_buffering,
        write_through=file.write_through,
    )


class CommandModule(NamedTuple):
    """The module of `poolhand.cli.commands` that defines a command, and its one-line help."""

    module: str
    help: str


COMMANDS = {
    "work": CommandModule("work", "Run the jobs of an app in worker processes."),
    "top": CommandModule("top", "Show farms, workers, jobs and pools, live."),
    "jobs": CommandModule("jobs", "List, show, cancel and retry jobs."),
    "dead": CommandModule("dead", "The dead-letter queue: list, retry, export and drop jobs."),
    "pools": CommandModule("pools", "List, pause, resume and resize pools."),
    "sessions": CommandModule(
        "sessions", "List, show and erase sessions, their state and their turns."
    ),
    "schedules": CommandModule("schedules", "List, pause, resume and trigger schedules."),
    "workers": CommandModule("workers", "List workers; drain, restart and rescale their farms."),
    "audit": CommandModule("upkeep", "Show the audit log: what happened, and who did it."),
    "doctor": CommandModule("upkeep", "Check the store and its workers; say how to fix problems."),
    "migrate": CommandModule("upkeep", "Migrate a store to the newest schema, or create it."),
    "config": CommandModule("upkeep", "Show all settings and where they come from."),
    "version": CommandModule("upkeep", "Show the versions of poolhand and Python."),
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
    """All commands by name, loaded lazily; commands added to the Typer app work as usual."""

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
    """Import a command and its dependencies."""
    module = import_module(f"poolhand.cli.commands.{COMMANDS[name].module}")
    made = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    made.add_typer(module.commands, name=name)
    group: Any = get_group(made).commands[name]
    # A module holds the commands below its name, or commands of the root.
    return group.commands.get(name, group)


HELP = """Inspect and control durable jobs: what waits and why, what failed, what may run.

Every listing takes --json. Exit codes: 0 success, 1 a problem was found, 2 wrong usage,
3 not found, 4 refused, 5 the store cannot be used.
"""
EXAMPLES = """\b
Examples:
  $ poolhand work myproject.agents:app --tui
  $ poolhand jobs list --store sqlite:///agents.db
  $ poolhand help jobs list
"""
WRONG, USAGE = 1, 2  # as in `session.Exit`, whose imports `--help` does not need

app = typer.Typer(
    name="poolhand",
    cls=LazyGroup,
    help=HELP,
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"poolhand {version('poolhand')}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_show_version,
            help="Show the version of poolhand and exit.",
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command("help", epilog="\b\nExamples:\n  $ poolhand help\n  $ poolhand help jobs list")
def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="The command, such as `jobs list`."),
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


def run() -> None:
    """Run the command line of this process, and exit with the command's code."""
    take_over()
    try:
        _check_words(sys.argv[1:])
        _check_folder()
        app(prog_name="poolhand")
    except SystemExit as end:
        if output_is_lost() and not end.code:
            sys.exit(WRONG)
        raise
    finally:
        # The process ends: its last collections need not look through what was imported.
        gc.freeze()


def _check_folder() -> None:
    """Exit if the current folder has been deleted: no relative path works there."""
    try:
        os.getcwd()
    except OSError as error:
        sys.stderr.write(
            f"poolhand: the current folder cannot be used: {error.strerror}; "
            "go to another one with `cd`\n"
        )
        sys.exit(USAGE)


def _check_words(words: list[str]) -> None:
    for word in words:
        if not is_writable(word):
            sys.stderr.write(f"poolhand: argument {word!r} is not allowed; it must be UTF-8\n")
            sys.exit(USAGE)
