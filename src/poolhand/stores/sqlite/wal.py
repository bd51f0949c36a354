"""The write-ahead log beside a SQLite file: its length, and when it is checkpointed."""

from __future__ import annotations

import contextlib
import os
import sqlite3

WORTH_WHILE = 1000  # pages after which the log is checkpointed
VERY_LARGE = 16_000  # pages after which it is also truncated
HEAD = 32
FRAME_HEAD = 24


class Wal:
    """Reads the log without SQLite, which reports its length only by making a checkpoint.

    A checkpoint requires the lock of the file. Opening and closing the log is harmless; with any
    other file of SQLite it would release the locks that this process has on it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd: int | None = None
        self._salt = b""
        self._due = WORTH_WHILE

    def open(self) -> None:
        """Keep the log open; it stays the same file while a connection is open."""
        self._fd = os.open(self.path, os.O_RDONLY)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def size(self) -> int:
        """Return the size of the file in bytes, in use or not."""
        try:
            return os.stat(self.path).st_size
        except FileNotFoundError:
            return 0

    def tidy(self, connection: sqlite3.Connection) -> bool:
        """Checkpoint the log if it is long enough; a failure does not undo the commit."""
        with contextlib.suppress(OSError):
            return self._tidy(connection)
        return False

    def _tidy(self, connection: sqlite3.Connection) -> bool:
        if self._fd is None:
            return False
        head = os.pread(self._fd, HEAD, 0)
        page_size, salt = int.from_bytes(head[8:12]), head[16:24]
        if salt != self._salt:
            # SQLite has started again at the beginning of the log.
            self._salt, self._due = salt, WORTH_WHILE
        frame = os.pread(self._fd, 16, HEAD + (self._due - 1) * (FRAME_HEAD + page_size))
        # Frames left from earlier rounds have another salt.
        if frame[8:16] != salt:
            return False
        self._work_off(connection)
        return True

    def shorten(self, connection: sqlite3.Connection) -> None:
        """Checkpoint and truncate the log, as far as concurrent readers allow it."""
        # Pages that were not checkpointed are still in the log.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _work_off(self, connection: sqlite3.Connection) -> None:
        pages = self._due
        # The commit stands whatever happens here; the next write raises if the disk is broken.
        with contextlib.suppress(sqlite3.Error):
            row = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            pages = max(pages, row[1])
        # Not again after each commit while another process reads an old state.
        self._due = pages + WORTH_WHILE
        if pages > VERY_LARGE:
            self.shorten(connection)
