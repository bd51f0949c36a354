"""Codecs: named ways to turn a value into bytes and back.

JSON restores what the requested type describes: dates, sets or enums come back if asked for.
MessagePack also preserves bytes and datetimes by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from poolhand.errors import UsageError
from poolhand.wire.locate import parts
from poolhand.wire.nesting import json_is_deeper, msgpack_is_deeper
from poolhand.wire.typed import (
    build_from_json,
    build_from_msgpack,
    dump_for_json,
    dump_for_msgpack,
)

MOST_READERS = 1024

Reader = Callable[[bytes], Any]


class Codec(Struct, frozen=True):
    """A way to write and read values; `reader` returns the function that reads one type."""

    name: str
    write: Callable[[Any], bytes]
    reader: Callable[[Any], Reader]
    is_deeper: Callable[[bytes, int], bool]


_json = msgspec.json.Encoder(enc_hook=dump_for_json)
_msgpack = msgspec.msgpack.Encoder(enc_hook=dump_for_msgpack)

# MessagePack writes NaN and infinity as these bytes. Parts of other values may look the same.
_probe = msgspec.msgpack.Encoder(enc_hook=dump_for_json)
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")


def _write_json(value: Any) -> bytes:
    body = _json.encode(value)
    # NaN and infinity are written as null, or as these words where they are keys.
    # `find`, because `in` on bytes first checks whether the operand is an integer.
    find = body.find
    if (find(b"null") >= 0 or find(b'nan"') >= 0 or find(b'inf"') >= 0) and _may_hold_nan(value):
        _refuse_nan(value)
    return body


def _may_hold_nan(value: Any) -> bool:
    try:
        return _NOT_FINITE.search(_probe.encode(value)) is not None
    except OverflowError:
        return True


def _refuse_nan(value: Any) -> None:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, float) and not isfinite(part):
            raise ValueError(f"{part} is no number in JSON; give None, or use codec='msgpack'")
        waiting.extend(inner for _, inner in parts(part))


def _reader_of(make: Callable[[Any], Reader]) -> Callable[[Any], Reader]:
    kept = lru_cache(MOST_READERS)(make)

    def reader(type: Any) -> Reader:
        try:
            return kept(type)
        except Exception:
            # A type without a hash cannot be cached, but may still be readable.
            try:
                return make(type)
            except Exception as error:
                raise UsageError(f"type={type!r} cannot be read: {error}") from error

    return reader


def _json_reader(type: Any) -> Reader:
    return msgspec.json.Decoder(type, dec_hook=build_from_json).decode


def _msgpack_reader(type: Any) -> Reader:
    return msgspec.msgpack.Decoder(type, dec_hook=build_from_msgpack, ext_hook=_refuse).decode


def _refuse(code: int, data: memoryview) -> NoReturn:
    raise ValueError(f"it holds the unknown MessagePack extension {code}")


JSON = Codec("json", _write_json, _reader_of(_json_reader), json_is_deeper)
MSGPACK = Codec("msgpack", _msgpack.encode, _reader_of(_msgpack_reader), msgpack_is_deeper)
