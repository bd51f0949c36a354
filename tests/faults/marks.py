"""Marks: the phases a process is in, in shared memory, so that a kill can be aimed.

A file of counters, one per phase, that the process raises and lowers. It survives the process:
after a kill it shows what was hit. Nothing of poolhand is imported here.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

PHASES = ("add", "claim", "settle", "run", "lock")
_COUNTERS = struct.Struct(f"<{len(PHASES)}i")


class Marks:
    """The counters of one process; the first user makes the file."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(_COUNTERS.size)
            self._memory = mmap.mmap(file.fileno(), _COUNTERS.size)
        self._counts = dict.fromkeys(PHASES, 0)
        self._lock = Lock()

    @contextmanager
    def during(self, *phases: str) -> Iterator[None]:
        """Mark that the process is in these phases, inside a block."""
        self.enter(*phases)
        try:
            yield
        finally:
            self.leave(*phases)

    def enter(self, *phases: str) -> None:
        self._add(phases, 1)

    def leave(self, *phases: str) -> None:
        self._add(phases, -1)

    def now(self) -> frozenset[str]:
        """Return the phases that the process is in, or was in when it ended."""
        counts = _COUNTERS.unpack(self._memory[: _COUNTERS.size])
        return frozenset(phase for phase, count in zip(PHASES, counts, strict=True) if count > 0)

    def close(self) -> None:
        self._memory.close()

    def _add(self, phases: tuple[str, ...], change: int) -> None:
        with self._lock:
            for phase in phases:
                self._counts[phase] += change
            self._memory[: _COUNTERS.size] = _COUNTERS.pack(*self._counts.values())
