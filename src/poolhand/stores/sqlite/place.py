"""The files of a SQLite store: are they still those opened, who may use them, how long is the log?

SQLite trusts the files it has open: if its log is gone, or the content under its log was replaced,
it would lose or mix committed data. Only checkpoints write to the file itself, page by page, and a
process killed during a checkpoint leaves some pages new and others old. So only facts that a single
page holds are compared, as each page only gets newer: the schema version, which is in page 1, and
the clock, while its table is in the same page. Everything else proves nothing: refusing a healthy
store is worse than missing a replacement.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import struct
from typing import NamedTuple

from poolhand.errors import Corrupt, FileReplaced, Unavailable
from poolhand.stores.sqlite import errors as faults

LOCKS = "/proc/locks"
MOUNTS = "/proc/self/mountinfo"
SHARED_BYTE = "128"  # of the -shm file: every open connection holds a lock on it
ASIDE = "-aside"
# Versions that knew only the clock read and wrote the first field alone.
NOTE = struct.Struct("<dddqq")
OLDER = "it is older than what was there"
OTHER_ORDER = "its pages are in another order"
SCHEMA_VERSION = "PRAGMA schema_version"
# In one statement, so that all values are of one moment.
FIND_CLOCK = """
SELECT v.schema_version, t.rootpage, c.boot, c.offset, c.latest
FROM pragma_schema_version v, sqlite_master t, poolhand_clock c
WHERE t.type = 'table' AND t.name = 'poolhand_clock' AND c.id = 1
"""


class LogGone(Corrupt):
    """The log was removed or replaced."""


class FileClock(NamedTuple):
    """The row of the clock, the page it is in, and the schema version that says so."""

    version: int
    page: int
    boot: str
    offset: float
    latest: float


class Content(NamedTuple):
    """The content of the file without its log; `clock` is found by the file's own table list."""

    version: int
    clock: FileClock | None


class KnownPlace(NamedTuple):
    """A content that belongs there: no older one may follow."""

    latest: float  # 0: unknown
    offset: float
    schema: int  # the schema version, log included, when that clock was read
    version: int  # the schema version in page 1


NOTHING = KnownPlace(0.0, 0.0, 0, 0)


