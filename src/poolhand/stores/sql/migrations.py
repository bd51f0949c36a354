"""The schema of a store as numbered steps that only go forward.

During a rollout, processes of the previous version use tables that a newer version has changed.
That works only if a step adds something that older code need not know: a table, an index, a column
that may be left out. Such a step declares it in its first line,

    -- compatible with 3

meaning that code which knows the schema up to 3 still works. The number is stored with the step, so
that older code finds it when it opens the store. A step without it refuses all older code with
SchemaTooNew.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from msgspec import Struct

from poolhand.errors import Corrupt, SchemaTooNew

STEP = re.compile(r"(\d{4})_(\w+)\.sql")
CREATED = re.compile(r"^CREATE (?:UNIQUE )?(?:TABLE|INDEX|SEQUENCE) (\w+)", re.MULTILINE)
COMPATIBLE = re.compile(r"-- compatible with (\d+)$", re.MULTILINE)
TABLE = """
CREATE TABLE IF NOT EXISTS poolhand_schema (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at TEXT NOT NULL
)
"""
# Files of the first schema lack the column `compatible`; without a value, a step requires code
# that knows it.
PRESENT = "SELECT lower(name) FROM sqlite_master"
COLUMNS = "SELECT name FROM pragma_table_info('poolhand_schema')"
OF_STEPS = {"number", "name", "checksum", "applied_at"}
WITH_COMPATIBLE = "ALTER TABLE poolhand_schema ADD COLUMN compatible INTEGER"
TAKEN = "INSERT INTO poolhand_schema VALUES (?, ?, ?, ?, ?)"
OLDEST_CODE = "SELECT max(coalesce(compatible, number)) FROM poolhand_schema"


IN_FILE = "name another file for the store (sqlite:///jobs.db), or rename that table"


class Migration(Struct, frozen=True):
    """One step, from the previous schema number to this one."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def compatible(self) -> int:
        """The oldest schema whose code still works after this step."""
        said = COMPATIBLE.match(self.text)
        return self.number if said is None else int(said[1])

    @property
    def creates(self) -> list[str]:
        """The names of the tables, indexes and sequences that this step creates."""
        return CREATED.findall(self.text)


class Taken(Struct, frozen=True):
    """A step that was applied to a store."""

    name: str
    checksum: str
    compatible: int


@cache
def steps(kind: str = "sqlite", folder: Traversable | None = None) -> tuple[Migration, ...]:
    """Return the steps that this poolhand knows for a kind of database, in order."""
    found = []
    for file in (folder or files("poolhand.stores") / kind / "schema").iterdir():
        if match := STEP.fullmatch(file.name):
            # As text, so that a checkout with other line ends has the same checksum.
            text = "\n".join(file.read_text(encoding="utf-8").splitlines())
            found.append(Migration(int(match[1]), match[2], text))
    found.sort(key=lambda step: step.number)
    assert [step.number for step in found] == list(range(1, len(found) + 1))
    return tuple(found)


def migrate(
    connection: sqlite3.Connection, known: Sequence[Migration], path: str, at: datetime
) -> int:
    """Apply the missing steps, each in full or not at all; return how many.

    The caller holds the lock. Raises SchemaTooNew and Corrupt before anything is changed.
    """
    inspect(connection, known, path)
    taken = applied(connection)
    connection.execute(TABLE)
    if "compatible" not in _columns(connection):
        connection.execute(WITH_COMPATIBLE)
    for step in known[len(taken) :]:
        _take(connection, step, at)
    return max(0, len(known) - len(taken))


def inspect(connection: sqlite3.Connection, known: Sequence[Migration], path: str) -> None:
    """Raise if this code cannot use a file; change nothing."""
    present = {name for (name,) in connection.execute(PRESENT)}
    if (columns := _columns(connection)) and not columns >= OF_STEPS:
        raise foreign(path, "poolhand_schema", IN_FILE)
    taken = applied(connection)
    check(taken, known, path)
    check_free(known[len(taken) :], present, path, IN_FILE)


def applied(connection: sqlite3.Connection) -> dict[int, Taken]:
    """Return the steps that were applied to a file, by number."""
    columns = _columns(connection)
    if not columns >= OF_STEPS:
        return {}
    compatible = "coalesce(compatible, number)" if "compatible" in columns else "number"
    text = f"SELECT number, name, checksum, {compatible} FROM poolhand_schema ORDER BY number"  # noqa: S608
    return {number: Taken(*facts) for number, *facts in connection.execute(text)}


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute(COLUMNS)}


def check(taken: Mapping[int, Taken], known: Sequence[Migration], where: str) -> None:
    """Raise if this code cannot use a store, or if other steps created it."""
    newest = max(taken, default=0)
    if max((one.compatible for one in taken.values()), default=0) > len(known):
        raise too_new(where, newest, len(known))
    for step in known[: len(taken)]:
        if step.number not in taken:
            raise Corrupt(
                f"{where}: its schema lacks step {step.number} ({step.name}) although later"
                " ones were applied; nothing was changed. Restore a backup, or use another store"
            )
        if taken[step.number].checksum != step.checksum:
            raise Corrupt(
                f"{where}: step {step.number} ({taken[step.number].name}) of its schema is not the"
                f" one this poolhand has ({step.name}); nothing was changed. Use the version of"
                " poolhand that wrote it, or another store"
            )


def check_free(
    missing: Sequence[Migration], present: Collection[str], where: str, cure: str
) -> None:
    """Raise if another program already uses a name that the missing steps create."""
    for step in missing:
        for name in step.creates:
            if name in present:
                raise foreign(where, name, cure)


def foreign(where: str, name: str, cure: str) -> Corrupt:
    """Return the error for a table of another program that has one of our names."""
    return Corrupt(
        f"{where}: there is a table or index {name!r} already which poolhand has no record of"
        f" having made (in poolhand_schema); nothing was changed. It belongs to another program:"
        f" {cure}."
        " If it is poolhand's own and only that record was lost, restore a backup"
    )


def too_new(path: str, has: int, knows: int) -> SchemaTooNew:
    """Return the error for a file that a newer poolhand has written."""
    return SchemaTooNew(
        f"{path} has schema {has}, this poolhand knows schemas up to {knows}: run the newer version"
        " of poolhand that wrote it, or use another store; nothing was changed"
    )


def _take(connection: sqlite3.Connection, step: Migration, at: datetime) -> None:
    try:
        # BEGIN is part of the script: executescript commits an open transaction before it runs.
        connection.executescript(f"BEGIN IMMEDIATE;{step.text}")
        facts = (step.number, step.name, step.checksum, at.isoformat(), step.compatible)
        connection.execute(TAKEN, facts)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
