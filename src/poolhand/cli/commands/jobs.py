"""`poolhand jobs`: list, show, cancel and retry jobs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated, NoReturn

import msgspec
import typer
from msgspec.structs import replace

from poolhand.cli import exits, options, screen
from poolhand.cli.commands.pools import of_pool
from poolhand.cli.session import fail, operate
from poolhand.contract import Filter
from poolhand.operate.actions import Operator
from poolhand.operate.arguments import LAST
from poolhand.operate.doctor.finding import many
from poolhand.operate.payload import PayloadView, payload_lines
from poolhand.operate.views import ControlResult, JobsView, JobView, Summary
from poolhand.rules.job import Status
from poolhand.rules.streams import JobEvent
from poolhand.runtime import Runtime

commands = typer.Typer(no_args_is_help=True, help="See jobs, cancel them, run failed ones again.")

COLUMNS = ("id", "pool", "name", "status", "tries", "key", "session", "tenant", "submitted", "note")
SPARE = ("submitted", "tries", "key", "tenant", "session", "name")
WATCH_EVERY = 1.0


@commands.command(
    "list",
    epilog=options.examples(
        "poolhand jobs list --pool chat --status failed --status rejected",
        "poolhand jobs list --session s-1 --json",
        "poolhand jobs list --since 2h --user ada --watch",
    ),
)
def list_jobs(
    pool: options.Pool = None,
    status: options.Statuses = None,
    tenant: options.Tenant = None,
    user: options.User = None,
    session: options.Session = None,
    key: options.Key = None,
    name: options.Name = None,
    since: options.Since = None,
    until: options.Until = None,
    id_prefix: options.IdPrefix = None,
    limit: options.Limit = 50,
    after: options.After = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")
    ] = False,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """List jobs, newest first."""
    which = options.chosen(
        pool, tenant, session, key, name, user=user, since=since, until=until, id_prefix=id_prefix
    )
    which = replace(which, statuses=tuple(status or ()))

    def look(operator: Operator) -> Awaitable[JobsView]:
        return of_pool(operator, pool, operator.jobs(which, after, limit))

    if watch:
        with suppress(KeyboardInterrupt):
            operate(store, app, lambda operator: _watch(operator, look, json))
    else:
        show_page(operate(store, app, look), json)


async def _watch(
    operator: Operator, look: Callable[[Operator], Awaitable[JobsView]], json: bool
) -> None:
    """Show a page of jobs every second: in place on a terminal, one below the other elsewhere.

    With JSON each page is one line.
    """
    while True:
        page = await look(operator)
        if json:
            screen.json_line(page)
        else:
            screen.begin_again()
            screen.line(f"{screen.shown(Runtime().wall())}, every second until Ctrl-C")
            show_page(page, json)
            screen.line("")
        if screen.is_lost():
            return
        await asyncio.sleep(WATCH_EVERY)


@commands.command(
    epilog=options.examples(
        f"poolhand jobs show {options.AN_ID}",
        f"poolhand jobs show {options.AN_ID} --follow",
        f"poolhand jobs show {options.AN_ID[:9]} --payload",
    )
)
def show(
    id: options.Id,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show its arguments and its result, too.")
    ] = False,
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
    job, read = operate(store, app, lambda operator: look_at(operator, id, payload))
    if follow:
        operate(store, app, lambda operator: _follow(operator, job.id, after, json))
    else:
        show_job(job, read, json)


async def look_at(operator: Operator, id: str, payload: bool) -> tuple[JobView, PayloadView | None]:
    """Return a job by its id or an id prefix, with its payload if requested."""
    whole = await operator.resolve(id)
    job = await operator.job(whole)
    if job is None:
        raise fail(f"there is no job {id!r}; see `poolhand jobs list`", exits.NOT_FOUND)
    return job, await operator.payload(whole) if payload else None


def show_job(job: JobView, payload: PayloadView | None, json: bool) -> None:
    """Write a job and, if given, its payload."""
    if json:
        added = {} if payload is None else {"payload": payload}
        screen.as_json({**msgspec.structs.asdict(job), **added})
        return
    _show(job)
    if payload is not None:
        screen.line("")
        for line in payload_lines(payload, "--json shows all"):
            screen.line(line)


async def whole_ids(operator: Operator, ids: Sequence[str]) -> list[str]:
    """Expand id prefixes to full ids; raise for an ambiguous prefix."""
    return [await operator.resolve(id) for id in ids]


async def _follow(operator: Operator, id: str, after: int, json: bool) -> None:
    """Write the events of a job as they arrive, one per line."""
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


@commands.command(
    epilog=options.examples(
        f"poolhand jobs cancel {options.AN_ID}",
        "poolhand jobs cancel --all --pool research --since 2h",
        "poolhand jobs cancel --all --yes",
    )
)
def cancel(
    ids: options.SomeIds = None,
    *,
    all: options.All = False,
    yes: options.Yes = False,
    pool: options.Pool = None,
    tenant: options.Tenant = None,
    user: options.User = None,
    session: options.Session = None,
    key: options.Key = None,
    name: options.Name = None,
    since: options.Since = None,
    until: options.Until = None,
    id_prefix: options.IdPrefix = None,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """End jobs that wait; ask jobs that run to stop.

    With --all: all jobs that the filters mean. On a terminal it asks, in a script it needs --yes;
    without any filter it always needs --yes.
    """
    which = options.chosen(
        pool, tenant, session, key, name, user=user, since=since, until=until, id_prefix=id_prefix
    )
    if bool(ids) == all or (ids and which != options.ALL):
        raise fail("give the ids of jobs, or --all with filters", exits.USAGE)
    if ids:
        show_answers(operate(store, app, lambda o: _cancel(o, ids, by)), json)
    else:
        if not yes:
            _ask(which, pool, store, app)
        with screen.progress("cancelling", Runtime().monotonic) as tell:
            summary = operate(store, app, lambda o: of_pool(o, pool, o.cancel_all(which, by, tell)))
        show_summary(summary, json, "cancelled or asked to stop")


async def _cancel(operator: Operator, ids: Sequence[str], by: str) -> list[ControlResult]:
    return await operator.cancel(await whole_ids(operator, ids), by)


def _ask(which: Filter, pool: str | None, store: str | None, app: str | None) -> None:
    """Write how many jobs would be cancelled, and ask for confirmation."""
    if which == options.ALL:
        raise fail("this would cancel every job of the store; give a filter or --yes", exits.USAGE)
    counts = operate(store, app, lambda o: of_pool(o, pool, o.count_live(which)))
    parts = ", ".join(f"{count} {status}" for status, count in counts.items())
    if not counts:
        raise fail("no such jobs; nothing was done", exits.NOT_FOUND)
    total = sum(counts.values())
    text = f"this would cancel {many(total, 'job')} ({parts})"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise fail(f"{text}; give --yes to do it", exits.USAGE)
    screen.aside(text)
    if not typer.confirm("Cancel them?", err=True):
        raise fail("nothing was done", exits.REFUSED)


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
    show_answers(operate(store, app, lambda o: retry_named(o, ids, by)), json)


async def retry_named(operator: Operator, ids: Sequence[str], by: str) -> list[ControlResult]:
    """Retry failed jobs by their ids or id prefixes."""
    return await operator.retry(await whole_ids(operator, ids), by)


def show_summary(summary: Summary, json: bool, done: str) -> None:
    """Write the result of an operation on many jobs; exit with the matching code."""
    if json:
        screen.as_json(summary)
    else:
        screen.line(f"{summary.done} {done}, {summary.not_done} not")
        for answer in summary.answers:
            screen.aside(f"poolhand: {screen.safe(answer.id)}: {screen.safe(answer.text)}")
        if summary.not_done > len(summary.answers):
            screen.aside(f"poolhand: and {summary.not_done - len(summary.answers)} more")
    if summary.not_done:
        raise typer.Exit(exits.WRONG if summary.done else exits.REFUSED)


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


def show_answers(answers: Sequence[ControlResult], json: bool) -> NoReturn:
    """Write the answers of an operation; exit with the matching code."""
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
