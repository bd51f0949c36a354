"""A lock between processes: an exclusive flock on a file beside the store."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable
from weakref import WeakSet

from poolhand.stores.sqlite.place import Rights

LOCK_SECONDS = 10.0
FIRST_PAUSE = 0.001
LAST_PAUSE = 0.02
TURN_AFTER = 0.025  # seconds of waiting after which a waiter takes the turn
POLITE = 0.1  # seconds after which the turn of another is ignored: it may be stopped


class LockPatience:
    """How long to retry: with growing pauses, up to a time limit."""

    def __init__(self, clock: Callable[[], float], limit: float) -> None:
        self._clock = clock
        self._since = clock()
        self._limit = limit
        self._pause = FIRST_PAUSE

    def waited(self) -> float:
        return self._clock() - self._since

    def pause(self) -> float | None:
        """Return the seconds until the next try, None when the limit is reached."""
        left = self._limit - self.waited()
        if left <= 0:
            return None
        pause, self._pause = self._pause, min(self._pause * 1.5, LAST_PAUSE)
        # Not less than the first pause: time must pass, or this never ends.
        return min(pause, max(left, FIRST_PAUSE))


class FileLock:
    """A lock that the kernel releases when its holder dies; nothing is awaited under it.

    A process that polls now and then would starve beside one that takes the lock again at once. So
    there is a second lock, for the turn: a process that has waited for a while takes it, and
    processes that find it taken hold back.
    """

    def __init__(self, path: str, make: Callable[[str], object] | None = None) -> None:
        """Create a lock on a file; `make` creates the file if it is missing."""
        self.path = path
        self._make = Rights(path).make if make is None else make
        self._fd: int | None = None
        self._turn: int | None = None
        self._file = (0, 0)
        self._first = False
        _locks.add(self)

    def take(self, patience: LockPatience) -> bool:
        """Take the lock if it is free and no waiter has the turn; after an OSError hold none."""
        try:
            if self._fd is None:
                self._open()
            return self._try(patience)
        except BaseException:
            self.close()
            raise

    def release(self) -> None:
        """Release the lock."""
        if self._fd is not None:
            # Unlocked explicitly: after a mere close, a fork would still hold the lock.
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def pause(self, patience: LockPatience) -> float | None:
        """Return the seconds until the next try, None when patience has run out."""
        pause = patience.pause()
        if pause is None:
            self._leave_turn()
            return None
        return FIRST_PAUSE if self._first else pause

    async def wait(self, patience: LockPatience) -> bool:
        """Take the lock when it becomes free; return False when patience has run out."""
        try:
            while not self.take(patience):
                pause = self.pause(patience)
                if pause is None:
                    return False
                await asyncio.sleep(pause)
        finally:
            self._leave_turn()
        return True

    def close(self) -> None:
        """Release the lock and close the files, which stay: others may be waiting on them."""
        for fd in (self._fd, self._turn):
            if fd is not None:
                with contextlib.suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close the files without unlocking: the process that shares them may hold the lock."""
        for fd in (self._fd, self._turn):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._fd = self._turn = None
        self._first = False

    def _try(self, patience: LockPatience) -> bool:
        if not self._may_try(patience):
            return False
        taken = _flock(self._fd, fcntl.LOCK_EX)
        if taken:
            self._leave_turn()
        if not self._in_place():
            # The file was removed: a lock on it is invisible to other processes.
            self.close()
            return False
        return taken

    def _open(self) -> None:
        self._fd = self._opened(self.path)
        seen = os.fstat(self._fd)
        self._file = seen.st_dev, seen.st_ino
        self._turn = self._opened(f"{self.path}-turn")

    def _opened(self, path: str) -> int:
        # Read access is enough for a lock, and may be all that another user's file allows.
        try:
            return os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self._make(path)
            return os.open(path, os.O_RDONLY)

    def _may_try(self, patience: LockPatience) -> bool:
        waited = patience.waited()
        if waited > TURN_AFTER:
            self._first = self._first or _flock(self._turn, fcntl.LOCK_EX)
            return self._first or waited > POLITE
        if not _flock(self._turn, fcntl.LOCK_SH):
            return False
        _unlock(self._turn)
        return True

    def _leave_turn(self) -> None:
        if self._first:
            _unlock(self._turn)
            self._first = False

    def _in_place(self) -> bool:
        try:
            seen = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (seen.st_dev, seen.st_ino) == self._file


def _flock(fd: int | None, how: int) -> bool:
    assert fd is not None
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(fd: int | None) -> None:
    assert fd is not None
    fcntl.flock(fd, fcntl.LOCK_UN)


def _forget_all() -> None:
    for lock in list(_locks):
        lock.forget()


_locks: WeakSet[FileLock] = WeakSet()
# A lock is held while any process has its file open: a fork would hold it after its parent died.
os.register_at_fork(after_in_child=_forget_all)
