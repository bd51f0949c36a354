"""The port of the log: streams of numbered lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct


class LogLine(Struct, frozen=True, gc=False):
    """An entry for a stream of the log; one with a token is good only under that claim."""

    stream: str
    kind: str
    body: bytes
    token: int | None = None


class LogEntry(Struct, frozen=True, gc=False):
    """A line of the log as it is kept; numbers of a stream have no gaps."""

    number: int
    at: datetime
    kind: str
    body: bytes


class Log(Protocol):
    """Streams of numbered lines."""

    async def append(self, lines: Sequence[LogLine]) -> frozenset[int]:
        """Write lines, all but those whose claim is not good; return the tokens of these."""

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> list[LogEntry]:
        """Return lines from behind a number on, those whose kind begins so."""

    async def trim(self, stream: str, before: int) -> int:
        """Forget the lines below a number, all but the last of the stream; return how many."""
