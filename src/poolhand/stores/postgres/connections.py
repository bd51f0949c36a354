"""Connections to a PostgreSQL server: its URL, its clock, and a few connections, made on demand.

An idle connection may have died silently, so it is pinged before it is lent. A connection that
broke, or was left in the middle of something, is ended before another replaces it: the server never
has more of them than allowed.

The time of a store is its server's clock, less the steps by which it was set. A server reports only
its wall clock. Each process compares that with a local clock that cannot be set, and a step is
recorded once for all processes.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import asyncpg
from msgspec import Struct

from poolhand.errors import Unavailable, Unsupported, UsageError
from poolhand.rules.validation import is_writable, nearest, shown
from poolhand.stores.postgres import errors as faults
from poolhand.stores.postgres.tables import RawConnection

WRITE = "write postgresql://user:password@host:5432/database"
MARKS = "in a user or a password write : / ? # [ ] @ % as %3A %2F %3F %23 %5B %5D %40 %25"
OURS = ("schema", "pooler", "listen", "connections")
MOST = 4
LONGEST_NAME = 63  # bytes; PostgreSQL truncates longer names
_HOST = re.compile(r"(?P<name>\[[^\[\]]*\]|[^\[\]:]*)(?::(?P<port>\d{0,5}))?")
_WORD = re.compile(r"[A-Za-z_][\w.]*")


class Address(Struct, frozen=True):
    """Where the tables are, and how to connect; shows no password.

    Behind a pooler in transaction mode no state may be left on a connection; `listen` is then a URL
    that bypasses the pooler, or None.
    """

    dsn: str
    shown: str
    schema: str = "public"
    pooled: bool = False
    listen: str | None = None
    connections: int = MOST

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"


def address_of(url: str) -> Address:
    """Parse a URL, including poolhand's own options; report all faults at once."""
    parts, words = _split(url, "store")
    own = {name: words.pop(name) for name in OURS if name in words}
    faults = [*_wrong_place(parts, words), *_wrong_options(own)]
    if faults:
        raise UsageError("store: " + "; ".join(faults))
    listen = own.get("listen")
    if listen is not None:
        _check_listen(listen)
    schema = own.get("schema", "public")
    return Address(
        dsn=urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(words), "")),
        shown=_shown(parts, words, schema),
        schema=schema,
        pooled="pooler" in own,
        listen=listen,
        connections=int(own.get("connections", MOST)),
    )


def _split(url: str, name: str) -> tuple[SplitResult, dict[str, str]]:
    """Split a URL; errors show none of its text, as any of it may be part of a secret."""
    try:
        parts = urlsplit(url)
        words = parts.query and parse_qsl(
            parts.query, keep_blank_values=True, strict_parsing=True, errors="strict"
        )
    except ValueError:
        raise UsageError(f"{name}: this URL cannot be read; {WRITE}; {MARKS}") from None
    if "#" in url or not url.isprintable():
        raise UsageError(f"{name}: this URL has a character that must be escaped; {WRITE}; {MARKS}")
    return parts, dict(words or ())


def _wrong_place(parts: SplitResult, words: Mapping[str, str]) -> Iterator[str]:
    if parts.netloc.count("@") > 1 or "@" in parts.path:
        yield f"there is an @ that is not before a host; {WRITE}; {MARKS}"
    elif not all(map(_is_host, parts.netloc.rpartition("@")[2].split(","))):
        yield (
            f"after the @ and before the / there is no host with a port; {WRITE}, several hosts "
            f"separated by commas, an IPv6 address in brackets; {MARKS}"
        )
    elif not all(map(_WORD.fullmatch, words)):
        yield f"after the ? there must be options, name=value, separated by &; {MARKS}"
    for word in words:
        if near := nearest(word, OURS, cutoff=0.8):
            yield f"there is no option {shown(word)}; did you mean {near!r}?"


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(unquote(text))
    return found is not None and int(found["port"] or 5432) in range(1, 65_536)


def _wrong_options(own: Mapping[str, str]) -> Iterator[str]:
    pooler, many = own.get("pooler", "transaction"), own.get("connections", str(MOST))
    if pooler != "transaction":
        yield f"pooler={shown(pooler)} is not allowed; it can be transaction, or be left out"
    if not (many.isascii() and many.isdecimal() and 1 <= int(many[:4]) <= 100):
        yield f"connections={shown(many)} is not allowed; give a number from 1 to 100"
    schema = own.get("schema", "public")
    fits = 1 <= len(schema.encode(errors="replace")) <= LONGEST_NAME and is_writable(schema)
    if not fits or schema.startswith("pg_"):
        yield (
            f"schema={shown(schema)} is not allowed; give a name of at most {LONGEST_NAME} bytes "
            "that does not begin with pg_"
        )


def _check_listen(url: str) -> None:
    """Raise unless `listen` is the URL of a server; it takes none of poolhand's options."""
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError("store: listen is no URL; write listen=postgresql://…, past the pooler")
    parts, words = _split(url, "store: listen")
    faults = list(_wrong_place(parts, words))
    if not words.keys().isdisjoint(OURS):
        faults.append(f"{', '.join(OURS)} go into the URL of the store")
    if faults:
        raise UsageError("store: listen: " + "; ".join(faults))


