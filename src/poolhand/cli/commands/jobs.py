"""`poolhand jobs`: list, show, cancel and retry jobs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, NoReturn

import msgspec
import typer
from msgspec.structs import replace

from poolhand.cli import options, screen
from poolhand.cli.commands.pools import known_pool, of_pool
from poolhand.cli.session import Exit, code_of_answers, fail, operate
from poolhand.contract import Filter
from poolhand.operate.actions import Operator
from poolhand.operate.bulk import OnProgress
from poolhand.operate.format import fault_text, many, text_of
from poolhand.operate.views import (
    ControlResult,
    JobsView,
    JobView,
    PayloadView,
    Summary,
    payload_lines,
)
from poolhand.rules.job import Status
from poolhand.rules.streams import JobEvent
from poolhand.runtime import Runtime

commands = options.Commands(no_args_is_help=True, help="List, show, cancel and retry jobs.")

COLUMNS = ("id", "pool", "name", "status", "tries", "key", "session", "tenant", "submitted", "note")
SPARE = ("submitted", "tries", "key", "tenant", "session", "name")
WATCH_EVERY = 1.0


@commands.add(
    "list",
    "poolhand jobs list --pool chat --status failed --status rejected",
    "poolhand jobs list --session s-1 --json",
    "poolhand jobs list --since 2h --user ada --watch",
)
def list_jobs(
    which: Filter,
    status: options.Statuses = None,
    limit: options.Limit = 50,
    after: options.After = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C.")
    ] = False,
    *,
    source: options.Target,
) -> None:
    """List jobs, newest first."""
    which = replace(which, statuses=tuple(status or ()))

    def look(operator: Operator) -> Awaitable[JobsView]:
        return of_pool(operator, which.pool, operator.jobs(which, after, limit))

    if watch:
        with suppress(KeyboardInterrupt):
            operate(source, lambda operator: _watch(operator, look, source))
    else:
        show_page(operate(source, look), source)
        if not source.json and which == Filter(pool=which.pool, statuses=(Status.QUEUED,)):
            _show_set_aside(operate(source, lambda operator: operator.set_aside(which.pool)))


def _show_set_aside(counts: Mapping[str, int]) -> None:
    """Write how many jobs wait for something other than a time or a slot, by its cause."""
    if counts:
        causes = ", ".join(f"{count} for {cause}" for cause, count in counts.items())
        screen.line(
            f"and {many(sum(counts.values()), 'job')} set aside: {screen.safe(causes)} "
            "(list them with --status scheduled)"
        )


async def _watch(
    operator: Operator, look: Callable[[Operator], Awaitable[JobsView]], source: options.Target
) -> None:
    """Show a page of jobs every second: in place on a terminal, one below the other elsewhere.

    With JSON each page is one line.
    """
    while True:
        page = await look(operator)
        if source.json:
            screen.json_line(page)
        else:
            screen.begin_again()
            screen.line(f"{text_of(Runtime().wall())}, every second until Ctrl-C")
            show_page(page, source)
            screen.line("")
        if screen.is_lost():
            return
        await asyncio.sleep(WATCH_EVERY)


@commands.add(
    "show",
    f"poolhand jobs show {options.AN_ID}",
    f"poolhand jobs show {options.AN_ID} --follow",
    f"poolhand jobs show {options.AN_ID[:9]} --payload",
)
def show(
    id: options.Id,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show its arguments and its result, too.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show its events until it has ended.")
    ] = False,
    after: Annotated[int, options.number("--after", "N", "Only events after this one.")] = 0,
    *,
    source: options.Target,
) -> None:
    """Show one job: its status, why it waits, its error."""
    job, read = operate(source, lambda operator: look_at(operator, id, payload))
    if follow:
        operate(source, lambda operator: _follow(operator, job.id, after, source.json))
    else:
        show_job(job, read, source)


async def look_at(operator: Operator, id: str, payload: bool) -> tuple[JobView, PayloadView | None]:
    """Return a job by its id or an id prefix, with its payload if requested."""
    whole = await operator.resolve(id)
    job = await operator.job(whole)
    if job is None:
        raise fail(f"there is no job {id!r}; see `poolhand jobs list`", Exit.NOT_FOUND)
    return job, await operator.payload(whole) if payload else None


def show_job(job: JobView, payload: PayloadView | None, source: options.Target) -> None:
    """Write a job and, if given, its payload."""
    added = {} if payload is None else {"payload": payload}
    if source.wrote({**msgspec.structs.asdict(job), **added}):
        return
    _show(job)
    if payload is not None:
        screen.line("")
        for line in payload_lines(payload, "--json shows all"):
            screen.line(line)


async def _follow(operator: Operator, id: str, after: int, json: bool) -> None:
    """Write the events of a job as they arrive, one per line."""
    async for event in operator.follow(id, after):
        if json:
            screen.json_line(event)
        else:
            screen.line(f"{event.number:>6}  {text_of(event.at)}  {_event_text(event)}")
            sys.stdout.flush()


def _event_text(event: JobEvent) -> str:
    data = event.data
    text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
    return f"{event.kind.value:<9}  {screen.safe(text)}"


@commands.add(
    "cancel",
    f"poolhand jobs cancel {options.AN_ID}",
    "poolhand jobs cancel --all --pool research --since 2h",
    "poolhand jobs cancel --all --yes",
)
def cancel(
    ids: options.SomeIds = None,
    all: options.All = False,
    yes: options.Yes = False,
    *,
    which: Filter,
    by: options.By,
    source: options.Target,
) -> None:
    """Cancel waiting jobs; ask running jobs to stop.

    With --all: all jobs that match the filters. On a terminal it asks for confirmation, in a script
    it needs --yes; without any filter it always needs --yes.
    """
    check_choice(ids, all, which, "--all with filters")
    if ids:
        act_on_ids(ids, source, lambda o, whole: o.cancel(whole, by))
        return
    if not yes:
        _confirm(which, source)
    verbs = ("cancelling", "cancelled or asked to stop")
    act_on_all(verbs, which, source, lambda o, report: o.cancel_all(which, by, report))


@commands.add("retry", f"poolhand jobs retry {options.AN_ID}")
def retry(ids: options.Ids, by: options.By, source: options.Target) -> None:
    """Retry failed jobs.

    Each becomes a new job that replaces the old one.
    """
    act_on_ids(ids, source, lambda o, whole: o.retry(whole, by))


def check_choice(
    ids: Sequence[str] | None, all: bool, which: Filter, allowed: str, yes: bool = True
) -> None:
    """Exit unless a command got either ids or --all, and filters only with --all."""
    if bool(ids) == all or (ids and which != options.ALL) or (all and not yes):
        raise fail(f"give the ids of jobs, or {allowed}", Exit.USAGE)


def act_on_ids(
    ids: Sequence[str],
    source: options.Target,
    act: Callable[[Operator, list[str]], Awaitable[Sequence[ControlResult]]],
) -> NoReturn:
    """Act on jobs by their ids or unique id prefixes; write the answers and exit."""

    async def work(operator: Operator) -> Sequence[ControlResult]:
        return await act(operator, [await operator.resolve(id) for id in ids])

    show_answers(operate(source, work), source)


def act_on_all(
    verbs: tuple[str, str],
    which: Filter,
    source: options.Target,
    act: Callable[[Operator, OnProgress], Awaitable[Summary]],
) -> None:
    """Act on all jobs that match a filter, with progress on stderr; write the summary."""
    with screen.progress(verbs[0], Runtime().monotonic) as report:
        summary = operate(source, lambda o: known_pool(o, which.pool, lambda: act(o, report)))
    show_summary(summary, source, verbs[1])


def _confirm(which: Filter, source: options.Source) -> None:
    """Write how many jobs would be cancelled, and ask for confirmation."""
    if which == options.ALL:
        raise fail("this would cancel every job of the store; give a filter or --yes", Exit.USAGE)
    counts = operate(source, lambda o: known_pool(o, which.pool, lambda: o.count_live(which)))
    parts = ", ".join(f"{count} {status}" for status, count in counts.items())
    if not counts:
        raise fail("no such jobs; nothing was done", Exit.NOT_FOUND)
    text = f"this would cancel {many(sum(counts.values()), 'job')} ({parts})"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise fail(f"{text}; give --yes to do it", Exit.USAGE)
    screen.to_stderr(text)
    if not typer.confirm("Cancel them?", err=True):
        raise fail("nothing was done", Exit.REFUSED)


def show_summary(summary: Summary, source: options.Target, done: str) -> None:
    """Write the result of an operation on many jobs; exit with the matching code."""
    if not source.wrote(summary):
        screen.line(f"{summary.done} {done}, {summary.not_done} not")
        for answer in summary.answers:
            screen.warn(f"{answer.id}: {answer.text}")
        if summary.not_done > len(summary.answers):
            screen.warn(f"and {summary.not_done - len(summary.answers)} more")
    if summary.not_done:
        raise typer.Exit(Exit.WRONG if summary.done else Exit.REFUSED)


def show_page(page: JobsView, source: options.Target) -> None:
    """Write a page of jobs."""
    if source.wrote(page):
        return
    screen.table(COLUMNS, [_row(job) for job in page.jobs], SPARE)
    screen.end_page(page.after, bool(page.jobs), "no such jobs")


def show_answers(answers: Sequence[ControlResult], source: options.Target) -> NoReturn:
    """Write the answers of an operation; exit with the matching code."""
    for answer in () if source.wrote(answers) else answers:
        text = f"{answer.id}: {answer.text}"
        if answer.done:
            screen.line(screen.safe(text))
        else:
            screen.warn(text)
    raise typer.Exit(code_of_answers(answers))


def _row(job: JobView) -> tuple[object, ...]:
    status = "submitter blocked" if job.submitter_blocked else job.status
    of = (job.key, job.session, job.tenant)
    return (job.id, job.pool, job.name, status, job.attempts, *of, job.submitted_at, job.note)


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
            ("error", fault_text(job.error)),
        ]
    )
    if job.error is not None and job.error.traceback:
        screen.line("")
        for line in job.error.traceback.splitlines():
            screen.line(f"    {screen.safe(line)}")


def _status(job: JobView) -> str:
    if job.submitter_blocked:
        return "submitter blocked"
    if job.dead:
        return f"{job.status} (dead letter: `poolhand jobs retry` runs it again)"
    stops = job.cancel_requested and job.status is Status.RUNNING
    return "running (asked to stop)" if stops else job.status


def _rejected(job: JobView) -> str | None:
    if job.rejection_reason is None:
        return None
    return f"{job.rejection_reason} (policy {job.rejection_policy})"
