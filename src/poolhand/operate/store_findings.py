"""Checks of the place of a store: its file and disk, or its server, privileges and tables."""

from __future__ import annotations

import shlex
import shutil
import stat
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from poolhand.contract.records import LockHolder, ServerSurvey, TableSize
from poolhand.operate.format import listed, many
from poolhand.rules.plain import PlainView


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    WRONG = "WRONG"


class Finding(PlainView, frozen=True):
    """The result of one check; `fix` says what to do about it."""

    check: str
    level: Level
    text: str
    fix: str | None = None


LITTLE_SPACE = 1 << 30
NO_SPACE = 64 << 20


@runtime_checkable
class InFile(Protocol):
    """A store in a file of this machine, which can be inspected without opening it."""

    @property
    def path(self) -> Path:
        """The path of the file."""

    @property
    def permissions(self) -> int:
        """The mode that its files are created with."""

    async def schema(self) -> tuple[int, int]:
        """Return the number of its schema (0: none) and the newest that this version knows."""

    async def damage(self) -> list[str]:
        """Read the whole file; return the damages found."""


def space(path: Path) -> Finding:
    """Check the free space on the disk of a file."""
    free = shutil.disk_usage(path.parent).free
    text = f"{free / (1 << 20):,.0f} MiB are free on the disk of {path}"
    if free < NO_SPACE:
        return Finding(
            "disk", Level.WRONG, text, "free some space: no job can be stored on a full disk"
        )
    if free < LITTLE_SPACE:
        return Finding("disk", Level.WARN, text, "free some space before the disk is full")
    return Finding("disk", Level.OK, text)


def private(path: Path, permissions: int) -> Finding:
    """Report files with wider permissions than the URL of the store allows."""
    wide = [one for one in map(Path, _files(path)) if _mode(one) & ~permissions & 0o077]
    if not wide:
        text = f"its files are those of one {'group' if permissions & 0o060 else 'user'}"
        return Finding("permissions", Level.OK, text)
    names = ", ".join(f"{one.name} ({_mode(one):o})" for one in wide)
    text = f"other users of this machine can access the store: {names}"
    fix = f"`chmod {permissions:o} {shlex.join(str(one) for one in wide)}`"
    if not permissions & 0o060:
        fix += ", or let one group use them (?permissions=660 in the URL of the store)"
    return Finding("permissions", Level.WARN, text, fix)


def _files(path: Path) -> list[str]:
    return [f"{path}{end}" for end in ("", "-wal", "-shm", "-lock", "-lock-turn")]


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0


def sound(path: Path, damage: Sequence[str]) -> Finding:
    """Report the damages of a file."""
    if not damage:
        return Finding("file", Level.OK, "the file is intact")
    text = f"the file is damaged: {damage[0]}"
    more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
    fix = f"stop everything that uses {path}, keep a copy of it, and restore a backup"
    return Finding("file", Level.WRONG, text + more, fix)


NEARLY_ALL = 0.8  # share of used connections that is reported
OLD = 300.0  # seconds a transaction may stay open without being reported
LATE = 30.0  # seconds the readable audit log may lag behind
MUCH_DEAD = 100_000  # dead rows of a table that are reported
CLOCK_SLACK = 5.0
AUDIT = "poolhand_audit"  # the table of records that readers number


@runtime_checkable
class OnServer(Protocol):
    """A store on a server, which can be inspected without opening it."""

    @property
    def place(self) -> str:
        """The address of the store, without secrets."""

    async def schema(self) -> tuple[int, int]:
        """Return the number of its schema (0: none) and the newest that this version knows."""

    async def survey(self) -> ServerSurvey:
        """Return the state of the server."""


def usable(place: str, survey: ServerSurvey) -> Iterator[Finding]:
    """Check whether this user can store jobs there at all."""
    text = f"{place} answers, version {survey.version.split()[0]}"
    if survey.read_only:
        text += ", and is read-only: it is a standby, or was set read-only"
        fix = "name the primary in the URL of the store"
        yield Finding("server", Level.WRONG, text, fix)
        return
    yield Finding("server", Level.OK, text)
    if survey.lacking:
        text = f"user {survey.role!r} may not use {listed(survey.lacking)}"
        fix = f"run as their owner: {_grants(survey.role, survey.schema)}"
        yield Finding("rights", Level.WRONG, text, fix)
    else:
        text = f"user {survey.role!r} may use every table"
        yield Finding("rights", Level.OK, text)