def _shown(parts: SplitResult, words: Mapping[str, str], schema: str) -> str:
    hosts = unquote(parts.netloc.rpartition("@")[2])
    base = unquote(parts.path.removeprefix("/")) or words.get("dbname") or words.get("database", "")
    host = words.get("host", "localhost")
    socket = not hosts and host.startswith("/")
    place = f"postgresql://{'' if socket else hosts or host}/{base}"
    beside = [f"host={host}"] * socket + [f"schema={schema}"] * (schema != "public")
    return "?".join(filter(None, (place, "&".join(beside))))


# A process may detect a step where there is none because it was itself suspended, as a virtual
# machine is. Processes that have known the time for longer correct that, and it adopts their value.
LONG = 60.0
SLACK = 2.0  # seconds that do not count as a step
DRIFT = 0.001  # ratio by which two clocks may drift apart without being set
AMEND = "UPDATE poolhand_counters SET skew = skew + ?2 WHERE skew = ?1"


class ClockStepped(Exception):
    """The server's clock was set, `by` so many seconds, since `skew` was recorded."""

    def __init__(self, skew: float, by: float) -> None:
        super().__init__(skew, by)
        self.skew = skew
        self.by = by


class Reading(NamedTuple):
    """At `came` the store's time was between `least` and `most` ahead of the local clock."""

    came: float
    skew: float
    least: float
    most: float

    def step_from(self, last: Reading) -> float:
        """Return how far the store's time has moved against the local clock, 0: no step."""
        slack = SLACK + DRIFT * (self.came - last.came)
        if self.least - last.most < slack and last.least - self.most < slack:
            return 0.0
        return (self.least + self.most - last.least - last.most) / 2


class ServerClock:
    """Detects that the server's clock was set; `tick` is a local clock that cannot be set."""

    def __init__(self, tick: Callable[[], float]) -> None:
        self.tick = tick
        self._last: Reading | None = None
        self._since = 0.0  # since when the store's time has run like the local clock
        self._amended: float | None = None

    def now(self, wall: float, skew: float, asked: float) -> float:
        """Return the time of the store from the server's answer; `asked`: when it was asked."""
        now, came = wall - skew, self.tick()
        reading, last = Reading(came, skew, now - came, now - asked), self._last
        step = 0.0 if last is None else reading.step_from(last)
        if last is None or (step and self._believes(reading, last)):
            self._since = came
        elif step:
            self._amended = skew + step
            raise ClockStepped(skew, step)
        self._last = reading
        return now

    def _believes(self, reading: Reading, last: Reading) -> bool:
        """Return whether another process has corrected the time and is to be believed."""
        if reading.skew == last.skew:
            return False
        return last.skew == self._amended or reading.came - self._since < LONG


CONNECT_SECONDS = 5.0
TRUSTED_SECONDS = 1.0  # for which a connection that was just used counts as alive
PING_SECONDS = 2.5
END_SECONDS = 1.0
NAME = "poolhand"
# How long to wait for a lock, and how long a transaction may be idle.
LIMITS = {"lock_timeout": "5s", "idle_in_transaction_session_timeout": "10s"}
# By default, a statement keeps a plan made when its tables were almost empty, or is planned on
# every use. All statements of this store are written to use indexes, however large the tables are.
PLANS = {
    "plan_cache_mode": "force_generic_plan",
    **dict.fromkeys(
        ("enable_seqscan", "enable_sort", "enable_hashjoin", "enable_mergejoin", "jit"), "off"
    ),
}
# Each statement must see what was committed while it waited for a lock: at a level where a
# transaction sees one snapshot, a turn would find its session busy when no job holds it.
LEVEL = "read committed"
BEGIN = f"BEGIN ISOLATION LEVEL {LEVEL.upper()}"
# A pooler lends another connection each time, without these settings.
BEGIN_POOLED = "; ".join(
    [BEGIN, *(f"SET LOCAL {name} = '{value}'" for name, value in LIMITS.items())]
)
SETTINGS = {
    "application_name": NAME,
    "default_transaction_isolation": LEVEL,
    **LIMITS,
    **PLANS,
}
OLDEST = (13,)  # the first version with pg_current_xact_id


async def connect(address: Address, dsn: str | None = None) -> RawConnection:
    """Make one connection, or raise an error that says why it failed."""
    pooled = address.pooled and dsn is None
    try:
        made: RawConnection = await asyncpg.connect(
            dsn or address.dsn,
            timeout=CONNECT_SECONDS,
            statement_cache_size=0 if pooled else 500,
            server_settings={} if pooled else SETTINGS,
        )
    except Exception as error:
        raise faults.on_the_way(error, address.shown, CONNECT_SECONDS) from error
    version = made.get_server_version()
    if version < OLDEST:
        sever(made)
        raise Unsupported(
            f"{address.shown} is PostgreSQL {version[0]}.{version[1]}; poolhand needs "
            f"{OLDEST[0]} or newer"
        )
    return made


