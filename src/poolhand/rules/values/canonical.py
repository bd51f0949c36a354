"""The canonical form of a value: the same bytes in every process, whatever codec or key is used.

The bytes of a payload depend on the codec, the key ring and the iteration order of sets. A tool
call needs bytes that depend only on its arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

REDUCED_BY = 4  # the pickle protocol by which an object lists its parts


class Canonical:
    """Writes values; `unordered` is set if one of them held a set with several items."""

    def __init__(self) -> None:
        self.unordered = False
        self._around: dict[int, int] = {}

    def write(self, value: Any) -> bytes:
        """Return the canonical form of a value.

        A list equals a tuple, and a dict equals an object with these fields: calls are compared as
        data.
        """
        match value:
            case None:
                return b"n"
            case bool():
                return b"t" if value else b"f"
            case Enum():
                return self.write(value.value)
            case int():
                return b"i%d;" % int(value)
            case float():
                return b"d%b;" % repr(float(value)).encode()
            case str():
                return _text(b"s", value)
            case bytes() | bytearray() | memoryview():
                return _sized(b"b", bytes(value))
            case _:
                plain = _of_standard_library(value)
                return self._holding(value) if plain is None else plain

    def _holding(self, value: Any) -> bytes:
        """Write a value that contains others, perhaps itself."""
        place = self._around.get(id(value))
        if place is not None:
            return b"^%d;" % place
        self._around[id(value)] = len(self._around)
        try:
            return self._whole(value)
        finally:
            del self._around[id(value)]

    def _whole(self, value: Any) -> bytes:
        match value:
            case list() | tuple():
                return self._joined(b"l", map(self.write, value))
            case Set():
                self.unordered = self.unordered or len(value) > 1
                return self._joined(b"u", sorted(map(self.write, value)))
            case Mapping():
                return self._pairs(value.items())
            case Struct():
                return self._pairs(_struct_fields(value))
            case msgspec.Raw():
                return _sized(b"b", bytes(value))
            case _:
                return self._object(value)

    def _object(self, value: Any) -> bytes:
        kind = type(value)
        if hasattr(kind, "model_dump"):
            # As Python values: in JSON mode the sets would already be lists in arbitrary order.
            return self.write(value.model_dump(mode="python", round_trip=True, by_alias=False))
        names = getattr(kind, "__dataclass_fields__", None)
        if names is None:
            names = [one.name for one in getattr(kind, "__attrs_attrs__", ())] or None
        if names is not None:
            return self._pairs(
                (name, getattr(value, name)) for name in names if hasattr(value, name)
            )
        return self._reduced(value)

    def _reduced(self, value: Any) -> bytes:
        """Write an object of any other type by the parts that pickle would store."""
        if isinstance(value, type) or callable(value):
            where = (getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
            if where[1]:
                return self._joined(b"g", map(self.write, where))
        reduced = value.__reduce_ex__(REDUCED_BY)
        if isinstance(reduced, str):
            return _text(b"g", reduced)
        parts = [list(part) if hasattr(part, "__next__") else part for part in reduced]
        return self._joined(b"o", map(self.write, parts))

    def _pairs(self, pairs: Iterable[tuple[Any, Any]]) -> bytes:
        written = sorted((self.write(key), self.write(value)) for key, value in pairs)
        return self._joined(b"m", (key + value for key, value in written))

    def _joined(self, kind: bytes, parts: Iterable[bytes]) -> bytes:
        return _sized(kind, b"".join(parts))


def digest(value: Any) -> bytes:
    """Return the SHA-256 digest of a value's canonical form."""
    return hashlib.sha256(Canonical().write(value)).digest()


def _of_standard_library(value: Any) -> bytes | None:
    match value:
        case datetime():
            return _text(b"D", _instant(value).isoformat())
        case date() | time():
            return _text(b"D", value.isoformat())
        case timedelta():
            return b"T%d,%d,%d;" % (value.days, value.seconds, value.microseconds)
        case Decimal():
            return _text(b"N", str(value))
        case UUID():
            return _text(b"U", value.hex)
        case _:
            return None


def _instant(moment: datetime) -> datetime:
    try:
        return moment if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        # Near the first and last dates that Python supports.
        return moment


def _struct_fields(value: Struct) -> Iterable[tuple[str, Any]]:
    config = value.__struct_config__
    if config.tag is not None:
        yield config.tag_field or "type", config.tag
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if field is not msgspec.UNSET:
            yield name, field


def _text(kind: bytes, text: str) -> bytes:
    return _sized(kind, str(text).encode("utf-8", "surrogatepass"))


def _sized(kind: bytes, body: bytes) -> bytes:
    return b"%b%d:%b" % (kind, len(body), body)