class FilePlace:
    """The files found at the store's path; a check costs two system calls.

    Processes that share a file record in its lock file which content they saw last.
    """

    def __init__(self, path: str, notes: str) -> None:
        self.path = path
        self._log = f"{path}-wal"
        self._notes = notes
        self._file = self._logged = (0, 0)
        self._written = 0
        self._known: KnownPlace | None = None
        self._may_note = True

    def remember(self, connection: sqlite3.Connection) -> None:
        """Accept the present files as those that belong there."""
        self._file, _ = self._seen()
        self._logged = _numbers(self._log)
        self._known = None
        # A note about a content that a backup has replaced since must not count any more.
        self._may_note = self._write_down(NOTHING)
        self.note(connection)

    def note(self, connection: sqlite3.Connection) -> None:
        """Accept the present content, as a checkpoint of this process has written it."""
        _, self._written = self._seen()
        content = self._read()
        with contextlib.suppress(sqlite3.Error):
            self._learn(content, _find_clock(connection))

    def expect_sound(self) -> None:
        """Raise if the files were replaced while processes had them open."""
        if not _is_locked(f"{self.path}-shm"):
            return
        if not self.has_log:
            raise LogGone(self._gone())
        with contextlib.closing(faults.reader(self.path)) as reader:
            try:
                self._expect_same(reader)
            except sqlite3.Error:
                # No proof; SQLite reports what it finds when the file is opened to write.
                return

    def check(self, connection: sqlite3.Connection | None) -> None:
        """Raise if this is another file, if its log is gone, or if its content was replaced."""
        file, written = self._seen()
        if file != self._file:
            raise Unavailable(
                f"{self.path} was moved, removed or replaced while it was open; put it back, or"
                " start again to use what is there now"
            )
        if written != self._written and connection is not None:
            self._expect_same(connection)
            self.note(connection)
            # Not the present value: later writes are compared next time.
            self._written = written
        if _numbers(self._log) != self._logged:
            raise LogGone(self._gone())

    @property
    def has_log(self) -> bool:
        """Whether there is a log, even if it is another one."""
        return os.path.exists(self._log)

    def set_log_aside(self) -> None:
        """Keep a log from being checkpointed into a content that it does not belong to.

        The log is emptied once it is copied, as the last connection to close would checkpoint it.
        """
        aside = f"{self._log}{ASIDE}"
        with contextlib.suppress(OSError):
            if _numbers(self._log) == self._logged and os.path.getsize(self._log):
                shutil.copyfile(self._log, aside)
                shutil.copymode(self._log, aside)
                os.truncate(self._log, 0)

    def _expect_same(self, connection: sqlite3.Connection) -> None:
        # Twice: another program may have been writing a page while it was read.
        if self._difference(connection) is not None:
            why = self._difference(connection)
            if why is not None:
                raise FileReplaced(self._other(why))

    def _difference(self, connection: sqlite3.Connection) -> str | None:
        """Return why the file cannot be the work of checkpoints, None if it can."""
        content = self._read()
        if content is None:
            return None
        # Read after the file: anything that a checkpoint has written there is visible by then.
        clock = _find_clock(connection)
        if clock is None:
            return None
        # A note from before a crash of the machine may be newer than what the disk kept.
        noted = self._noted()
        both = (self._known, noted if noted and noted.offset == clock.offset else None)
        for known in both:
            if known is not None and _is_older(content, known, clock):
                return OLDER
        return OTHER_ORDER if content.version > clock.version else None

    def _learn(self, content: Content | None, clock: FileClock | None) -> None:
        """Record which content belongs there, as far as it is certain."""
        if content is None or clock is None:
            return
        own, before = content.clock, self._known
        # The page may be one that the clock will move to: until then it holds something else.
        if (
            own is not None
            and (own.page, own.boot, own.offset) == (clock.page, clock.boot, clock.offset)
            and own.latest <= clock.latest
        ):
            known = KnownPlace(own.latest, clock.offset, clock.version, content.version)
        elif before is not None:
            known = before._replace(version=content.version)
        else:
            known = KnownPlace(0.0, clock.offset, clock.version, content.version)
        self._known = known
        self._write_down(known)

    def _write_down(self, known: KnownPlace) -> bool:
        # Without permission or disk space, only this process knows it.
        with contextlib.suppress(OSError):
            notes = os.open(self._notes, os.O_WRONLY)
            try:
                return os.pwrite(notes, NOTE.pack(known.latest, *known), 0) == NOTE.size
            finally:
                os.close(notes)
        return False

    def _noted(self) -> KnownPlace | None:
        if not self._may_note:
            return None
        try:
            notes = os.open(self._notes, os.O_RDONLY)
        except OSError:
            return None
        try:
            latest, *fields = NOTE.unpack(os.pread(notes, NOTE.size, 0))
        except (OSError, struct.error):
            return None
        finally:
            os.close(notes)
        known = KnownPlace(*fields)
        return known if known.latest == latest else None

    def _read(self) -> Content | None:
        # By SQLite: opening and closing the file in another way would release its locks.
        uri = f"{faults.uri(self.path, 'ro')}&immutable=1"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as reader:
                (version,) = reader.execute(SCHEMA_VERSION).fetchone()
                clock = None
                # Without its log, which has the other pages, even a healthy file can be unreadable.
                with contextlib.suppress(sqlite3.Error):
                    clock = _find_clock(reader)
                return Content(version, clock)
        except sqlite3.Error:
            return None

    def _seen(self) -> tuple[tuple[int, int], int]:
        try:
            seen = os.stat(self.path)
        except FileNotFoundError:
            return (0, 0), 0
        return (seen.st_dev, seen.st_ino), seen.st_mtime_ns

    def _gone(self) -> str:
        return (
            f"{self._log} was removed or replaced while {self.path} was open; no new jobs are"
            " accepted. Stop every process that uses it: what they wrote is put into the file when"
            " they end. Then start again"
        )

    def _other(self, why: str) -> str:
        return (
            f"another content was copied over {self.path} while it was open ({why}); no new jobs"
            " are accepted, and nothing is written to it. The log of the old content is kept as"
            f" {self._log}{ASIDE}. Stop every process that uses it, copy the backup again, and"
            " start again"
        )


def _find_clock(connection: sqlite3.Connection) -> FileClock | None:
    row = connection.execute(FIND_CLOCK).fetchone()
    # A page with another use may hold anything.
    return FileClock(*row) if row is not None and isinstance(row[-1], float) else None


