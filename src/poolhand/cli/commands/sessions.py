"""`poolhand sessions`: list and show sessions, their state and their turns; erase them."""

from __future__ import annotations

import shlex
from typing import Annotated, NoReturn

import msgspec
import typer

from poolhand.cli import options, screen
from poolhand.cli.session import Exit, fail, operate
from poolhand.operate.format import many

commands = options.Commands(
    no_args_is_help=True, help="List, show and erase sessions, their state and their turns."
)

COLUMNS = ("id", "tenant", "user", "revision", "schema", "bytes", "turn")
TURNS = ("at", "job", "try", "status", "took", "worker", "message", "result")
SPARE = ("worker", "took", "try")
MOST = 3  # tenants listed in an error

Id = Annotated[str, typer.Argument(metavar="SESSION", help="The name of a session.")]
Whose = Annotated[str | None, options.text("--tenant", "TENANT", "The tenant of the session.")]
Behind = Annotated[str, options.text("--after", "CURSOR", "Continue after the previous page.")]


@commands.add("list", "poolhand sessions list --tenant acme --limit 20")
def list_sessions(
    tenant: options.Tenant = None,
    limit: options.Limit = 50,
    after: Behind = "",
    *,
    source: options.Target,
) -> None:
    """List sessions, by tenant and name."""
    page = operate(source, lambda operator: operator.sessions(tenant, after, limit))
    if source.wrote(page):
        return
    rows = [
        (one.id, one.tenant, one.user, one.revision, one.schema, one.bytes, one.turn)
        for one in page.sessions
    ]
    screen.table(COLUMNS, rows, ("schema", "bytes"))
    screen.end_page(page.after, bool(page.sessions), "no such sessions")


@commands.add("show", "poolhand sessions show s-1 --tenant acme")
def show(
    id: Id,
    tenant: Whose = None,
    *,
    source: options.Target,
) -> None:
    """Show one session and its state."""
    found = operate(source, lambda operator: operator.session(id, tenant))
    if found is None:
        _not_found(id, tenant, source)
    if source.wrote(found):
        return
    screen.facts(
        [
            ("id", found.id),
            ("tenant", found.tenant),
            ("user", found.user),
            ("revision", found.revision),
            ("schema", found.schema),
            ("turn", found.turn),
            ("bytes", found.bytes),
        ]
    )
    state = msgspec.json.format(msgspec.json.encode(found.state), indent=2).decode()
    for line in state.splitlines():
        screen.line(screen.safe(line))


@commands.add("history", "poolhand sessions history s-1 --tenant acme")
def history(
    id: Id,
    tenant: Whose = None,
    *,
    source: options.Target,
) -> None:
    """Show the attempts of all turns of a session, oldest first."""
    found = operate(source, lambda operator: operator.session_history(id, tenant))
    if not found:
        _not_found(id, tenant, source)
    if source.wrote(found):
        return
    rows = []
    for one in found:
        took = None if one.duration_ms is None else one.duration_ms / 1000
        ran = (one.attempt, one.status, took, one.worker, one.message)
        rows.append((one.at, one.job, *ran, one.error or one.result))
    screen.table(TURNS, rows, SPARE)


@commands.add(
    "erase",
    "poolhand sessions erase s-1 --tenant acme",
    "poolhand sessions erase --all --tenant acme --yes",
)
def erase(
    by: options.By,
    id: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="The name of a session.")
    ] = None,
    tenant: Whose = None,
    every: Annotated[
        bool, typer.Option("--all", help="All sessions of the tenant; needs --yes.")
    ] = False,
    yes: options.Yes = False,
    *,
    source: options.Target,
) -> None:
    """Erase a session: cancel its turns, then delete it and them.

    The audit log stays: it records actors, jobs and times, no contents.
    """
    if (id is None) is not every or (every and (tenant is None or not yes)):
        raise fail("name a session, or give --all --tenant TENANT --yes", Exit.USAGE)
    if id is None:
        assert tenant is not None
        erased = operate(source, lambda operator: operator.erase_sessions(tenant, by))
    else:
        gone = operate(source, lambda operator: operator.erase_session(id, by, tenant))
        if gone is None:
            _not_found(id, tenant, source)
        erased = [gone]
    if source.wrote(erased):
        return
    for one in erased:
        screen.line(f"{screen.safe(one.id)}: erased, with {many(one.turns, 'turn')}")
    if not erased:
        screen.to_stderr("no such sessions")


def _not_found(id: str, tenant: str | None, source: options.Source) -> NoReturn:
    others = operate(source, lambda operator: operator.session_tenants(id))
    whose = "without a tenant" if tenant is None else f"of the tenant {tenant!r}"
    raise fail(f"there is no session {id!r} {whose}; {_elsewhere(others)}", Exit.NOT_FOUND)


def _elsewhere(tenants: list[str | None]) -> str:
    """Return a hint how to find the sessions with that name of other tenants."""
    named = [one for one in tenants if one is not None]
    hints = ["leave out --tenant for the one without"] if None in tenants else []
    hints += [f"give --tenant {shlex.quote(one)} for the one of {one!r}" for one in named[:MOST]]
    if len(named) > MOST:
        hints.append(f"{len(named) - MOST} more tenants have one")
    return "; ".join(hints) or "see `poolhand sessions list`"