def sever(connection: Any) -> None:
    """Break off a connection at once, whatever it is doing."""
    try:
        connection.terminate()
    except asyncpg.InternalClientError:
        # A busy connection does not terminate, and would keep the socket.
        connection._transport.abort()


class ServerConnection:
    """Lends a limited number of connections, to the process and the loop that opened it."""

    def __init__(self, address: Address) -> None:
        self.begin = BEGIN_POOLED if address.pooled else BEGIN
        self.address = address
        self.closed = True
        self._process = 0
        self._reset()

    def _reset(self) -> None:
        self._permits = asyncio.Semaphore(self.address.connections)
        self._back = asyncio.Event()
        self._making = 0
        self._idle: list[tuple[RawConnection, float]] = []
        self._lent: set[RawConnection] = set()
        self._endings: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Start lending on the running loop; connections are made on demand."""
        if self.closed or not self.own:
            self._reset()
        self.closed = False
        self._process = os.getpid()

    @property
    def own(self) -> bool:
        """Whether this process opened it, not one of which this is a fork."""
        return self._process in (0, os.getpid())

    async def close(self) -> None:
        """Close all connections; work in progress has a moment to finish.

        In a fork nothing is touched: anything sent would reach the server as from the parent.
        """
        if self.closed or not self.own:
            return
        self.closed = True
        try:
            async with asyncio.timeout(END_SECONDS):
                while self._lent:
                    self._back.clear()
                    await self._back.wait()
        except TimeoutError:
            pass
        finally:
            idle, self._idle = self._idle, []
            for connection in self._lent:
                sever(connection)
            for connection, _ in idle:
                self._let_end(connection, permit=False)
        if self._endings:
            await asyncio.wait(self._endings)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[RawConnection]:
        """Lend a connection; one that is returned broken or in a transaction is not lent again."""
        self._expect_open()
        await self._permits.acquire()
        try:
            connection = await self._take()
        except BaseException:
            self._permits.release()
            raise
        sound = False
        try:
            yield connection
            sound = True
        except Exception as error:
            sound = not (faults.is_cut(error) or isinstance(error, TimeoutError))
            raise
        finally:
            # A cancelled caller left in the middle of something: the connection cannot be reused.
            self._take_back(connection, sound)

    def _expect_open(self) -> None:
        shown = self.address.shown
        if self.closed:
            raise Unavailable(f"{shown} is not open here")
        if not self.own:
            raise UsageError(
                f"{shown} was opened by process {self._process}, of which this one"
                f" ({os.getpid()}) is a fork: open a store of its own after the fork"
            )

    async def _take(self) -> RawConnection:
        while True:
            self._expect_open()
            try:
                connection = await self._idle_one() or await self._new_one()
            except Unavailable as error:
                ours = self._idle or self._lent or self._making
                if not ours or not faults.is_crowded(error.__cause__):
                    raise
                # The server has no connection left, but those of this process come back.
                if not self._idle:
                    self._back.clear()
                    await self._back.wait()
            else:
                self._lent.add(connection)
                return connection

    async def _new_one(self) -> RawConnection:
        self._making += 1
        try:
            return await connect(self.address)
        finally:
            self._making -= 1
            self._back.set()

    async def _idle_one(self) -> RawConnection | None:
        """Return a live connection that was used before, None if there is none."""
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_closed():
                sever(connection)
            elif asyncio.get_running_loop().time() - since < TRUSTED_SECONDS or await self._answers(
                connection
            ):
                return connection
            else:
                # Other idle connections are probably dead, too, or not worth the time of a ping.
                others, self._idle = self._idle, []
                for other, _ in others:
                    sever(other)
        return None

    async def _answers(self, connection: RawConnection) -> bool:
        self._lent.add(connection)
        answered = False
        try:
            async with asyncio.timeout(PING_SECONDS):
                await connection.execute("SELECT 1")
            answered = True
        except Exception as error:
            if not isinstance(error, TimeoutError) and not faults.is_cut(error):
                raise
        finally:
            self._lent.discard(connection)
            if not answered:
                sever(connection)
        return answered

    def _take_back(self, connection: RawConnection, sound: bool) -> None:
        self._lent.discard(connection)
        self._back.set()
        if self.closed or connection.is_closed() or not sound or connection.is_in_transaction():
            self._let_end(connection, permit=True)
        else:
            self._idle.append((connection, asyncio.get_running_loop().time()))
            self._permits.release()

    def _let_end(self, connection: RawConnection, permit: bool) -> None:
        """End a connection in the background; only then may another replace it."""
        if connection.is_closed():
            sever(connection)
            if permit:
                self._permits.release()
            return
        task = asyncio.get_running_loop().create_task(_end(connection), name="poolhand-link")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        if permit:
            permits = self._permits
            task.add_done_callback(lambda _: permits.release())


async def _end(connection: RawConnection) -> None:
    """Have the server stop its work for a connection, and close it."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await connection.close(timeout=END_SECONDS)
    except Exception:
        # No answer: the server will notice when it writes.
        sever(connection)
