"""`poolhand`: the command line, put together."""

from __future__ import annotations

import sys
from io import TextIOWrapper

import typer

from poolhand.cli import dead, jobs, pools, upkeep

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
)
app.add_typer(jobs.commands, name="jobs")
app.add_typer(dead.commands, name="dead")
app.add_typer(pools.commands, name="pools")
upkeep.add_to(app)


def run() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its number, not an error.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="poolhand")