def _is_older(content: Content, known: KnownPlace, clock: FileClock) -> bool:
    """Return whether page 1, or the clock with or without the log, is older than before."""
    if content.version < known.version or clock.latest < known.latest:
        return True
    own = content.clock
    # Under another schema the clock may be elsewhere, and its page may have another use.
    if own is None or own.page != clock.page or clock.version != known.schema:
        return False
    return own.latest < known.latest


def _numbers(path: str) -> tuple[int, int]:
    try:
        seen = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return seen.st_dev, seen.st_ino


def _is_locked(path: str) -> bool:
    """Return whether a process has the index of a log open, as far as the system reports it."""
    device, number = _numbers(path)
    if not number:
        return False
    try:
        with open(LOCKS, encoding="utf-8", errors="replace") as file:
            locks = [line.split() for line in file]
    except OSError:
        return False
    places = {
        f"{os.major(one):02x}:{os.minor(one):02x}:{number}" for one in (device, _mounted(path))
    }
    return any(
        "POSIX" in lock and lock[-1] == lock[-2] == SHARED_BYTE and places.intersection(lock)
        for lock in locks
    )


def _mounted(path: str) -> int:
    """Return the device that locks of a file are listed under; `stat` may report another."""
    found, device = "", 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(MOUNTS, encoding="utf-8", errors="replace") as file:
            mounts = [line.split() for line in file]
        for mount in mounts:
            above = mount[4].rstrip("/") + "/"
            if path.startswith(above) and len(above) >= len(found):
                major, minor = mount[2].split(":")
                found, device = above, os.makedev(int(major), int(minor))
    return device


OWNER = 0o600
GROUP = 0o660
GROUP_WRITES, OTHERS_WRITE = 0o020, 0o002
MAKING = os.O_RDWR | os.O_CREAT | os.O_EXCL


class Allowed(NamedTuple):
    """The permissions to create a file with, and the user and group of the store's file."""

    mode: int
    user: int
    group: int


class Rights:
    """The permissions of files created beside a store's file, whatever the umask.

    Existing files stay as they are. If the store's file exists, the others are created with its
    permissions, and by root for its user: every user of the file needs them, too.
    """

    def __init__(self, path: str, permissions: int = OWNER) -> None:
        self.permissions = permissions
        self._path = path

    def make(self, path: str) -> bool:
        """Create an empty file; return False if the path exists."""
        try:
            # An existing file is not opened: closing it would release SQLite's locks on it.
            made = os.open(path, MAKING, OWNER)
        except FileExistsError:
            return False
        os.close(made)
        if path == self._path:
            os.chmod(path, self.permissions)
        else:
            allowed = self._allowed()
            _give(path, allowed.mode, allowed)
        return True

    def make_folder(self, path: str) -> bool:
        """Create a folder if there is none; return whether only permitted users can write to it.

        A link does not count as a folder: it may lead anywhere.
        """
        allowed = self._allowed()
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return _is_private(path, allowed)
        _give(path, 0o770 if allowed.mode & GROUP_WRITES else 0o700, allowed)
        return True

    def share(self, path: str) -> None:
        """Give a socket of this process to the users that may write to the file."""
        allowed = self._allowed()
        _give(path, GROUP if allowed.mode & GROUP_WRITES else OWNER, allowed)

    def _allowed(self) -> Allowed:
        try:
            seen = os.stat(self._path)
        except OSError:
            return Allowed(self.permissions, os.geteuid(), os.getegid())
        return Allowed(stat.S_IMODE(seen.st_mode) & 0o666, seen.st_uid, seen.st_gid)


def is_socket(path: str) -> bool:
    """Return whether a path is a socket; links are not followed."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _give(path: str, mode: int, allowed: Allowed) -> None:
    os.chmod(path, mode)
    if os.geteuid() == 0 != allowed.user:
        os.chown(path, allowed.user, allowed.group)


def _is_private(path: str, allowed: Allowed) -> bool:
    seen = os.lstat(path)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_mode & OTHERS_WRITE:
        return False
    if seen.st_uid in (os.geteuid(), allowed.user):
        return bool(allowed.mode & GROUP_WRITES) or not seen.st_mode & GROUP_WRITES
    # In a group, the folder belongs to the user that came first.
    return bool(allowed.mode & GROUP_WRITES) and seen.st_gid == allowed.group


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
