"""`poolhand jobs`: see jobs, cancel them, run failed ones again."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Sequence
from typing import Annotated, NoReturn

import msgspec
import typer

from poolhand.cli import exits, options, screen
from poolhand.cli.door import fail, operate
from poolhand.cli.pools import of_pool
from poolhand.operate.actions import LAST, Operator
from poolhand.operate.views import Answer, JobsView, JobView
from poolhand.rules.job import Status
from poolhand.rules.streams import JobEvent

commands = typer.Typer(no_args_is_help=True, help="See jobs, cancel them, run failed ones again.")

COLUMNS = ("id", "pool", "name", "status", "tries", "key", "session", "tenant", "submitted", "note")
SPARE = ("submitted", "tries", "key", "tenant", "session", "name")


@commands.command(
    "list",
    epilog=options.examples(
        "poolhand jobs list --pool chat --status failed --status rejected",
        "poolhand jobs list --session s-1 --json",
    ),
)
def list_jobs(
    pool: options.Pool = None,
    status: options.Statuses = None,
    tenant: options.Tenant = None,
    session: options.Session = None,
    key: options.Key = None,
    name: options.Name = None,
    limit: options.Limit = 50,
    after: options.After = None,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """List jobs, newest first."""
    which = options.chosen(pool, tenant, session, key, name, status)

    def look(operator: Operator) -> Awaitable[JobsView]:
        return of_pool(operator, pool, operator.jobs(which, after, limit))

    show_page(operate(store, app, look), json)


@commands.command(
    epilog=options.examples(
        f"poolhand jobs show {options.AN_ID}", f"poolhand jobs show {options.AN_ID} --follow"
    )
)
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of a job.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Show what it tells, until it is over.")
    ] = False,
    after: Annotated[
        int,
        typer.Option("--after", min=0, max=LAST, metavar="N", help="From behind this event on."),
    ] = 0,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Show one job: where it is, why it waits, what it raised."""
    job = operate(store, app, lambda operator: operator.job(id))
    if job is None:
        raise fail(f"there is no job {id!r}; see `poolhand jobs list`", exits.NOT_FOUND)
    if follow:
        operate(store, app, lambda operator: _follow(operator, id, after, json))
    elif json:
        screen.as_json(job)
    else:
        _show(job)


async def _follow(operator: Operator, id: str, after: int, json: bool) -> None:
    """Write what a job tells, line by line, as it comes."""
    async for event in operator.follow(id, after):
        if json:
            screen.json_line(event)
        else:
            screen.line(f"{event.number:>6}  {screen.shown(event.at)}  {_told(event)}")
            sys.stdout.flush()


def _told(event: JobEvent) -> str:
    data = event.data
    text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
    return f"{event.kind.value:<9}  {screen.safe(text)}"


@commands.command(epilog=options.examples(f"poolhand jobs cancel {options.AN_ID}"))
def cancel(
    ids: options.Ids,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """End jobs that wait; ask jobs that run to stop."""
    show_answers(operate(store, app, lambda operator: operator.cancel(ids, by)), json)


@commands.command(epilog=options.examples(f"poolhand jobs retry {options.AN_ID}"))
def retry(
    ids: options.Ids,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Run failed jobs again.

    Each becomes a new job that takes the place of the old one.
    """
    show_answers(operate(store, app, lambda operator: operator.retry(ids, by)), json)


def show_page(page: JobsView, json: bool) -> None:
    """Write a page of jobs."""
    if json:
        screen.as_json(page)
        return
    screen.table(COLUMNS, [_row(job) for job in page.jobs], SPARE)
    if page.after is not None:
        screen.aside(f"there are more: --after {page.after}")
    elif not page.jobs:
        screen.aside("no such jobs")


def show_answers(answers: Sequence[Answer], json: bool) -> NoReturn:
    """Write what came of an act; end with the exit code it deserves."""
    if json:
        screen.as_json(answers)
    else:
        for answer in answers:
            text = f"{screen.safe(answer.id)}: {screen.safe(answer.text)}"
            if answer.done:
                screen.line(text)
            else:
                screen.aside(f"poolhand: {text}")
    raise typer.Exit(exits.of_answers(answers))


def _row(job: JobView) -> tuple[object, ...]:
    return (
        job.id,
        job.pool,
        job.name,
        "parked" if job.parked else job.status,
        job.attempts,
        job.key,
        job.session,
        job.tenant,
        job.submitted_at,
        job.note,
    )


def _show(job: JobView) -> None:
    screen.facts(
        [
            ("id", job.id),
            ("pool", job.pool),
            ("name", job.name or None),
            ("status", _status(job)),
            ("why", None if job.status.terminal else job.why),
            ("attempts", job.attempts),
            ("crashes", job.crashes or None),
            ("priority", job.priority),
            ("key", job.key or None),
            ("session", job.session),
            ("tenant", job.tenant),
            ("user", job.user),
            ("idempotency key", job.idempotency_key),
            ("submitted by", job.submitted_by),
            ("submitted at", job.submitted_at),
            ("run at", job.run_at),
            ("expires at", job.expires_at),
            ("started at", job.started_at),
            ("finished at", job.finished_at),
            ("waited", job.waited),
            ("ran", job.ran),
            ("result", None if job.result_bytes is None else f"{job.result_bytes} bytes"),
            ("rejected", _rejected(job)),
            ("error", None if job.error is None else f"{job.error.type}: {job.error.message}"),
        ]
    )
    if job.error is not None and job.error.traceback:
        screen.line("")
        for line in job.error.traceback.splitlines():
            screen.line(f"    {screen.safe(line)}")


def _status(job: JobView) -> str:
    if job.parked:
        return "parked"
    if job.dead:
        return f"{job.status} (dead letter: `poolhand jobs retry` runs it again)"
    return "running (asked to stop)" if job.cancel_wished and _runs(job) else job.status


def _runs(job: JobView) -> bool:
    return job.status is Status.RUNNING


def _rejected(job: JobView) -> str | None:
    if job.rejection_reason is None:
        return None
    return f"{job.rejection_reason} (policy {job.rejection_policy})"
