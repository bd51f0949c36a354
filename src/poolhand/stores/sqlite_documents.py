"""The documents of a SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from poolhand.contract import Put

GET = "SELECT value, version FROM poolhand_documents WHERE key = ? AND (until IS NULL OR until > ?)"
VERSION = "SELECT version FROM poolhand_documents WHERE key = ? AND (until IS NULL OR until > ?)"
PUT = "INSERT OR REPLACE INTO poolhand_documents (key, value, version, until) VALUES (?, ?, ?, ?)"
DELETE = "DELETE FROM poolhand_documents WHERE key = ?"
SCAN = """
SELECT key FROM poolhand_documents
WHERE key >= ? AND key > ? AND (until IS NULL OR until > ?) ORDER BY key
"""
SWEEP = "DELETE FROM poolhand_documents WHERE until <= ?"


def get(connection: Connection, key: str, now: float) -> tuple[bytes, int] | None:
    """Return a document and its version."""
    row: tuple[bytes, int] | None = connection.execute(GET, (key, now)).fetchone()
    return row


def put(connection: Connection, puts: Sequence[Put], now: float) -> bool:
    """Write all of these, or none."""
    versions: dict[str, int] = {}
    rows = []
    for one in puts:
        version = versions.get(one.key)
        if version is None:
            version = _version(connection, one.key, now)
        if one.expect not in (None, version):
            return False
        versions[one.key] = version + 1
        until = None if one.ttl is None else now + one.ttl
        rows.append((one.key, one.value, version + 1, until))
    connection.executemany(PUT, rows)
    return True


def delete(connection: Connection, key: str, expect: int | None, now: float) -> bool:
    """Delete a document; tell whether it was there, of that version."""
    version = _version(connection, key, now)
    if not version or expect not in (None, version):
        return False
    connection.execute(DELETE, (key,))
    return True


def scan(connection: Connection, prefix: str, after: str, limit: int, now: float) -> list[str]:
    """Return keys that begin so, sorted."""
    found: list[str] = []
    for (key,) in connection.execute(SCAN, (prefix, after, now)):
        if len(found) >= limit or not key.startswith(prefix):
            break
        found.append(key)
    return found


def sweep(connection: Connection, now: float) -> None:
    """Let go of what has outlived its time."""
    connection.execute(SWEEP, (now,))


def _version(connection: Connection, key: str, now: float) -> int:
    row = connection.execute(VERSION, (key, now)).fetchone()
    return 0 if row is None else row[0]
