"""The permissions of the files of a SQLite store: for its user alone, or for a group."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

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
