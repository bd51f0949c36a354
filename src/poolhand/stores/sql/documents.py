"""The documents of a SQL store: versioned values by key, with an optional TTL."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from poolhand.contract import Document, Put
from poolhand.rules.streams import ERASED_FOR, erasure_of, streams_of_document
from poolhand.stores.sql import sessions as sql_sessions
from poolhand.stores.sql.log import StreamLog
from poolhand.stores.sql.rows import sought
from poolhand.stores.sql.tables import Insert, Tables

GET = """
SELECT value, version, until FROM poolhand_documents
WHERE key = ? AND (until IS NULL OR until > ?)
"""
VERSIONS = "SELECT version, until IS NULL OR until > ? FROM poolhand_documents WHERE key = ?"
# New documents start above the highest version of deleted ones: no version of a key comes twice.
GONE = "SELECT documents FROM poolhand_counters"
GO = "UPDATE poolhand_counters SET documents = ? WHERE documents < ?"
PUT = Insert(
    "poolhand_documents",
    "key text, value bytea, version bigint, until double precision",
    key=("key",),
)
SCAN = """
SELECT key FROM poolhand_documents
WHERE key >= ? AND key > ? AND (until IS NULL OR until > ?)
ORDER BY key LIMIT ?
"""
FORGET = "DELETE FROM poolhand_documents WHERE key IN (?*) RETURNING version"
FORGET_USER = "DELETE FROM poolhand_session_users WHERE session = ?"
OLD = "SELECT max(version) FROM poolhand_documents WHERE until <= ?"
SWEEP = "DELETE FROM poolhand_documents WHERE until <= ? RETURNING key"


def get(tables: Tables, key: str, now: float) -> Document | None:
    """Return a document, None if there is none."""
    row = tables.execute(GET, (sought(key), now)).fetchone()
    if row is None:
        return None
    value, version, until = row
    return Document(value, version, None if until is None else until - now)


def put(tables: Tables, puts: Sequence[Put], now: float) -> tuple[int, ...] | None:
    """Write or delete all documents and return their versions, or do nothing and return None."""
    versions: dict[str, tuple[int, int]] = {}
    written: list[int] = []
    rows: dict[str, tuple[Any, ...] | None] = {}
    for one in puts:
        version, last = versions.get(one.key) or _versions(tables, one.key, now)
        if one.expect not in (None, version) or is_erased(tables, one, now):
            return None
        number = 0 if one.value is None else last + 1
        versions[one.key] = number, max(number, last)
        written.append(number)
        until = None if one.ttl is None else now + one.ttl
        rows[one.key] = None if one.value is None else (one.key, one.value, number, until)
    gone = [key for key, row in rows.items() if row is None]
    if gone:
        forget(tables, gone)
    tables.insert(PUT, [row for row in rows.values() if row is not None])
    return tuple(written)


def is_erased(tables: Tables, put: Put, now: float) -> bool:
    """Return whether the version that a document builds on was erased."""
    found = get(tables, erasure_of(put.key), now) if put.seen else None
    return found is not None and put.seen <= int(found[0])


def erase(tables: Tables, keys: Sequence[str], now: float) -> None:
    """Delete documents; for sessions, record up to which version they were erased."""
    for key in keys:
        _, last = _versions(tables, key, now)
        forget(tables, [key])
        if streams_of_document(key):
            put(tables, [Put(erasure_of(key), b"%d" % last, ttl=ERASED_FOR)], now)
            tables.execute(FORGET_USER, (sought(key),))


def forget(tables: Tables, keys: Sequence[str]) -> None:
    """Delete documents, if they exist."""
    versions = [version for (version,) in tables.among(FORGET, [sought(key) for key in keys])]
    if versions:
        tables.execute(GO, (max(versions), max(versions)))


def scan(tables: Tables, prefix: str, after: str, limit: int, now: float) -> list[str]:
    """Return the keys with a prefix, sorted."""
    asked = (sought(prefix), sought(after), now, limit)
    found = [key for (key,) in tables.execute(SCAN, asked)]
    return list(takewhile(lambda key: key.startswith(prefix), found))


def sweep(tables: Tables, now: float) -> None:
    """Delete expired documents and the streams that belong to them."""
    (version,) = tables.execute(OLD, (now,)).fetchone()
    if version is not None:
        tables.execute(GO, (version, version))
        gone = [key for (key,) in tables.execute(SWEEP, (now,))]
        StreamLog(tables).forget([name for key in gone for name in streams_of_document(key)])
        sql_sessions.forget(tables, gone)


def _versions(tables: Tables, key: str, now: float) -> tuple[int, int]:
    """Return the version of a document, 0 if there is none, and the highest version used."""
    row = tables.execute(VERSIONS, (now, sought(key))).fetchone()
    if row is None:
        (gone,) = tables.execute(GONE).fetchone()
        return 0, gone
    version, alive = row
    return version if alive else 0, version
