"""`poolhand dead`: list, retry, export and drop dead letters, the jobs that failed for good."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import typer

from poolhand.cli import exits, options, screen
from poolhand.cli.commands.jobs import (
    look_at,
    retry_named,
    show_answers,
    show_job,
    show_page,
    show_summary,
    whole_ids,
)
from poolhand.cli.commands.pools import of_pool
from poolhand.cli.session import fail, operate
from poolhand.operate.actions import Operator
from poolhand.operate.retry import AT_ONCE
from poolhand.operate.views import ControlResult, JobsView
from poolhand.runtime import Runtime

commands = typer.Typer(
    no_args_is_help=True, help="Dead letters: see them, run them again, export and drop them."
)


@commands.command("list", epilog=options.examples("poolhand dead list --pool research"))
def list_dead(
    pool: options.Pool = None,
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
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """List jobs that failed and were not run again, newest first."""
    which = options.chosen(
        pool, tenant, session, key, name, user=user, since=since, until=until, id_prefix=id_prefix
    )

    def look(operator: Operator) -> Awaitable[JobsView]:
        return of_pool(operator, pool, operator.dead(which, after, limit))

    show_page(operate(store, app, look), json)


@commands.command(
    epilog=options.examples(
        f"poolhand dead show {options.AN_ID}", f"poolhand dead show {options.AN_ID[:9]} --json"
    )
)
def show(
    id: options.Id,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Show one dead letter: error, attempts, arguments."""
    job, payload = operate(store, app, lambda operator: look_at(operator, id, payload=True))
    if not job.dead:
        raise fail(
            f"job {job.id!r} is no dead letter, it is {job.status.value}; see `poolhand jobs show "
            f"{job.id}`",
            exits.REFUSED,
        )
    show_job(job, payload, json)


@commands.command(
    epilog=options.examples(
        f"poolhand dead retry {options.AN_ID}",
        "poolhand dead retry --all --pool research --name fetch",
    )
)
def retry(
    ids: options.SomeIds = None,
    *,
    all: options.All = False,
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
    """Run dead letters again: those named, or all that are meant."""
    which = options.chosen(
        pool, tenant, session, key, name, user=user, since=since, until=until, id_prefix=id_prefix
    )
    filtered = which != options.ALL
    if bool(ids) == all or (ids and filtered):
        raise fail("give the ids of jobs, or --all with or without filters", exits.USAGE)
    if ids:
        show_answers(operate(store, app, lambda o: retry_named(o, ids, by)), json)
    else:
        with screen.progress("retrying", Runtime().monotonic) as tell:
            summary = operate(store, app, lambda o: of_pool(o, pool, o.retry_all(which, by, tell)))
        show_summary(summary, json, "retried")


@commands.command(
    epilog=options.examples(
        f"poolhand dead drop {options.AN_ID}",
        "poolhand dead export --pool research > dead.jsonl",
        "poolhand dead drop --all --yes --pool research",
    )
)
def drop(
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
    """Forget dead letters that are not to run again."""
    which = options.chosen(
        pool, tenant, session, key, name, user=user, since=since, until=until, id_prefix=id_prefix
    )
    filtered = which != options.ALL
    if bool(ids) == all or (ids and filtered) or (all and not yes):
        raise fail("give the ids of jobs, or --all --yes with or without filters", exits.USAGE)
    if ids:
        show_answers(operate(store, app, lambda o: _drop(o, ids, by)), json)
    else:
        with screen.progress("dropping", Runtime().monotonic) as tell:
            summary = operate(store, app, lambda o: of_pool(o, pool, o.drop_all(which, by, tell)))
        show_summary(summary, json, "dropped")


async def _drop(operator: Operator, ids: Sequence[str], by: str) -> list[ControlResult]:
    return await operator.drop(await whole_ids(operator, ids), by)


@commands.command(epilog=options.examples("poolhand dead export --pool research > dead.jsonl"))
def export(
    pool: options.Pool = None,
    tenant: options.Tenant = None,
    user: options.User = None,
    session: options.Session = None,
    key: options.Key = None,
    name: options.Name = None,
    since: options.Since = None,
    until: options.Until = None,
    id_prefix: options.IdPrefix = None,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Write dead letters, with their calls, as JSON lines."""
    which = options.chosen(
        pool, tenant, session, key, name, user=user, since=since, until=until, id_prefix=id_prefix
    )

    async def pages(operator: Operator) -> int:
        page = await of_pool(operator, pool, operator.export_dead(which, None, AT_ONCE))
        count = 0
        while True:
            for letter in page.letters:
                screen.json_line(letter)
            count += len(page.letters)
            if page.after is None:
                return count
            page = await operator.export_dead(which, page.after, AT_ONCE)

    count = operate(store, app, pages)
    screen.aside(f"poolhand: {count} dead letter{'' if count == 1 else 's'} exported")
