"""The log of a SQLite store: what is written to a stream at once is one row.

Such lines are much alike, so that rows of many are compressed: to write less costs less than that.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from sqlite3 import Connection
from typing import Any

import msgspec

from poolhand.contract import Line, Written
from poolhand.rules.terms import seconds
from poolhand.stores.bounds import MOST
from poolhand.stores.sqlite_lots import Insert
from poolhand.stores.sqlite_rows import moment, sought

Text = tuple[str, bytes]  # a kind and a body

ROW_LINES = 256
WORTH_WHILE = 1000  # bytes
QUICKEST = 1
LAST = "SELECT last FROM poolhand_log WHERE stream = ? ORDER BY last DESC LIMIT 1"
WRITE = Insert("INSERT INTO poolhand_log (stream, first, last, at, lines)", "(?, ?, ?, ?, ?)")
READ = "SELECT first, at, lines FROM poolhand_log WHERE stream = ? AND last > ? ORDER BY last"
PART = (
    "SELECT no, first, lines FROM poolhand_log WHERE stream = ? AND last >= ? ORDER BY last LIMIT 1"
)
FORGET = "DELETE FROM poolhand_log WHERE stream = ? AND last < ? RETURNING last - first + 1"
SHORTEN = "UPDATE poolhand_log SET first = ?, lines = ? WHERE no = ?"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Text]).decode
# No list that MessagePack writes begins like this.
_COMPRESSED = b"z"


def append(connection: Connection, lines: Iterable[Line], at: datetime) -> None:
    """Write lines, each to its stream."""
    streams: dict[str, list[Text]] = {}
    for line in lines:
        streams.setdefault(line.stream, []).append((line.kind, line.body))
    write(connection, streams, seconds(at))


def write(connection: Connection, streams: dict[str, list[Text]], stamp: float) -> None:
    """Write to streams; the numbers of each go on where they ended."""
    rows: list[tuple[Any, ...]] = []
    for stream, texts in streams.items():
        last = _last(connection, stream) if texts else 0
        for start in range(0, len(texts), ROW_LINES):
            part = texts[start : start + ROW_LINES]
            rows.append((stream, last + 1, last + len(part), stamp, _pack(part)))
            last += len(part)
    WRITE.write(connection, rows)


def read(connection: Connection, stream: str, after: int, limit: int, kind: str) -> list[Written]:
    """Return lines from behind a number on, those whose kind begins so."""
    found: list[Written] = []
    for number, at, name, body in _lines(connection, stream, after):
        if len(found) >= limit:
            break
        if name.startswith(kind):
            found.append(Written(number, moment(at), name, body))
    return found


def trim(connection: Connection, stream: str, before: int) -> int:
    """Forget the lines below a number; the last one stays, that the numbers go on."""
    before = min(before, _last(connection, stream))
    if before <= 0:
        return 0
    count: int = sum(rows for (rows,) in connection.execute(FORGET, (stream, before)).fetchall())
    part = connection.execute(PART, (stream, before)).fetchone()
    if part is not None and part[1] < before:
        no, first, texts = part
        left = _unpack(texts)[before - first :]
        connection.execute(SHORTEN, (before, _pack(left), no))
        count += before - first
    return count


def _last(connection: Connection, stream: str) -> int:
    row: tuple[int] | None = connection.execute(LAST, (sought(stream),)).fetchone()
    return 0 if row is None else row[0]


def _lines(
    connection: Connection, stream: str, after: int
) -> Iterator[tuple[int, float, str, bytes]]:
    for first, at, texts in connection.execute(READ, (sought(stream), min(after, MOST))):
        for number, (kind, body) in enumerate(_unpack(texts), first):
            if number > after:
                yield number, at, kind, body


def _pack(texts: list[Text]) -> bytes:
    packed = _encode(texts)
    if len(packed) < WORTH_WHILE:
        return packed
    return _COMPRESSED + zlib.compress(packed, QUICKEST)


def _unpack(packed: bytes) -> list[Text]:
    try:
        if packed.startswith(_COMPRESSED):
            packed = zlib.decompress(packed[1:])
    except zlib.error as error:
        raise msgspec.DecodeError(f"lines of the log cannot be decompressed: {error}") from error
    return _decode(packed)
