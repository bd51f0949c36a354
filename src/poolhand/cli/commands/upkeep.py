"""Commands about the store and the program: audit, migrate, doctor, config, version, help."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Iterator
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from poolhand import config
from poolhand.cli import options, screen
from poolhand.cli.session import (
    Exit,
    existing,
    fail,
    named,
    opened,
    operate,
    outside,
    reported_errors,
)
from poolhand.errors import Unavailable
from poolhand.operate.actions import Operator
from poolhand.operate.doctor import examine
from poolhand.operate.store_findings import Finding, InFile, Level, OnServer
from poolhand.operate.views import AuditView
from poolhand.rules.audit import KINDS
from poolhand.runtime import Runtime
from poolhand.setting_table import PREFIX, SETTINGS

commands = options.Commands()


@commands.add(
    "audit",
    "poolhand audit --kind pool_cancel",
    "poolhand audit --after 1200 --limit 100 --json",
)
def audit(
    kind: Annotated[
        str, typer.Option("--kind", help="Only kinds with this prefix, such as pool_cancel.")
    ] = "",
    limit: options.Limit = 50,
    after: Annotated[
        int | None,
        options.number("--after", "NUMBER", "Only lines after this number; default: the newest."),
    ] = None,
    *,
    source: options.Target,
) -> None:
    """Show the audit log: what happened, and who did it.

    Without --after it shows the newest lines, the oldest of them first.
    """

    def read(operator: Operator) -> Awaitable[list[AuditView]]:
        if after is None:
            return operator.last_audit(limit, kind)
        return operator.audit(after, limit, kind)

    lines = operate(source, read)
    if not lines and not any(one.startswith(kind) for one in KINDS):
        raise fail(f"there is no kind {kind!r}; there are {', '.join(KINDS)}", Exit.USAGE)
    if source.wrote({"lines": lines, "after": lines[-1].number if lines else after}):
        return
    columns = ("number", "at", "kind", "pool", "job", "by", "what")
    rows = [(o.number, o.at, o.kind, o.pool, o.job, o.by, o.text) for o in lines]
    screen.table(columns, rows, spare=("pool", "at"))
    if not lines:
        screen.to_stderr("no such lines")


@commands.add("migrate", "poolhand migrate --store sqlite:///agents.db", "poolhand migrate --check")
def migrate(
    check: Annotated[bool, typer.Option("--check", help="Change nothing, only report.")] = False,
    *,
    source: options.Target,
) -> None:
    """Migrate a store to the newest schema, or create it.

    Reports the schema number before and after. Workers and apps migrate when they start, too.
    """
    with reported_errors() as urls:
        url = named(source)
        urls.urls.append(url)
        has, knows, now = asyncio.run(_migrate(url, check))
        if source.wrote({"from": has, "to": now, "newest": knows}):
            pass
        elif has == now == knows:
            screen.line(f"the schema is number {has}, the newest; nothing to do")
        elif now > knows:
            screen.line(
                f"the schema is number {now}, newer than this poolhand, which knows {knows}"
            )
        elif has == now:
            screen.line(f"the schema is number {has}; `poolhand migrate` migrates it to {knows}")
        else:
            screen.line(f"the schema is number {now} now, from {has}")
        # Without --check a newer schema has just been opened, so this version can use it.
        if now < knows or (now > knows and check):
            raise typer.Exit(Exit.WRONG)


async def _migrate(url: str, check: bool) -> tuple[int, int, int]:
    """Return the schema number before, the newest one, and the number after."""
    runtime = Runtime()
    store = existing(url, runtime) if check else outside(url, runtime)
    if not isinstance(store, InFile | OnServer):
        raise fail(f"{config.masked(url)} has no schema: nothing to migrate", Exit.USAGE)
    has, knows = await store.schema()
    if check:
        return has, knows, has
    async with opened(store):
        pass
    now, _ = await store.schema()
    return has, knows, now


@commands.add(
    "doctor",
    "poolhand doctor --store sqlite:///agents.db",
    "poolhand doctor --store postgresql://me@host/agents",
)
def doctor(source: options.Target) -> None:
    """Check the store and its workers; say how to fix problems.

    It checks the file and its disk, or the server with its tables, connections and open
    transactions; the schema, the clock, leases of dead workers, and jobs that no worker would run.
    It changes nothing.
    """
    with reported_errors() as urls:
        url = named(source)
        urls.urls.append(url)
        findings = [_version(), *_exposed_password(source.store), *asyncio.run(_examine(url))]
    wrong = [finding for finding in findings if finding.level is Level.WRONG]
    found = {"ok": not wrong, "store": config.located(url), "findings": findings}
    if not source.wrote(found):
        screen.line(f"store {screen.safe(config.located(url))}")
        rows = [(one.check, one.level, _with_fix(one)) for one in findings]
        screen.table(("check", "result", "finding"), rows)
    if wrong:
        raise typer.Exit(Exit.WRONG)


def _exposed_password(flag: str | None) -> Iterator[Finding]:
    """Report a password in the command line, which every process list shows."""
    if flag is not None and config.masked(flag) != flag:
        text = (
            "the password is part of the command line, which other users of this machine can read"
        )
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


@commands.add("config", "poolhand config --json")
def show_config(source: options.Target) -> None:
    """Show all settings and where they come from.

    Passwords in URLs are masked.
    """
    with reported_errors():
        found = config.load(store=source.store, app=source.app)
    help_of = {setting.name: setting.help for setting in SETTINGS}
    values = found.values()
    shown = [{"name": v.name, "value": v.plain, "origin": v.origin} for v in values]
    if source.wrote({"settings": shown, "unknown": found.unknown}):
        return
    columns = ("setting", "value", "origin", "meaning")
    rows = [(v.name, v.shown or "not set", v.origin, help_of[v.name]) for v in values]
    screen.table(columns, rows, spare=("meaning",))
    for name in found.unknown:
        screen.warn(config.unknown_variable(name))


@commands.add("version", "poolhand version --json", "poolhand --version")
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
