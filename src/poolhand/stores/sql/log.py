"""The log of a SQL store: lines that are written to a stream together are one row.

Such lines are much alike, so rows of many lines are compressed: that costs less than writing more.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from poolhand.contract import LogEntry as Read
from poolhand.contract import LogLine
from poolhand.rules.queue.entry import seconds
from poolhand.stores.sql.rows import moment, sought
from poolhand.stores.sql.tables import MOST, Insert, Tables, TableWrite

Text = tuple[str, bytes]  # a kind and a body
Packed = tuple[int, bytes]  # the number of lines, and the lines

ROW_LINES = 256
ROWS_AT_ONCE = 20
WORTH_WHILE = 1000  # bytes from which a row is compressed
QUICKEST = 1
GOOD = """
SELECT token FROM poolhand_claims WHERE stuck = 0 AND token IN (?*) /*pg FOR SHARE */
"""
FORGET_STREAMS = "DELETE FROM poolhand_log WHERE stream IN (?*) RETURNING no"
LAST = "SELECT last FROM poolhand_log WHERE stream = ? ORDER BY last DESC LIMIT 1"
WRITE = Insert(
    "poolhand_log",
    "stream text, first bigint, last bigint, at double precision, lines bytea",
)
READ = """
SELECT first, last, at, lines FROM poolhand_log WHERE stream = ? AND last > ? ORDER BY last LIMIT ?
"""
PART = """
SELECT no, first, lines FROM poolhand_log WHERE stream = ? AND last >= ? ORDER BY last LIMIT 1
"""
FORGET = "DELETE FROM poolhand_log WHERE stream = ? AND last < ? RETURNING last - first + 1"
SHORTEN = "UPDATE poolhand_log SET first = ?, lines = ? WHERE no = ?"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Text]).decode
# No list in MessagePack begins with this byte.
_COMPRESSED = b"z"


class StreamLines:
    """Lines to be written to one stream."""

    def __init__(self) -> None:
        self._texts: list[Text] = []
        self._rows: list[Packed] = []
        self.append = self._texts.append

    def pack(self) -> list[Packed]:
        """Return all lines as rows; later lines go into new rows."""
        texts = self._texts
        for start in range(0, len(texts), ROW_LINES):
            part = texts[start : start + ROW_LINES]
            self._rows.append((len(part), pack(part)))
        texts.clear()
        return self._rows


class StreamLog:
    """Streams as rows of a table; the numbers of each continue where they ended."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def append(self, lines: Iterable[LogLine], at: datetime) -> None:
        """Write lines, each to its stream."""
        streams: dict[str, StreamLines] = {}
        for line in lines:
            streams.setdefault(line.stream, StreamLines()).append((line.kind, line.body))
        written: list[TableWrite] = []
        self.gather(streams, seconds(at), written)
        self._tables.write(written)

    def append_good(self, lines: Sequence[LogLine], at: datetime) -> frozenset[int]:
        """Write lines except those whose claim is not valid; return the tokens of those."""
        asked = {line.token for line in lines if line.token is not None}
        lost = frozenset(asked - good(self._tables, asked))
        self.append([line for line in lines if line.token not in lost], at)
        return lost

    def gather(
        self, streams: Mapping[str, StreamLines], stamp: float, into: list[TableWrite]
    ) -> None:
        """Add the rows of these streams to the pending writes."""
        rows: list[tuple[Any, ...]] = []
        for stream, lines in streams.items():
            parts = lines.pack()
            last = self.last(stream) if parts else 0
            for count, packed in parts:
                rows.append((stream, last + 1, last + count, stamp, packed))
                last += count
        if rows:
            into.append((WRITE, rows))

    def last(self, stream: str) -> int:
        """Return the number of the last line of a stream."""
        row: tuple[int] | None = self._tables.execute(LAST, (sought(stream),)).fetchone()
        return 0 if row is None else row[0]

    def read(self, stream: str, after: int, limit: int, kind: str) -> list[Read]:
        """Return lines after a number whose kind begins with `kind`."""
        found: list[Read] = []
        for number, at, name, body in self._lines(stream, after):
            if len(found) >= limit:
                break
            if name.startswith(kind):
                found.append(Read(number, moment(at), name, body))
        return found

    def trim(self, stream: str, before: int) -> int:
        """Delete the lines below a number; the last one stays, so that the numbers continue."""
        execute = self._tables.execute
        before = min(before, self.last(stream))
        if before <= 0:
            return 0
        count: int = sum(rows for (rows,) in execute(FORGET, (stream, before)).fetchall())
        part = execute(PART, (stream, before)).fetchone()
        if part is not None and part[1] < before:
            no, first, texts = part
            left = unpack(texts)[before - first :]
            execute(SHORTEN, (before, pack(left), no))
            count += before - first
        return count

    def forget(self, streams: Sequence[str]) -> None:
        """Delete whole streams by name, also if what they belonged to is already deleted."""
        for _ in self._tables.among(FORGET_STREAMS, [sought(name) for name in streams]):
            pass

    def _lines(self, stream: str, after: int) -> Iterator[tuple[int, float, str, bytes]]:
        behind = min(after, MOST)
        while rows := self._tables.execute(READ, (sought(stream), behind, ROWS_AT_ONCE)).fetchall():
            behind = rows[-1][1]
            for first, _, at, texts in rows:
                for number, (kind, body) in enumerate(unpack(texts), first):
                    if number > after:
                        yield number, at, kind, body


def good(tables: Tables, tokens: Iterable[int]) -> set[int]:
    """Return which of these claims are valid, and stay so until the transaction ends."""
    return {token for (token,) in tables.among(GOOD, sorted(tokens))}


def is_good(tables: Tables, token: int | None) -> bool:
    """Return whether a claim is valid; without a claim a write is always allowed."""
    return token is None or bool(good(tables, [token]))


def pack(texts: list[Text]) -> bytes:
    packed = _encode(texts)
    if len(packed) < WORTH_WHILE:
        return packed
    return _COMPRESSED + zlib.compress(packed, QUICKEST)


def unpack(packed: bytes) -> list[Text]:
    try:
        if packed.startswith(_COMPRESSED):
            packed = zlib.decompress(packed[1:])
    except zlib.error as error:
        raise msgspec.DecodeError(f"lines of the log cannot be decompressed: {error}") from error
    return _decode(packed)
