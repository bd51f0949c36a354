"""The entry point of the command line `poolhand`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from poolhand.cli import streams
from poolhand.cli.root import LazyGroup
from poolhand.rules.validation import is_writable

HELP = """See and steer durable jobs: what waits and why, what failed, what may run.

Every listing takes --json. Exit codes: 0 fine, 1 something is wrong, 2 wrong call, 3 not found,
4 refused, 5 the store cannot be used.
"""
EXAMPLES = """\b
Examples:
  $ poolhand work myproject.agents:app --tui
  $ poolhand jobs list --store sqlite:///agents.db
  $ poolhand help jobs list
"""
WRONG, USAGE = 1, 2  # as in `exits`, whose imports `--help` does not need

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


def run() -> None:
    """Run the command line of this process, and exit with the command's code."""
    streams.take_over()
    try:
        _check_words(sys.argv[1:])
        _check_folder()
        app(prog_name="poolhand")
    except SystemExit as end:
        if streams.output_is_lost() and not end.code:
            sys.exit(WRONG)
        raise


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
