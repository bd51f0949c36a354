"""Codecs: named ways to turn a value into bytes and back.

JSON restores what the requested type describes: dates, sets or enums come back if asked for.
MessagePack also preserves bytes and datetimes by itself.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import lru_cache
from math import isfinite
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from poolhand.errors import UsageError
from poolhand.misuse import OptionsStruct
from poolhand.wire.limits import json_is_deeper, msgpack_is_deeper
from poolhand.wire.typed import (
    build_from_json,
    build_from_msgpack,
    dump_for_json,
    dump_for_msgpack,
)

MOST_STEPS = 100
LONGEST_KEY = 40

Parts = Iterator[tuple[str, Any]]


def locate(value: Any, write: Callable[[Any], object], error: Exception) -> tuple[str, Exception]:
    """Return the path to the innermost part that cannot be written, and its error.

    `error` is the error of the whole value, which `$` stands for in the path.
    """
    path = "$"
    for _ in range(MOST_STEPS):
        for step, part in parts(value):
            fault = _fault(part, write)
            if fault is not None:
                path, value, error = path + step, part, fault
                break
        else:
            break
    return path, error


def parts(value: Any) -> Parts:
    """Yield the parts of a value, each with the path step to it."""
    match value:
        case dict():
            for key, item in value.items():
                step = f"[{_short(key)}]"
                yield f"{step} (the key)", key
                yield step, item
        case list() | tuple() | set() | frozenset():
            yield from ((f"[{index}]", item) for index, item in enumerate(value))
        case Enum():
            yield ".value", value.value
        case Struct():
            yield from _fields(value, value.__struct_fields__)
        case _ if hasattr(type(value), "model_dump"):
            yield from _dumped(value)
        case _:
            yield from _fields(value, getattr(type(value), "__dataclass_fields__", ()))


def _dumped(model: Any) -> Parts:
    # Use the dumped form: fields that a model does not dump may refer back to the model.
    try:
        dumped = dump_for_json(model)
    except Exception:
        return iter(())
    if isinstance(dumped, dict):
        return ((f".{name}", item) for name, item in dumped.items())
    return parts(dumped)


def _fields(value: Any, names: Iterable[str]) -> Parts:
    return ((f".{name}", getattr(value, name)) for name in names if hasattr(value, name))


def _fault(part: Any, write: Callable[[Any], object]) -> Exception | None:
    try:
        write(part)
    except Exception as error:
        return error
    return None


def _short(key: object) -> str:
    text = repr(key)
    return text if len(text) <= LONGEST_KEY else f"{text[:LONGEST_KEY]}…"


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


class AllowPickle(OptionsStruct, frozen=True):
    """The permission to use pickle: every holder of a key of the ring can then run code here."""


def _write(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _reader(type: Any) -> Reader:
    # A pickle names its types itself; the requested type is ignored.
    return pickle.loads


def _is_deeper(body: bytes, depth: int) -> bool:
    # Pickles are read without recursion.
    return False


PICKLE = Codec("pickle", _write, _reader, _is_deeper)
