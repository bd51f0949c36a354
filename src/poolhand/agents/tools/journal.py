"""The journal of a run: which steps a job has finished, by their positions.

A position is a path: the third step is (3,), the first one within it (3, 1). Code that changed
between two attempts may do something else at a position; from there on nothing that was recorded
counts, which is called a branch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextvars import ContextVar

import msgspec
from msgspec import Struct

Path = tuple[int, ...]

# The position of the step that this code is part of.
under: ContextVar[Path] = ContextVar("poolhand_step", default=())


class JournalStep(Struct, frozen=True, tag="step"):
    """A step that is finished; `call` is a digest of its arguments, `result` is kept as written."""

    path: Path
    name: str
    call: bytes
    result: bytes


class JournalBranch(Struct, frozen=True, tag="branch"):
    """From this position on something else is done than was recorded before."""

    path: Path


Record = JournalStep | JournalBranch

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def write(record: Record) -> bytes:
    return _encode(record)


class Journal:
    """The steps of one attempt: gives out positions and knows what is finished."""

    def __init__(self, records: Iterable[bytes] = ()) -> None:
        self._finished: dict[Path, JournalStep] = {}
        self._given: Counter[Path] = Counter()
        for body in records:
            record = _decode(body)
            if isinstance(record, JournalBranch):
                self.branch(record.path)
            else:
                self._finished[record.path] = record

    def next(self, under: Path) -> Path:
        """Return the position of the next step within another one, or of the run."""
        self._given[under] += 1
        return (*under, self._given[under])

    def find(self, path: Path) -> JournalStep | None:
        """Return what was finished at a position."""
        return self._finished.get(path)

    def branch(self, path: Path) -> JournalBranch:
        """Forget what was finished at a position, behind it and within it."""
        *under, number = path
        depth = len(under)
        self._finished = {
            other: step
            for other, step in self._finished.items()
            if list(other[:depth]) != under or len(other) <= depth or other[depth] < number
        }
        return JournalBranch(path)
