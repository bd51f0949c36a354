"""`poolhand`: the command line, put together."""

from __future__ import annotations

import sys

import typer

from poolhand.cli import (
    dead,
    exits,
    jobs,
    pools,
    schedules,
    sessions,
    streams,
    top,
    upkeep,
    work,
    workers,
)
from poolhand.rules.checks import is_writable

HELP = """See and steer durable jobs: what waits and why, what failed, what may run.

Every listing takes --json. Exit codes: 0 fine, 1 something is wrong, 2 wrong call, 3 not found,
4 refused, 5 the store cannot be used.
"""

app = typer.Typer(
    name="poolhand",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.add_typer(jobs.commands, name="jobs")
app.add_typer(dead.commands, name="dead")
app.add_typer(pools.commands, name="pools")
app.add_typer(sessions.commands, name="sessions")
app.add_typer(schedules.commands, name="schedules")
app.add_typer(workers.commands, name="workers")
upkeep.add_to(app)
work.add_to(app)
top.add_to(app)


def run() -> None:
    """Run the command line of this process, and end it with the code that the command deserves."""
    streams.take_over()
    try:
        _check_words(sys.argv[1:])
        app(prog_name="poolhand")
    except SystemExit as end:
        if streams.output_is_lost() and not end.code:
            sys.exit(exits.WRONG)
        raise


def _check_words(words: list[str]) -> None:
    for word in words:
        if not is_writable(word):
            sys.stderr.write(f"poolhand: argument {word!r} is not allowed; it must be UTF-8\n")
            sys.exit(exits.USAGE)
