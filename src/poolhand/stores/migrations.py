"""The schema of a store, as numbered steps that go forward only."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from msgspec import Struct

from poolhand.errors import Corrupt, SchemaTooNew

STEP = re.compile(r"(\d{4})_(\w+)\.sql")
TABLE = """
CREATE TABLE IF NOT EXISTS poolhand_schema (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at TEXT NOT NULL
)
"""
NEWEST = "SELECT number FROM poolhand_schema ORDER BY number DESC LIMIT 1"


class Step(Struct, frozen=True):
    """One step: what brings the schema from the number before to this one."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@cache
def steps(kind: str = "sqlite", folder: Traversable | None = None) -> tuple[Step, ...]:
    """Return the steps this poolhand knows for a kind of database, in their order."""
    found = []
    for file in (folder or files("poolhand.stores") / "schema" / kind).iterdir():
        if match := STEP.fullmatch(file.name):
            # As text, so that a checkout with other line ends has the same checksum.
            text = "\n".join(file.read_text(encoding="utf-8").splitlines())
            found.append(Step(int(match[1]), match[2], text))
    found.sort(key=lambda step: step.number)
    assert [step.number for step in found] == list(range(1, len(found) + 1))
    return tuple(found)


def migrate(connection: sqlite3.Connection, known: Sequence[Step], path: str, at: datetime) -> int:
    """Take the steps that are missing, each whole or not at all; return how many.

    The caller holds the lock. Raises SchemaTooNew and Corrupt before anything is changed.
    """
    taken = applied(connection)
    check(taken, known, path)
    connection.execute(TABLE)
    for step in known[len(taken) :]:
        _take(connection, step, at)
    return len(known) - len(taken)


def applied(connection: sqlite3.Connection) -> dict[int, tuple[str, str]]:
    """Return name and checksum of the steps a file has behind it, by number."""
    there = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'poolhand_schema'"
    if connection.execute(there).fetchone() is None:
        return {}
    rows = connection.execute("SELECT number, name, checksum FROM poolhand_schema ORDER BY number")
    return {number: (name, checksum) for number, name, checksum in rows}


def check(taken: dict[int, tuple[str, str]], known: Sequence[Step], path: str) -> None:
    """Refuse a file that is newer than what is known, or was made by other steps."""
    if taken and max(taken) > len(known):
        raise too_new(path, max(taken), len(known))
    for step in known[: len(taken)]:
        if step.number not in taken:
            raise Corrupt(
                f"{path}: its schema lacks step {step.number} ({step.name}) though later ones were"
                " taken; nothing was changed. Restore a backup, or use another store"
            )
        if taken[step.number][1] != step.checksum:
            raise Corrupt(
                f"{path}: step {step.number} ({taken[step.number][0]}) of its schema is not the one"
                f" this poolhand has ({step.name}); nothing was changed. Use the version of"
                " poolhand that wrote it, or another store"
            )


def too_new(path: str, has: int, knows: int) -> SchemaTooNew:
    """Say that a file was written by a newer poolhand."""
    return SchemaTooNew(
        f"{path} has schema {has}, this poolhand knows schemas up to {knows}: run the newer version"
        " of poolhand that wrote it, or use another store; nothing was changed"
    )


def _take(connection: sqlite3.Connection, step: Step, at: datetime) -> None:
    try:
        # Begun inside: a script commits what was begun outside before it runs.
        connection.executescript(f"BEGIN IMMEDIATE;{step.text}")
        connection.execute(
            "INSERT INTO poolhand_schema VALUES (?, ?, ?, ?)",
            (step.number, step.name, step.checksum, at.isoformat()),
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
