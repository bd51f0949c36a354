"""`poolhand schedules`: list schedules; pause, resume and trigger them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from poolhand.cli import exits, options, screen
from poolhand.cli.session import fail, operate
from poolhand.operate.actions import Operator
from poolhand.operate.schedules import ScheduleView
from poolhand.rules.validation import nearest

T = TypeVar("T")

commands = typer.Typer(
    no_args_is_help=True, help="See what runs by the clock; pause, resume and trigger it."
)

COLUMNS = ("task", "when", "arguments", "state", "missed", "last", "next")
SPARE = ("missed", "last")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The task; where it has several schedules, the id that --json shows."
    ),
]


@commands.command("list", epilog=options.examples("poolhand schedules list --json"))
def list_schedules(
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """List schedules that a worker has seen, with what is next."""
    found = operate(store, app, lambda operator: operator.schedules())
    if json:
        screen.as_json(found)
        return
    # Leave out the note column if no schedule has a note.
    noted = any(one.note for one in found)
    columns = (*COLUMNS, "note") if noted else COLUMNS
    rows = [(*_row(one), one.note) if noted else _row(one) for one in found]
    screen.table(columns, rows, SPARE)
    if not found:
        screen.aside("no schedules; a worker writes them down when it first sees them")


@commands.command(epilog=options.examples("poolhand schedules pause reports.nightly"))
def pause(
    name: Name,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Let no moment of a schedule run, in any process, until it is resumed."""
    _show(_act(name, lambda one: one.pause_schedule(name, by), store, app), json)


@commands.command(epilog=options.examples("poolhand schedules resume reports.nightly"))
def resume(
    name: Name,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Let a paused schedule run again, from its next moment on."""
    _show(_act(name, lambda one: one.resume_schedule(name, by), store, app), json)


@commands.command(epilog=options.examples("poolhand schedules trigger reports.nightly"))
def trigger(
    name: Name,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Submit the task of a schedule once, now; write the id of its job.

    A paused schedule can be triggered, too; its moments stay as they are.
    """
    answer = _act(name, lambda one: one.trigger_schedule(name, by), store, app)
    if json:
        screen.as_json(answer)
    elif answer.done:
        screen.line(screen.safe(answer.new_id or ""))
    else:
        screen.aside(f"poolhand: {screen.safe(answer.id)}: {screen.safe(answer.text)}")
    raise typer.Exit(exits.of_answers([answer]))


def _act(
    name: str, act: Callable[[Operator], Awaitable[T | None]], store: str | None, app: str | None
) -> T:
    async def known(operator: Operator) -> T:
        done = await act(operator)
        if done is None:
            raise fail(await _missing(operator, name), exits.NOT_FOUND)
        return done

    return operate(store, app, known)


async def _missing(operator: Operator, name: str) -> str:
    views = await operator.schedules()
    near = nearest(name, [*(one.task for one in views), *(one.id for one in views)])
    hint = "see `poolhand schedules list`" if near is None else f"did you mean {near!r}?"
    return f"there is no schedule {name!r}; {hint}"


def _show(schedule: ScheduleView, json: bool) -> None:
    if json:
        screen.as_json(schedule)
    else:
        screen.table(COLUMNS, [_row(schedule)], SPARE)


def _row(one: ScheduleView) -> tuple[object, ...]:
    state = "paused" if one.paused else "active"
    return (one.task, one.when, one.arguments, state, one.missed, one.last, one.next)
