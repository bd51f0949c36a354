"""Reads the last number of a stream, and all its lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from poolhand.contract import LogEntry


class LineReader(Protocol):
    """The method of a store that reads a stream."""

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> Sequence[LogEntry]: ...


async def last_number(store: LineReader, stream: str, least: int = 0) -> int:
    """Return the number of the last line, `least` or above.

    Numbers have no gaps, so a binary search finds it.
    """
    if not await store.read(stream, least, 1):
        # Nearly always: the caller knows the last number, or the stream is empty.
        return least
    low, high = least, least + 1024
    while await store.read(stream, high, 1):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if await store.read(stream, middle, 1):
            low = middle + 1
        else:
            high = middle
    return low


async def bodies_of(store: LineReader, stream: str) -> list[bytes]:
    """Return the bodies of all lines of a stream."""
    last, bodies = 0, list[bytes]()
    while lines := await store.read(stream, last):
        last = lines[-1].number
        bodies += [line.body for line in lines]
    return bodies
