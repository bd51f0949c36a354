"""Checks of a store in a file: free disk space, file permissions and damaged pages."""

from __future__ import annotations

import shlex
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from poolhand.operate.doctor.finding import Finding, Level

LITTLE_SPACE = 1 << 30
NO_SPACE = 64 << 20


@runtime_checkable
class InFile(Protocol):
    """A store in a file of this machine, which can be inspected without opening it."""

    @property
    def path(self) -> Path:
        """The path of the file."""

    @property
    def permissions(self) -> int:
        """The mode that its files are created with."""

    async def schema(self) -> tuple[int, int]:
        """Return the number of its schema (0: none) and the newest that this version knows."""

    async def damage(self) -> list[str]:
        """Read the whole file; return the damages found."""


def space(path: Path) -> Finding:
    """Check the free space on the disk of a file."""
    free = shutil.disk_usage(path.parent).free
    text = f"{free / (1 << 20):,.0f} MiB are free on the disk of {path}"
    if free < NO_SPACE:
        return Finding("disk", Level.WRONG, text, "free some space: a full disk takes no job")
    if free < LITTLE_SPACE:
        return Finding("disk", Level.WARN, text, "free some space before the disk is full")
    return Finding("disk", Level.OK, text)


def private(path: Path, permissions: int) -> Finding:
    """Report files with wider permissions than the URL of the store allows."""
    wide = [one for one in map(Path, _files(path)) if _mode(one) & ~permissions & 0o077]
    if not wide:
        text = f"its files are those of one {'group' if permissions & 0o060 else 'user'}"
        return Finding("permissions", Level.OK, text)
    names = ", ".join(f"{one.name} ({_mode(one):o})" for one in wide)
    text = f"others on this machine may use what the store keeps: {names}"
    fix = f"`chmod {permissions:o} {shlex.join(str(one) for one in wide)}`"
    if not permissions & 0o060:
        fix += ", or let one group use them (?permissions=660 in the URL of the store)"
    return Finding("permissions", Level.WARN, text, fix)


def _files(path: Path) -> list[str]:
    return [f"{path}{end}" for end in ("", "-wal", "-shm", "-lock", "-lock-turn")]


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0


def sound(path: Path, damage: Sequence[str]) -> Finding:
    """Report the damages of a file."""
    if not damage:
        return Finding("file", Level.OK, "the file is whole")
    text = f"the file is damaged: {damage[0]}"
    more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
    fix = f"stop everything that uses {path}, keep a copy of it, and restore a backup"
    return Finding("file", Level.WRONG, text + more, fix)
