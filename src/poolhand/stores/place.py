"""Whether the files of a SQLite store are still those that were opened.

SQLite trusts what it has open: with its log gone, or another content under its log, it would lose
or mix what was committed. Nobody but a checkpoint writes to the file itself, so that whatever it
keeps there only gets younger.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import struct

from poolhand.errors import Corrupt, Unavailable
from poolhand.stores import faults

LOCKS = "/proc/locks"
ASIDE = "-aside"
NOTE = struct.Struct("<d")
OLDER = "it is older than what was there"


class LogGone(Corrupt):
    """The log was removed, or another one put in its place."""


class Replaced(Corrupt):
    """Another content was put under the log."""


class Place:
    """What was found where the file is; to look again costs two calls of the system.

    All who share a file write down, in the file of its lock, how old its content was last seen.
    """

    def __init__(self, path: str, notes: str) -> None:
        self.path = path
        self._log = f"{path}-wal"
        self._notes = notes
        self._file = self._logged = (0, 0)
        self._written = 0
        self._base: tuple[float, int] | None = None

    def remember(self) -> None:
        """Take what is there for what belongs there."""
        self._file, self._written = self._seen()
        self._logged = _numbers(self._log)
        self._base = self._read()
        self._note()

    def note(self) -> None:
        """Take what a checkpoint of our own has written for what belongs there."""
        _, self._written = self._seen()
        self._base = self._read()
        self._note()

    def expect_sound(self) -> None:
        """Refuse to open what was exchanged under those who have it open."""
        base = self._read()
        is_older = base is not None and base[0] < self._noted()
        # A crash of the machine may take back what was not yet needed: then the log has it.
        if (is_older or not self.has_log) and _is_locked(f"{self.path}-shm"):
            raise Replaced(self._other(OLDER)) if is_older else LogGone(self._gone())

    def check(self, connection: sqlite3.Connection | None) -> None:
        """Raise if this is another file, if its log is gone, or if its content was replaced."""
        file, written = self._seen()
        if file != self._file:
            raise Unavailable(
                f"{self.path} was moved, removed or replaced while it was open; put it back, or"
                " start again to use what is there now"
            )
        if written != self._written:
            self._compare(connection)
            self._written = written
        if _numbers(self._log) != self._logged:
            raise LogGone(self._gone())

    @property
    def has_log(self) -> bool:
        """Whether there is a log, be it another one."""
        return os.path.exists(self._log)

    def set_log_aside(self) -> None:
        """Keep a log from being worked off into a content that it does not belong to.

        Emptied, as whoever lets go of the file last would work it off.
        """
        with contextlib.suppress(OSError):
            if _numbers(self._log) == self._logged and os.path.getsize(self._log):
                with contextlib.suppress(OSError):
                    shutil.copyfile(self._log, f"{self._log}{ASIDE}")
                    shutil.copymode(self._log, f"{self._log}{ASIDE}")
                os.truncate(self._log, 0)

    def _compare(self, connection: sqlite3.Connection | None) -> None:
        """Look whether the file was written by a checkpoint, which makes nothing older."""
        before, now = self._base, self._read()
        if now is None:
            # Unreadable without its log: a process may have been killed in the middle of a
            # checkpoint. SQLite repairs that, so it must not be taken for another content.
            return
        if before is not None and now[0] < max(before[0], self._noted()):
            raise Replaced(self._other(OLDER))
        if connection is not None and now[1] > _version(connection):
            raise Replaced(self._other("its pages are in another order"))
        self._base = now
        self._note()

    def _noted(self) -> float:
        try:
            notes = os.open(self._notes, os.O_RDONLY)
        except OSError:
            return 0.0
        try:
            return float(NOTE.unpack(os.pread(notes, NOTE.size, 0))[0])
        except (OSError, struct.error):
            return 0.0
        finally:
            os.close(notes)

    def _note(self) -> None:
        if self._base is None:
            return
        # Who may not, or cannot for want of space, knows it alone.
        with contextlib.suppress(OSError):
            notes = os.open(self._notes, os.O_WRONLY)
            try:
                os.pwrite(notes, NOTE.pack(self._base[0]), 0)
            finally:
                os.close(notes)

    def _read(self) -> tuple[float, int] | None:
        """Return the time that is written in the file itself, without its log, and its version."""
        # By SQLite: to open and close the file otherwise would take its locks away.
        uri = f"{faults.uri(self.path, 'ro')}&immutable=1"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as reader:
                (latest,) = reader.execute("SELECT latest FROM poolhand_clock").fetchone()
                return latest, _version(reader)
        except (sqlite3.Error, TypeError):
            return None

    def _seen(self) -> tuple[tuple[int, int], int]:
        try:
            seen = os.stat(self.path)
        except FileNotFoundError:
            return (0, 0), 0
        return (seen.st_dev, seen.st_ino), seen.st_mtime_ns

    def _gone(self) -> str:
        return (
            f"{self._log} was removed or replaced while {self.path} was open; nothing more is"
            " taken. Stop every process that uses it: what they wrote is put into the file when"
            " they end. Then start again"
        )

    def _other(self, why: str) -> str:
        return (
            f"another content was copied over {self.path} while it was open ({why}); nothing more"
            " is taken, and nothing is written to it. The log of the old content is kept as"
            f" {self._log}{ASIDE}. Stop every process that uses it, copy the backup again, and"
            " start again"
        )


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA schema_version").fetchone()[0])


def _numbers(path: str) -> tuple[int, int]:
    try:
        seen = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return seen.st_dev, seen.st_ino


def _is_locked(path: str) -> bool:
    """Tell whether a process has locked a part of a file, as far as the system tells."""
    _, number = _numbers(path)
    if not number:
        return False
    try:
        with open(LOCKS, encoding="utf-8", errors="replace") as file:
            fields = [line.split() for line in file]
    except OSError:
        return False
    places = [field for line in fields for field in line if field.count(":") == 2]
    return any(int(one.rpartition(":")[2]) == number for one in places)
