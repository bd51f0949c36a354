"""Commands about the store and the program itself: audit, migrate, doctor, config, version."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Iterator
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from poolhand import config
from poolhand.cli import exits, options, screen
from poolhand.cli.session import existing, fail, named, opened, operate, outside, told
from poolhand.errors import Unavailable
from poolhand.operate.actions import Operator
from poolhand.operate.arguments import LAST
from poolhand.operate.doctor.file_findings import InFile
from poolhand.operate.doctor.finding import Finding, Level
from poolhand.operate.doctor.findings import examine
from poolhand.operate.doctor.server_findings import OnServer
from poolhand.operate.views import AuditView
from poolhand.runtime import Runtime
from poolhand.settings import PREFIX, SETTINGS


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command(
        epilog=options.examples(
            "poolhand audit --kind pool_cancel", "poolhand audit --after 1200 --limit 100 --json"
        )
    )(audit)
    app.command(
        epilog=options.examples(
            "poolhand migrate --store sqlite:///agents.db", "poolhand migrate --check"
        )
    )(migrate)
    app.command(
        epilog=options.examples(
            "poolhand doctor --store sqlite:///agents.db",
            "poolhand doctor --store postgresql://me@host/agents",
        )
    )(doctor)
    app.command("config", epilog=options.examples("poolhand config --json"))(show_config)
    app.command(epilog=options.examples("poolhand version --json", "poolhand --version"))(version)


def audit(
    kind: Annotated[
        str, typer.Option("--kind", help="Only kinds that begin so, such as pool_cancel.")
    ] = "",
    limit: options.Limit = 50,
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            min=0,
            max=LAST,
            metavar="NUMBER",
            help="From behind this line on, else the newest.",
        ),
    ] = None,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """List what happened, and who did it.

    Without --after these are the newest lines; the oldest of them comes first.
    """

    def read(operator: Operator) -> Awaitable[list[AuditView]]:
        if after is None:
            return operator.last_audit(limit, kind)
        return operator.audit(after, limit, kind)

    lines = operate(store, app, read)
    if json:
        screen.as_json({"lines": lines, "after": lines[-1].number if lines else after})
        return
    columns = ("number", "at", "kind", "pool", "job", "by", "what")
    rows = [(o.number, o.at, o.kind, o.pool, o.job, o.by, o.text) for o in lines]
    screen.table(columns, rows, spare=("pool", "at"))
    if not lines:
        screen.aside("no such lines")


def migrate(
    check: Annotated[bool, typer.Option("--check", help="Change nothing, only tell.")] = False,
    json: options.Json = False,
    store: options.Store = None,
    app: options.App = None,
) -> None:
    """Bring a store to the newest schema, or make one.

    Tells the number of the schema before and after. Workers and apps do the same when they start.
    """
    with told() as tell:
        url = named(store, app)
        tell.urls.append(url)
        has, knows, now = asyncio.run(_migrate(url, check))
        if json:
            screen.as_json({"from": has, "to": now, "newest": knows})
        elif has == now == knows:
            screen.line(f"the schema is number {has}, the newest; nothing to do")
        elif now > knows:
            screen.line(
                f"the schema is number {now}, newer than this poolhand, which knows {knows}"
            )
        elif has == now:
            screen.line(f"the schema is number {has}; `poolhand migrate` brings it to {knows}")
        else:
            screen.line(f"the schema is number {now} now, from {has}")
        # Without --check a newer schema has just been opened, so this version can use it.
        if now < knows or (now > knows and check):
            raise typer.Exit(exits.WRONG)


async def _migrate(url: str, check: bool) -> tuple[int, int, int]:
    """Return the schema number before, the newest one, and the number after."""
    runtime = Runtime()
    store = existing(url, runtime) if check else outside(url, runtime)
    if not isinstance(store, InFile | OnServer):
        raise fail(f"{config.masked(url)} has no schema: nothing to migrate", exits.USAGE)
    has, knows = await store.schema()
    if check:
        return has, knows, has
    async with opened(store):
        pass
    now, _ = await store.schema()
    return has, knows, now


def doctor(
    json: options.Json = False, store: options.Store = None, app: options.App = None
) -> None:
    """Check everything, and say how to fix what is wrong.

    Looked at are the file and its disk, or the server with its tables, connections and open
    transactions; the schema, the clock, leases of dead workers, and jobs that nobody would run.
    Nothing is changed.
    """
    with told() as tell:
        url = named(store, app)
        tell.urls.append(url)
        findings = [_version(), *_in_sight(store), *asyncio.run(_examine(url))]
    wrong = [finding for finding in findings if finding.level is Level.WRONG]
    if json:
        screen.as_json({"ok": not wrong, "store": config.located(url), "findings": findings})
    else:
        screen.line(f"store {screen.safe(config.located(url))}")
        rows = [(one.check, one.level, _with_fix(one)) for one in findings]
        screen.table(("check", "result", "finding"), rows)
    if wrong:
        raise typer.Exit(exits.WRONG)


def _in_sight(flag: str | None) -> Iterator[Finding]:
    """Report a password in the command line, which every process list shows."""
    if flag is not None and config.masked(flag) != flag:
        text = "the password stands in the command line, where others on this machine can read it"
        fix = f"set {PREFIX}STORE instead of --store, or keep the password in ~/.pgpass"
        yield Finding("password", Level.WARN, text, fix)


def _with_fix(finding: Finding) -> str:
    return finding.text if finding.fix is None else f"{finding.text}; to fix it: {finding.fix}"


async def _examine(url: str) -> list[Finding]:
    runtime = Runtime()
    try:
        return await examine(existing(url, runtime), runtime)
    except Unavailable as error:
        text = config.without_secrets(error.message, [url])
        return [Finding("store", Level.WRONG, f"{text} [{error.code}]")]


def show_config(
    json: options.Json = False, store: options.Store = None, app: options.App = None
) -> None:
    """Show all settings and where they came from.

    Passwords in URLs are masked.
    """
    with told():
        found = config.load(store=store, app=app)
    help_of = {setting.name: setting.help for setting in SETTINGS}
    values = found.values()
    if json:
        shown = [{"name": v.name, "value": v.plain, "origin": v.origin} for v in values]
        screen.as_json({"settings": shown, "unknown": found.unknown})
        return
    columns = ("setting", "value", "origin", "meaning")
    rows = [(v.name, v.shown or "not set", v.origin, help_of[v.name]) for v in values]
    screen.table(columns, rows, spare=("meaning",))
    for name in found.unknown:
        screen.aside(f"poolhand: {screen.safe(config.unknown_variable(name))}")


def version(json: options.Json = False) -> None:
    """Show the versions of poolhand and Python."""
    numbers = {
        "poolhand": version_of("poolhand"),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    if json:
        screen.as_json(numbers)
    else:
        screen.facts(list(numbers.items()))


def _version() -> Finding:
    text = f"poolhand {version_of('poolhand')} on Python {platform.python_version()}"
    return Finding("version", Level.OK, text)
