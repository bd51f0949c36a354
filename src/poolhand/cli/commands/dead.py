"""`poolhand dead`: list, retry, export and drop dead letters, the jobs that failed for good."""

from __future__ import annotations

from poolhand.cli import options, screen
from poolhand.cli.commands.jobs import (
    act_on_all,
    act_on_ids,
    check_choice,
    look_at,
    show_job,
    show_page,
)
from poolhand.cli.commands.pools import of_pool
from poolhand.cli.session import Exit, fail, operate
from poolhand.contract import Filter
from poolhand.operate.actions import Operator
from poolhand.operate.bulk import AT_ONCE
from poolhand.operate.format import many

commands = options.Commands(
    no_args_is_help=True,
    help="The dead-letter queue: list, retry, export and drop jobs.",
)


@commands.add("list", "poolhand dead list --pool research")
def list_dead(
    which: Filter,
    limit: options.Limit = 50,
    after: options.After = None,
    *,
    source: options.Target,
) -> None:
    """List jobs that failed and were not retried, newest first."""
    show_page(
        operate(source, lambda o: of_pool(o, which.pool, o.dead(which, after, limit))), source
    )


@commands.add(
    "show", f"poolhand dead show {options.AN_ID}", f"poolhand dead show {options.AN_ID[:9]} --json"
)
def show(id: options.Id, *, source: options.Target) -> None:
    """Show one dead letter: error, attempts, arguments."""
    job, payload = operate(source, lambda operator: look_at(operator, id, payload=True))
    if not job.dead:
        raise fail(
            f"job {job.id!r} is not a dead letter, it is {job.status.value}; see `poolhand jobs "
            f"show {job.id}`",
            Exit.REFUSED,
        )
    show_job(job, payload, source)


@commands.add(
    "retry",
    f"poolhand dead retry {options.AN_ID}",
    "poolhand dead retry --all --pool research --name fetch",
)
def retry(
    ids: options.SomeIds = None,
    all: options.All = False,
    *,
    which: Filter,
    by: options.By,
    source: options.Target,
) -> None:
    """Retry dead letters, by id or all that match the filters."""
    check_choice(ids, all, which, "--all with or without filters")
    if ids:
        act_on_ids(ids, source, lambda o, whole: o.retry(whole, by))
    else:
        verbs = ("retrying", "retried")
        act_on_all(verbs, which, source, lambda o, report: o.retry_all(which, by, report))


@commands.add(
    "drop",
    f"poolhand dead drop {options.AN_ID}",
    "poolhand dead export --pool research > dead.jsonl",
    "poolhand dead drop --all --yes --pool research",
)
def drop(
    ids: options.SomeIds = None,
    all: options.All = False,
    yes: options.Yes = False,
    *,
    which: Filter,
    by: options.By,
    source: options.Target,
) -> None:
    """Delete dead letters that are not to be retried."""
    check_choice(ids, all, which, "--all --yes with or without filters", yes)
    if ids:
        act_on_ids(ids, source, lambda o, whole: o.drop(whole, by))
    else:
        verbs = ("dropping", "dropped")
        act_on_all(verbs, which, source, lambda o, report: o.drop_all(which, by, report))


@commands.add("export", "poolhand dead export --pool research > dead.jsonl")
def export(which: Filter, source: options.Source) -> None:
    """Write dead letters, with their calls, as JSON lines."""

    async def pages(operator: Operator) -> int:
        page = await of_pool(operator, which.pool, operator.export_dead(which, None, AT_ONCE))
        count = 0
        while True:
            for letter in page.letters:
                screen.json_line(letter)
            count += len(page.letters)
            if page.after is None:
                return count
            page = await operator.export_dead(which, page.after, AT_ONCE)

    screen.warn(f"{many(operate(source, pages), 'dead letter')} exported")
