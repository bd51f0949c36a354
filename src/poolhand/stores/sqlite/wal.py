"""The write-ahead log beside a SQLite file: how long it is, and when it is worked off."""

from __future__ import annotations

import contextlib
import os
import sqlite3

WORTH_WHILE = 1000  # pages after which the log is worked off
VERY_LARGE = 16_000  # pages after which it is also made short again
HEAD = 32
FRAME_HEAD = 24


class Wal:
    """Looks at the log without asking SQLite, which tells its length only by working it off.

    Who works it off holds the lock of the file. To open and close the log is harmless; with any
    other file of SQLite that would take away the locks this process has on it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd: int | None = None
        self._salt = b""
        self._due = WORTH_WHILE

    def open(self) -> None:
        """Keep the log at hand; it stays the same file while a connection is open."""
        self._fd = os.open(self.path, os.O_RDONLY)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def size(self) -> int:
        """Return how many bytes the file takes, in use or not."""
        try:
            return os.stat(self.path).st_size
        except FileNotFoundError:
            return 0

    def tidy(self, connection: sqlite3.Connection) -> bool:
        """Work the log off if that is worth while; what was committed stands in any case."""
        with contextlib.suppress(OSError):
            return self._tidy(connection)
        return False

    def _tidy(self, connection: sqlite3.Connection) -> bool:
        if self._fd is None:
            return False
        head = os.pread(self._fd, HEAD, 0)
        page_size, salt = int.from_bytes(head[8:12]), head[16:24]
        if salt != self._salt:
            # Written from its beginning again.
            self._salt, self._due = salt, WORTH_WHILE
        frame = os.pread(self._fd, 16, HEAD + (self._due - 1) * (FRAME_HEAD + page_size))
        # What older rounds have left behind is salted otherwise.
        if frame[8:16] != salt:
            return False
        self._work_off(connection)
        return True

    def shorten(self, connection: sqlite3.Connection) -> None:
        """Work all of the log off, as far as others who read allow it."""
        # What could not be worked off is still in the log.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _work_off(self, connection: sqlite3.Connection) -> None:
        pages = self._due
        # The commit stands whatever comes of this; who writes next is told if the disk is broken.
        with contextlib.suppress(sqlite3.Error):
            row = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            pages = max(pages, row[1])
        # Not again after each commit while somebody reads an old state.
        self._due = pages + WORTH_WHILE
        if pages > VERY_LARGE:
            self.shorten(connection)
