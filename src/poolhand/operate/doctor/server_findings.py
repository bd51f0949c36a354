"""Checks of a store on a server: the server, the user's privileges, and the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from poolhand.operate.doctor.finding import Finding, Level, many

NEARLY_ALL = 0.8  # share of used connections that is reported
OLD = 300.0  # seconds a transaction may stay open without being reported
LATE = 30.0  # seconds the readable audit log may lag behind
MUCH_DEAD = 100_000  # dead rows of a table that are reported
CLOCK_SLACK = 5.0


class HeldView(Protocol):
    """An open transaction: its session, and for how many seconds it has been open."""

    @property
    def who(self) -> str: ...

    @property
    def seconds(self) -> float: ...


class TableView(Protocol):
    """A table: live rows, dead rows not yet vacuumed, and bytes including indexes."""

    @property
    def name(self) -> str: ...

    @property
    def live(self) -> int: ...

    @property
    def dead(self) -> int: ...

    @property
    def bytes(self) -> int: ...


class ServerView(Protocol):
    """The state of a server and of our tables on it."""

    @property
    def version(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def read_only(self) -> bool: ...

    @property
    def ahead(self) -> float:
        """The seconds by which its clock is ahead of this machine's."""

    @property
    def autovacuum(self) -> bool: ...

    @property
    def most(self) -> int:
        """The maximum number of connections."""

    @property
    def connections(self) -> int: ...

    @property
    def unsafe(self) -> Sequence[str]:
        """Settings with which a crash may lose committed data."""

    @property
    def lacking(self) -> Sequence[str]:
        """Tables and sequences for which this user lacks privileges that a worker needs."""

    @property
    def tables(self) -> Sequence[TableView]: ...

    @property
    def since(self) -> int:
        """The oldest schema number whose code still works with the installed schema."""

    @property
    def snapshot(self) -> HeldView | None:
        """The oldest open transaction of this database."""

    @property
    def writer(self) -> HeldView | None:
        """The oldest open transaction of the whole server that has written."""


@runtime_checkable
class OnServer(Protocol):
    """A store on a server, which can be inspected without opening it."""

    @property
    def place(self) -> str:
        """The address of the store, without secrets."""

    async def schema(self) -> tuple[int, int]:
        """Return the number of its schema (0: none) and the newest that this version knows."""

    async def survey(self) -> ServerView:
        """Return the state of the server."""


def usable(place: str, survey: ServerView) -> Iterator[Finding]:
    """Check whether this user can store jobs there at all."""
    text = f"{place} answers, version {survey.version.split()[0]}"
    if survey.read_only:
        text += ", and takes no changes: it is a standby, or was set read-only"
        fix = "name the primary in the URL of the store"
        yield Finding("server", Level.WRONG, text, fix)
        return
    yield Finding("server", Level.OK, text)
    if survey.lacking:
        text = f"user {survey.role!r} may not use {_some(survey.lacking)}"
        fix = f"GRANT these to {survey.role!r}: the page on PostgreSQL has the statements"
        yield Finding("rights", Level.WRONG, text, fix)
    else:
        text = f"user {survey.role!r} may use every table"
        yield Finding("rights", Level.OK, text)


def shape(survey: ServerView) -> Iterator[Finding]:
    """Check the state of the server and of our tables."""
    yield _safety(survey.unsafe)
    yield _connections(survey.connections, survey.most)
    yield _bloat(survey.tables, survey.autovacuum)
    yield _snapshot(survey.snapshot)
    yield _audit(survey.writer)
    yield _clock(survey.ahead)


def _safety(unsafe: Sequence[str]) -> Finding:
    if not unsafe:
        return Finding("safety", Level.OK, "what is committed survives a crash of the server")
    text = f"{', '.join(unsafe)} {'is' if len(unsafe) == 1 else 'are'} off: a crash may lose jobs"
    return Finding("safety", Level.WARN, text, "turn it on, unless jobs may be lost")


def _connections(used: int, most: int) -> Finding:
    text = f"{used:,} of {most:,} connections are used"
    if used < most * NEARLY_ALL:
        return Finding("connections", Level.OK, text)
    fix = (
        "give connections=2 in the URL, use fewer processes or a pooler, or raise max_connections; "
        "who gets none takes no job"
    )
    return Finding("connections", Level.WARN, text, fix)


def _bloat(tables: Sequence[TableView], autovacuum: bool) -> Finding:
    size = sum(table.bytes for table in tables) / (1 << 20)
    text = f"the tables have {size:,.0f} MiB"
    if not autovacuum:
        text += ", and autovacuum is off: they grow without end, and claims become slow"
        return Finding("tables", Level.WRONG, text, "set autovacuum = on")
    full = [one for one in tables if one.dead > MUCH_DEAD and one.dead > one.live]
    if not full:
        return Finding("tables", Level.OK, text)
    worst = max(full, key=lambda table: table.dead)
    text += f", and {worst.name} has {worst.dead:,} dead rows beside {worst.live:,} live ones"
    fix = f"end old transactions, let autovacuum run more often, or run VACUUM {worst.name} now"
    return Finding("tables", Level.WARN, text, fix)


def _snapshot(held: HeldView | None) -> Finding:
    if held is None or held.seconds < OLD:
        return Finding("snapshots", Level.OK, "no old transaction keeps dead rows")
    text = f"{held.who} has been in a transaction for {held.seconds:,.0f} s: no row that died since"
    text += " can be cleaned up, and claims become slower"
    return Finding("snapshots", Level.WARN, text, _END)


def _audit(held: HeldView | None) -> Finding:
    if held is None or held.seconds < LATE:
        return Finding("audit", Level.OK, "the audit can be read to its end")
    text = f"the audit can be read up to {held.seconds:,.0f} s ago: {held.who} has written, and"
    return Finding("audit", Level.WARN, f"{text} has not committed since", _END)


_END = "commit or end it: SELECT pg_terminate_backend(pid), or ROLLBACK PREPARED"


def _clock(ahead: float) -> Finding:
    if abs(ahead) <= CLOCK_SLACK:
        return Finding("clock", Level.OK, "the clock of this machine agrees with the server")
    side = "ahead of" if ahead > 0 else "behind"
    text = f"the clock of the server is {many(round(abs(ahead)), 'second')} {side} this machine's"
    fix = "set both clocks (NTP); jobs go by that of the server, run_at is written by this one"
    return Finding("clock", Level.WARN, text, fix)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
