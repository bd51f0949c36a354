"""The documents of a SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from poolhand.contract import Put
from poolhand.stores.sqlite_rows import sought

GET = "SELECT value, version FROM poolhand_documents WHERE key = ? AND (until IS NULL OR until > ?)"
VERSIONS = "SELECT version, until IS NULL OR until > ? FROM poolhand_documents WHERE key = ?"
# New documents begin behind the highest version of those that are gone: none of a key comes twice.
GONE = "SELECT documents FROM poolhand_counters"
GO = "UPDATE poolhand_counters SET documents = max(documents, ?)"
PUT = "INSERT OR REPLACE INTO poolhand_documents (key, value, version, until) VALUES (?, ?, ?, ?)"
DELETE = "DELETE FROM poolhand_documents WHERE key = ?"
SCAN = """
SELECT key FROM poolhand_documents
WHERE key >= ? AND key > ? AND (until IS NULL OR until > ?) ORDER BY key
"""
OLD = "SELECT max(version) FROM poolhand_documents WHERE until <= ?"
SWEEP = "DELETE FROM poolhand_documents WHERE until <= ?"


def get(connection: Connection, key: str, now: float) -> tuple[bytes, int] | None:
    """Return a document and its version."""
    row: tuple[bytes, int] | None = connection.execute(GET, (sought(key), now)).fetchone()
    return row


def put(connection: Connection, puts: Sequence[Put], now: float) -> bool:
    """Write all of these, or none."""
    versions: dict[str, int] = {}
    rows = []
    for one in puts:
        version = last = versions.get(one.key, 0)
        if not version:
            version, last = _versions(connection, one.key, now)
        if one.expect not in (None, version):
            return False
        versions[one.key] = last + 1
        until = None if one.ttl is None else now + one.ttl
        rows.append((one.key, one.value, last + 1, until))
    connection.executemany(PUT, rows)
    return True


def delete(connection: Connection, key: str, expect: int | None, now: float) -> bool:
    """Delete a document; tell whether it was there, of that version."""
    version, _ = _versions(connection, key, now)
    if not version or expect not in (None, version):
        return False
    connection.execute(GO, (version,))
    connection.execute(DELETE, (key,))
    return True


def scan(connection: Connection, prefix: str, after: str, limit: int, now: float) -> list[str]:
    """Return keys that begin so, sorted."""
    found: list[str] = []
    for (key,) in connection.execute(SCAN, (sought(prefix), sought(after), now)):
        if len(found) >= limit or not key.startswith(prefix):
            break
        found.append(key)
    return found


def sweep(connection: Connection, now: float) -> None:
    """Let go of what has outlived its time."""
    (version,) = connection.execute(OLD, (now,)).fetchone()
    if version is not None:
        connection.execute(GO, (version,))
        connection.execute(SWEEP, (now,))


def _versions(connection: Connection, key: str, now: float) -> tuple[int, int]:
    """Return the version of a document, 0 if there is none, and one that no later one may have."""
    row = connection.execute(VERSIONS, (now, sought(key))).fetchone()
    if row is None:
        (gone,) = connection.execute(GONE).fetchone()
        return 0, gone
    version, alive = row
    return version if alive else 0, version
