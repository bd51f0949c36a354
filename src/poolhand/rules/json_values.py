"""Values as JSON: what JSON would change, and a canonical text of a value."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from pathlib import PurePath
from types import NoneType
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Struct

SCALARS: frozenset[type] = frozenset({str, int, float, bool, NoneType})
DEEPEST = 200  # levels: deeper nesting is refused when the value is written
LONGEST_KEY = 40
MOST_SHOWN = 4  # types of a tuple in a suggested annotation


class Keeps(NamedTuple):
    """What a format preserves besides dicts and lists; `moments`: also aware datetimes."""

    scalars: frozenset[type]
    keys: frozenset[type]
    moments: bool = False


JSON = Keeps(SCALARS, frozenset({str}))
MSGPACK = Keeps(SCALARS | {bytes}, SCALARS | {bytes}, moments=True)


class Changed(NamedTuple):
    """A part that a format would change; `place` is the path to it, "" for the whole value."""

    place: str
    value: Any
    is_key: bool = False


def find_change(value: Any, keeps: Keeps = JSON, place: str = "") -> Changed | None:
    """Return the first part of an untyped value that a format would change, None if there is none.

    NaN and infinity are not checked here: they are refused when the value is written.
    """
    # Nearly all values are preserved, so paths are built only for those that are not.
    return None if _is_unchanged(value, keeps, 0) else _find(value, keeps, place)


def find_not_finite(value: Any, place: str = "") -> Changed | None:
    """Return the first NaN or infinity in plain data, None if there is none: JSON has neither."""
    if isinstance(value, float):
        return None if isfinite(value) else Changed(place, value)
    if isinstance(value, dict):
        items = [(f"{place}[{short(key)}]", item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{place}[{index}]", item) for index, item in enumerate(value)]
    else:
        return None
    found = (find_not_finite(item, where) for where, item in items)
    return next((one for one in found if one is not None), None)


def _is_unchanged(value: Any, keeps: Keeps, depth: int) -> bool:
    # Every submit of untyped values runs this: inline loops, because calls would cost more.
    scalars = keeps[0]
    kind = type(value)
    if depth > DEEPEST:
        return True
    if kind is dict:
        keys = keeps[1]
        for key, item in value.items():
            if type(key) not in keys:
                return False
            if type(item) not in scalars and not _is_unchanged(item, keeps, depth + 1):
                return False
        return True
    if kind is list:
        if scalars.issuperset(map(type, value)):
            return True
        return all(type(item) in scalars or _is_unchanged(item, keeps, depth + 1) for item in value)
    return kind in scalars or (keeps[2] and _is_moment(value))


def _find(value: Any, keeps: Keeps, place: str) -> Changed | None:
    if type(value) is dict:
        key = next((key for key in value if type(key) not in keeps.keys), None)
        if key is not None or (None in value and NoneType not in keeps.keys):
            return Changed(place, key, is_key=True)
        items = ((f"{place}[{short(key)}]", item) for key, item in value.items())
    elif type(value) is list:
        items = ((f"{place}[{index}]", item) for index, item in enumerate(value))
    else:
        return Changed(place, value)
    for where, item in items:
        if not _is_unchanged(item, keeps, 0):
            return _find(item, keeps, where)
    return None


def _is_moment(value: Any) -> bool:
    return type(value) is datetime and value.tzinfo is not None


def short(key: object) -> str:
    text = repr(key)
    return text if len(text) <= LONGEST_KEY else f"{text[:LONGEST_KEY]}…"


def returned_as(value: Any) -> str | None:
    """Return the name of the type that JSON makes of a value, None if it cannot be written."""
    match value:
        case list() | tuple() | set() | frozenset():
            return "list"
        case dict():
            return "dict"
        case datetime() | date() | time() | timedelta() | bytes() | bytearray() | PurePath():
            return "str"
        case Enum():
            return type(value.value).__name__
        case Struct():
            return "dict"
        case _ if is_dataclass(value) or hasattr(type(value), "model_dump"):
            return "dict"
        case _ if hasattr(type(value), "__attrs_attrs__"):
            return "dict"
        case _:
            return "str" if type(value).__name__ in ("Decimal", "UUID") else None


def as_json(value: Any, text: str) -> str:
    """Return the code that converts a value to JSON; `text` is the code of the value."""
    match value:
        case list() | tuple():
            return f"list({text})"
        case dict():
            return f"dict({text})"
        case set() | frozenset():
            return f"sorted({text})"
        case datetime() | date() | time():
            return f"{text}.isoformat()"
        case timedelta():
            return f"{text}.total_seconds()"
        case Enum():
            return f"{text}.value"
        case bytes() | bytearray():
            return f"{text}.hex()"
        case Struct():
            return f"msgspec.to_builtins({text})"
        case _ if hasattr(type(value), "model_dump"):
            return f'{text}.model_dump(mode="json")'
        case _ if is_dataclass(value):
            return f"dataclasses.asdict({text})"
        case _:
            return f"str({text})"


def annotation_for(value: Any) -> str | None:
    """Return an annotation that restores a value as it is, None if there is no simple one."""
    match value:
        case None:
            return "None"
        case dict() if value:
            keys, items = _common(value), _common(value.values())
            is_usable = keys is not None and items is not None and all(map(_may_be_key, value))
            return f"dict[{keys}, {items}]" if is_usable else None
        case tuple() if hasattr(value, "_fields"):
            return type(value).__name__
        case tuple():
            return _tuple(value)
        case list() | set() | frozenset() if value:
            item = _common(value)
            return None if item is None else f"{_base(value)}[{item}]"
        case dict() | list():
            # Of a subclass: it comes back as what it is based on, as that annotation says.
            return "dict" if isinstance(value, dict) else "list"
        case PurePath():
            return "Path" if hasattr(value, "exists") else type(value).__name__
        case _:
            return type(value).__name__


def _may_be_key(key: Any) -> bool:
    """Return whether a key written as JSON text can be read back as it was."""
    return not isinstance(key, bool | NoneType | tuple | frozenset | PurePath)


def _base(value: Any) -> str:
    return next(kind.__name__ for kind in (list, set, frozenset) if isinstance(value, kind))


def _tuple(value: tuple[Any, ...]) -> str | None:
    if not value:
        return "tuple"
    kinds = [annotation_for(item) for item in value]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    if len(known) > 1 and len(set(known)) == 1:
        return f"tuple[{known[0]}, ...]"
    return f"tuple[{', '.join(known)}]" if len(known) <= MOST_SHOWN else None


def _common(values: Iterable[Any]) -> str | None:
    kinds = {annotation_for(item) for item in values}
    return kinds.pop() if len(kinds) == 1 else None


def article(name: str) -> str:
    """Return a name with its article."""
    if name in ("bytes", "NoneType"):
        return name.removesuffix("Type")
    return f"an {name}" if name[:1] in "AEIOaeio" else f"a {name}"


def describe_change(changed: Changed, root: str) -> str:
    """Return a clause that says what is wrong with a part of the value that `root` names."""
    name = type(changed.value).__name__
    if changed.is_key:
        where = f"{root}{changed.place}"
        return f"has {article(name)} as a key of {where}, and JSON has only text as keys"
    kept = returned_as(changed.value)
    verb = f"is {article(name)}" if not changed.place else f"holds {article(name)} at "
    where = f"{root}{changed.place}" if changed.place else ""
    what = (
        "cannot be stored as JSON" if kept is None else f"JSON would give back as {article(kept)}"
    )
    return f"{verb}{where}, which {what}"


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
