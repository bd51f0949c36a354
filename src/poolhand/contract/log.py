"""The log port: streams of numbered lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct


class LogLine(Struct, frozen=True, gc=False):
    """A line to append to a stream; with a token it is valid only under that claim."""

    stream: str
    kind: str
    body: bytes
    token: int | None = None


class LogEntry(Struct, frozen=True, gc=False):
    """A line as it is stored; the numbers of a stream have no gaps."""

    number: int
    at: datetime
    kind: str
    body: bytes


class Log(Protocol):
    """Streams of numbered lines."""

    async def append(self, lines: Sequence[LogLine]) -> frozenset[int]:
        """Append lines, except those whose claim is invalid; return the tokens of the latter."""

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> list[LogEntry]:
        """Return the lines after a number whose kind begins with `kind`."""

    async def trim(self, stream: str, before: int) -> int:
        """Delete the lines below a number, except the stream's last line; return how many."""
