"""`poolhand schedules`: list schedules; pause, resume and trigger them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from poolhand.cli import options, screen
from poolhand.cli.session import Exit, code_of_answers, fail, missing, operate
from poolhand.operate.actions import Operator
from poolhand.operate.schedules import ScheduleView

T = TypeVar("T")

commands = options.Commands(no_args_is_help=True, help="List, pause, resume and trigger schedules.")

COLUMNS = ("task", "when", "arguments", "state", "missed", "last", "next")
SPARE = ("missed", "last")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The task; if it has several schedules, the id that --json shows."
    ),
]


@commands.add("list", "poolhand schedules list --json")
def list_schedules(source: options.Target) -> None:
    """List schedules, with their next moments."""
    found = operate(source, lambda operator: operator.schedules())
    if source.wrote(found):
        return
    # Leave out the note column if no schedule has a note.
    noted = any(one.note for one in found)
    columns = (*COLUMNS, "note") if noted else COLUMNS
    rows = [(*_row(one), one.note) if noted else _row(one) for one in found]
    screen.table(columns, rows, SPARE)
    if not found:
        screen.to_stderr("no schedules; a worker registers those of its app when it starts")


@commands.add("pause", "poolhand schedules pause reports.nightly")
def pause(name: Name, by: options.By, source: options.Target) -> None:
    """Pause a schedule in all processes until it is resumed."""
    _show(_act(name, lambda one: one.pause_schedule(name, by), source), source)


@commands.add("resume", "poolhand schedules resume reports.nightly")
def resume(name: Name, by: options.By, source: options.Target) -> None:
    """Resume a paused schedule, from its next moment on."""
    _show(_act(name, lambda one: one.resume_schedule(name, by), source), source)


@commands.add("trigger", "poolhand schedules trigger reports.nightly")
def trigger(name: Name, by: options.By, source: options.Target) -> None:
    """Submit the task of a schedule once, now; print the id of its job.

    This works for a paused schedule, too, and does not change the schedule's moments.
    """
    answer = _act(name, lambda one: one.trigger_schedule(name, by), source)
    if source.wrote(answer):
        pass
    elif answer.done:
        screen.line(screen.safe(answer.new_id or ""))
    else:
        screen.warn(f"{answer.id}: {answer.text}")
    raise typer.Exit(code_of_answers([answer]))


def _act(name: str, act: Callable[[Operator], Awaitable[T | None]], source: options.Source) -> T:
    async def known(operator: Operator) -> T:
        done = await act(operator)
        if done is None:
            views = await operator.schedules()
            names = [*(one.task for one in views), *(one.id for one in views)]
            raise fail(missing("schedule", name, names), Exit.NOT_FOUND)
        return done

    return operate(source, known)


def _show(schedule: ScheduleView, source: options.Target) -> None:
    if not source.wrote(schedule):
        screen.table(COLUMNS, [_row(schedule)], SPARE)


def _row(one: ScheduleView) -> tuple[object, ...]:
    state = "paused" if one.paused else "active"
    return (one.task, one.when, one.arguments, state, one.missed, one.last, one.next)