def _grants(role: str, schema: str) -> str:
    """Return the statements that give a role all rights of a worker."""
    user = '"' + role.replace('"', '""') + '"'
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {user}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL "
        f"TABLES IN SCHEMA {schema} TO {user}; GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} "
        f"TO {user}"
    )


def shape(survey: ServerSurvey) -> Iterator[Finding]:
    """Check the state of the server and of our tables."""
    yield _safety(survey.unsafe)
    yield _connections(survey.connections, survey.most)
    yield _bloat(survey.tables, survey.autovacuum)
    yield _snapshot(survey.snapshot)
    yield _audit(survey)
    yield _clock(survey.ahead)


def _safety(unsafe: Sequence[str]) -> Finding:
    if not unsafe:
        return Finding("safety", Level.OK, "committed data survives a crash of the server")
    text = f"{', '.join(unsafe)} {'is' if len(unsafe) == 1 else 'are'} off: a crash may lose jobs"
    return Finding("safety", Level.WARN, text, "turn it on, unless losing jobs is acceptable")


def _connections(used: int, most: int) -> Finding:
    text = f"{used:,} of {most:,} connections are used"
    if used < most * NEARLY_ALL:
        return Finding("connections", Level.OK, text)
    fix = (
        "give connections=2 in the URL, use fewer processes or a pooler, or raise max_connections; "
        "a worker without a connection claims no jobs"
    )
    return Finding("connections", Level.WARN, text, fix)


def _bloat(tables: Sequence[TableSize], autovacuum: bool) -> Finding:
    size = sum(table.bytes for table in tables) / (1 << 20)
    text = f"the tables have {size:,.0f} MiB"
    if not autovacuum:
        text += ", and autovacuum is off: the tables grow without limit, and claims become slow"
        return Finding("tables", Level.WRONG, text, "set autovacuum = on")
    full = [one for one in tables if one.dead > MUCH_DEAD and one.dead > one.live]
    if not full:
        return Finding("tables", Level.OK, text)
    worst = max(full, key=lambda table: table.dead)
    text += f", and {worst.name} has {worst.dead:,} dead rows and {worst.live:,} live ones"
    fix = f"end old transactions, let autovacuum run more often, or run VACUUM {worst.name} now"
    return Finding("tables", Level.WARN, text, fix)


def _snapshot(held: LockHolder | None) -> Finding:
    if held is None or held.seconds < OLD:
        return Finding(
            "snapshots", Level.OK, "no old transaction prevents the removal of dead rows"
        )
    text = f"{held.who} has been in a transaction for {held.seconds:,.0f} s: no row that died since"
    text += " can be cleaned up, and claims become slower"
    return Finding("snapshots", Level.WARN, text, _END)


def _audit(survey: ServerSurvey) -> Finding:
    if AUDIT in survey.lacking:
        text = f"user {survey.role!r} cannot read the audit log: its readers number it"
        return Finding("audit", Level.WARN, text, "give it the rights named above")
    held = survey.writer
    if held is None or held.seconds < LATE:
        return Finding("audit", Level.OK, "the audit log can be read to its end")
    text = f"the audit log can be read up to {held.seconds:,.0f} s ago: {held.who} has written, and"
    return Finding("audit", Level.WARN, f"{text} has not committed since", _END)


_END = "commit or end it: SELECT pg_terminate_backend(pid), or ROLLBACK PREPARED"


def _clock(ahead: float) -> Finding:
    if abs(ahead) <= CLOCK_SLACK:
        return Finding("clock", Level.OK, "the clock of this machine agrees with the server")
    side = "ahead of" if ahead > 0 else "behind"
    text = f"the clock of the server is {many(round(abs(ahead)), 'second')} {side} this machine's"
    fix = "set both clocks (NTP); jobs use the clock of the server, run_at that of this machine"
    return Finding("clock", Level.WARN, text, fix)
