"""Translates errors of SQLite and of the disk, and reports what a damaged file still holds."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from urllib.parse import quote

from msgspec import MsgspecError

from poolhand.errors import Corrupt, PoolhandError, ReadOnly, StoreError, Unavailable
from poolhand.stores.sql.tables import cannot_be_kept, known_already

QUICK_BYTES = 16 * 2**20  # checked whenever the file is opened: some 40 ms
SURVEY_BYTES = 256 * 2**20  # checked once damage is known
MOST_PROBLEMS = 100
DAMAGE = "*** in database"  # other findings of a check are about values, which may be a user's own

BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
DISK = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL})
DENIED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})
BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
KNOWN_ID = "poolhand_jobs.id"  # the column's name in an error
NO_HEAD = (
    "it is not a SQLite database; nothing was changed. Name another file, or restore this"
    " one from a backup"
)
NO_RIGHT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def code_of(error: Exception) -> int:
    """Return SQLite's primary error code, 0 for other errors."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else 0


def is_busy(error: Exception) -> bool:
    """Return whether another connection held the file."""
    return code_of(error) in BUSY


def wants_room(error: BaseException) -> bool:
    """Return whether a file could not grow: checkpointing the log may make room."""
    code = getattr(error, "sqlite_errorcode", None)
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)


def as_store_error(error: Exception, path: str, *, writing: bool = True) -> StoreError | None:
    """Return the error to raise instead of SQLite's; None if it indicates a bug."""
    code = code_of(error)
    name = getattr(error, "sqlite_errorname", "")
    what = f"{path}: {error} ({name})"
    if code in BUSY:
        return Unavailable(f"{what}: another program holds the file; try again")
    if code in DISK and writing:
        return ReadOnly(
            f"{what}: no new jobs are accepted until this is fixed: free some space if the disk is"
            " full, or repair the disk; poolhand retries the write by itself"
        )
    if code in DISK:
        return Unavailable(f"{what}: the disk cannot read it; check the disk")
    if code in DENIED:
        return ReadOnly(f"{what}: allow this user to write to the file and to its folder")
    if code == sqlite3.SQLITE_CANTOPEN and os.path.isfile(path) and not _may_write(path):
        return ReadOnly(f"{what}: allow this user to write to the file and to its folder")
    if code == sqlite3.SQLITE_CANTOPEN:
        return Unavailable(f"{what}: it must be a file that this user may read and write")
    if code == sqlite3.SQLITE_NOTADB:
        return Corrupt(f"{what}: {NO_HEAD}")
    if code in BROKEN:
        return Corrupt(f"{what}: it is damaged; nothing was changed")
    return None


def of_system(error: OSError, path: str) -> StoreError:
    """Return the error to raise instead of an OSError about a path."""
    what = f"{path}: {os.strerror(error.errno or 0)}"
    folder = os.path.dirname(path)
    if error.errno in FULL_DISK:
        return ReadOnly(f"{what}: no new jobs are accepted until there is free space")
    if error.errno in NO_RIGHT:
        return ReadOnly(f"{what}: allow this user to write to the folder {folder}")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        if os.path.isdir(folder):
            return Unavailable(f"{what}: no file can be created in {folder}; name another folder")
        return Unavailable(f"{what}: there is no folder {folder}; create it, or name another")
    return Unavailable(what)


def translate(error: Exception, path: str) -> Exception:
    """Translate an error for the caller of a verb."""
    if isinstance(error, PoolhandError):
        return error
    if isinstance(error, sqlite3.IntegrityError) and KNOWN_ID in str(error):
        return known_already()
    if isinstance(error, MsgspecError | sqlite3.IntegrityError):
        return Corrupt(
            f"{path}: a row cannot be decoded ({error}); another program wrote to the file, or it"
            " is damaged: `poolhand doctor` says what is wrong"
        )
    if isinstance(error, OverflowError | ValueError | sqlite3.DataError):
        return cannot_be_kept(error)
    return error


