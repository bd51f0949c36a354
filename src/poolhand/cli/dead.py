"""`poolhand dead`: dead letters, jobs that failed for good."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated

import typer

from poolhand.cli import exits, options, screen
from poolhand.cli.door import fail, operate
from poolhand.cli.jobs import show_answers, show_page
from poolhand.cli.pools import of_pool
from poolhand.operate.actions import Operator
from poolhand.operate.retry import AT_ONCE
from poolhand.operate.views import JobsView, Summary
from poolhand.runtime import Runtime

commands = typer.Typer(
    no_args_is_help=True, help="Dead letters: see them, run them again, export and drop them."
)


@commands.command("list", epilog=options.examples("poolhand dead list --pool research"))
def list_dead(
    pool: options.Pool = None,
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
    """List jobs that failed and were not run again, newest first."""
    which = options.chosen(pool, tenant, session, key, name)

    def look(operator: Operator) -> Awaitable[JobsView]:
        return of_pool(operator, pool, operator.dead(which, after, limit))

    show_page(operate(store, app, look), json)


@commands.command(
    epilog=options.examples(
        f"poolhand dead retry {options.AN_ID}",
        "poolhand dead retry --all --pool research --name fetch",
    )
)
def retry(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of jobs.")] = None,
    *,
    all: Annotated[bool, typer.Option("--all", help="All, or all that the filters mean.")] = False,
    pool: options.Pool = None,
    tenant: options.Tenant = None,
    session: options.Session = None,
    key: options.Key = None,
    name: options.Name = None,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Run dead letters again: those named, or all that are meant."""
    which = options.chosen(pool, tenant, session, key, name)
    filtered = which != options.chosen(None, None, None, None, None)
    if bool(ids) == all or (ids and filtered):
        raise fail("give the ids of jobs, or --all with or without filters", exits.USAGE)
    if ids:
        show_answers(operate(store, app, lambda operator: operator.retry(ids, by)), json)
    else:
        with screen.progress("retrying", Runtime().monotonic) as tell:
            summary = operate(store, app, lambda o: of_pool(o, pool, o.retry_all(which, by, tell)))
        _show(summary, json)


@commands.command(
    epilog=options.examples(
        f"poolhand dead drop {options.AN_ID}",
        "poolhand dead export --pool research > dead.jsonl",
        "poolhand dead drop --all --yes --pool research",
    )
)
def drop(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of jobs.")] = None,
    *,
    all: Annotated[bool, typer.Option("--all", help="All that the filters mean.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, all of them.")] = False,
    pool: options.Pool = None,
    tenant: options.Tenant = None,
    session: options.Session = None,
    key: options.Key = None,
    name: options.Name = None,
    by: options.By,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Forget dead letters that are not to run again."""
    which = options.chosen(pool, tenant, session, key, name)
    filtered = which != options.chosen(None, None, None, None, None)
    if bool(ids) == all or (ids and filtered) or (all and not yes):
        raise fail("give the ids of jobs, or --all --yes with or without filters", exits.USAGE)
    if ids:
        show_answers(operate(store, app, lambda operator: operator.drop(ids, by)), json)
    else:
        with screen.progress("dropping", Runtime().monotonic) as tell:
            summary = operate(store, app, lambda o: of_pool(o, pool, o.drop_all(which, by, tell)))
        _show(summary, json, "dropped")


@commands.command(epilog=options.examples("poolhand dead export --pool research > dead.jsonl"))
def export(
    pool: options.Pool = None,
    tenant: options.Tenant = None,
    session: options.Session = None,
    key: options.Key = None,
    name: options.Name = None,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Write dead letters, with their calls, as JSON lines."""
    which = options.chosen(pool, tenant, session, key, name)

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


def _show(summary: Summary, json: bool, done: str = "retried") -> None:
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
