"""The journal of a run: the steps that a job has finished, by position.

A position is a path: the third step is (3,), the first step within it (3, 1). Code that changed
between two attempts may do something else at a position. From there on no recorded step counts;
this is called a branch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextvars import ContextVar

import msgspec
from msgspec import Struct

Path = tuple[int, ...]

# The position of the step that contains the running code.
under: ContextVar[Path] = ContextVar("poolhand_step", default=())


class JournalStep(Struct, frozen=True, tag="step"):
    """A finished step; `call` is a digest of its arguments, `result` is stored encoded."""

    path: Path
    name: str
    call: bytes
    result: bytes


class JournalBranch(Struct, frozen=True, tag="branch"):
    """A marker that from this position on the code differs from the steps recorded before."""

    path: Path


Record = JournalStep | JournalBranch

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def write(record: Record) -> bytes:
    return _encode(record)


class Journal:
    """The steps of one attempt: assigns positions and looks up finished steps."""

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
        """Return the position of the next step within another step, or within the run."""
        self._given[under] += 1
        return (*under, self._given[under])

    def find(self, path: Path) -> JournalStep | None:
        """Return the finished step at a position, if any."""
        return self._finished.get(path)

    def branch(self, path: Path) -> JournalBranch:
        """Drop the finished steps at a position, after it and within it."""
        *under, number = path
        depth = len(under)
        self._finished = {
            other: step
            for other, step in self._finished.items()
            if list(other[:depth]) != under or len(other) <= depth or other[depth] < number
        }
        return JournalBranch(path)