def look(connection: sqlite3.Connection, path: str) -> None:
    """Raise Corrupt if a small file is damaged; a large one shows damage when it is read."""
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        found = list(problems(connection)) if _size(connection) <= QUICK_BYTES else []
    except sqlite3.DatabaseError as error:
        if code_of(error) != sqlite3.SQLITE_CORRUPT:
            raise
        found = [str(error)]
    if found:
        raise Corrupt(f"{path} is damaged: {found[0]}. {survey(connection, path)}")


def survey(connection: sqlite3.Connection, path: str) -> str:
    """Return how bad the damage is, what can still be read, and what to do; change nothing."""
    advice = (
        f"Nothing was changed. Stop all processes that use it, copy {path} and {path}-wal if there"
        f" is one, then restore a backup, or save what can be read with `sqlite3 {path} .recover`"
    )
    try:
        if _size(connection) > SURVEY_BYTES:
            return f"It is too large to be checked here. {advice}"
        count = len(list(problems(connection)))
        good, bad = _tables(connection)
    except sqlite3.Error as error:
        return f"Not even its list of tables can be read ({error}). {advice}"
    many = f"{count} or more problems" if count >= MOST_PROBLEMS else f"{count} problem(s)"
    return (
        f"A check found {many}. Tables that can be read: {', '.join(good) or 'none'};"
        f" that cannot: {', '.join(bad) or 'none'}. {advice}"
    )


def expect_file(path: str) -> None:
    """Raise if a path is no place for a store, before a file is made beside it."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        # It is made, or SQLite says what is wrong.
        return
    if stat.S_ISDIR(mode):
        raise Unavailable(f"{path!r} is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        # SQLite would wait for ever for the other end of a pipe.
        raise Unavailable(f"{path!r} is a pipe, a socket or a device; name a regular file")
    if not os.path.exists(f"{path}-lock"):
        _expect_head(path)


def _expect_head(path: str) -> None:
    """Raise if a file, which was no store so far, is none of SQLite.

    SQLite reads its head: if this process opened and closed the file itself, the system would drop
    all locks that connections of this process have on it.
    """
    try:
        with contextlib.closing(sqlite3.connect(uri(path, "ro"), timeout=0, uri=True)) as found:
            found.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        if code_of(error) == sqlite3.SQLITE_NOTADB:
            raise Corrupt(f"{path}: {NO_HEAD}") from error


def reader(path: str) -> sqlite3.Connection:
    """Return a read-only connection to an existing file, which makes no checkpoint on closing."""
    made = sqlite3.connect(uri(path, "ro"), uri=True, isolation_level=None)
    with contextlib.suppress(sqlite3.Error):
        # Only a query makes the connection take its lock on the file.
        made.execute("SELECT 1 FROM sqlite_master").fetchone()
    return made


def uri(path: str, mode: str) -> str:
    """Return the URI that opens an existing file and creates none."""
    return f"file:{quote(os.fsencode(path))}?mode={mode}"


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)


def _size(connection: sqlite3.Connection) -> int:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int(pages) * int(size)


def problems(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the problems of a file's pages; the check itself may fail because of them."""
    try:
        for (text,) in connection.execute(f"PRAGMA quick_check({MOST_PROBLEMS})"):
            if text.startswith(DAMAGE):
                yield from (line for line in text.splitlines() if not line.startswith(DAMAGE))
    except sqlite3.DatabaseError as error:
        if code_of(error) not in BROKEN:
            raise
        yield str(error)


def _tables(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    good, bad = [], []
    for (name,) in names.fetchall():
        quoted = name.replace('"', '""')
        try:
            # Row by row: a count could be answered from an index.
            rows = sum(1 for _ in connection.execute(f'SELECT * FROM "{quoted}" NOT INDEXED'))  # noqa: S608
        except sqlite3.DatabaseError:
            bad.append(name)
        else:
            good.append(f"{name} ({rows} rows)")
    return good, bad
