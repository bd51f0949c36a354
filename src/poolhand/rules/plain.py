"""Plain data: views as dicts, and text of jobs made harmless for a terminal."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from enum import Enum
from math import isfinite
from typing import Any

from msgspec import Struct

DEEPEST = 50
LONGEST_TEXT = 2000


class PlainView(Struct, frozen=True):
    """A frozen record that can be shown to users."""

    def to_dict(self) -> dict[str, Any]:
        """Return the record as dicts, lists, texts, numbers, bools and None, for any JSON encoder.

        Datetimes are ISO-8601 text, durations seconds, enums their values, bytes base64. Objects of
        your own, such as the result of a job in memory, use their `model_dump` or fields, else
        become text.
        """
        return {name: plain(getattr(self, name)) for name in self.__struct_fields__}


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as plain data."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if isfinite(value) else None
    if depth > DEEPEST:
        return _text(value)
    match value:
        case Enum():
            return plain(value.value, depth + 1)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray():
            return b64encode(value).decode()
        case Mapping():
            return {_key(key): plain(item, depth + 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item, depth + 1) for item in value]
        case _:
            return _of_object(value, depth)


def _of_object(value: Any, depth: int) -> Any:
    kind = type(value)
    if isinstance(value, type) or callable(value):
        return getattr(value, "__qualname__", None) or _text(value)
    try:
        if hasattr(kind, "model_dump"):
            return plain(value.model_dump(mode="json"), depth + 1)
        if isinstance(value, Struct):
            return {**_tag(value), **_fields(value, value.__struct_fields__, depth)}
        return _fields(value, kind.__dataclass_fields__, depth)
    except Exception:
        # Attributes and methods of the user's types may raise anything.
        return _text(value)


def _tag(value: Struct) -> dict[str, Any]:
    config = value.__struct_config__
    return {} if config.tag is None else {str(config.tag_field): config.tag}


def _fields(value: Any, names: Iterable[str], depth: int) -> dict[str, Any]:
    return {name: plain(getattr(value, name), depth + 1) for name in names}


def _key(key: Any) -> str:
    found = plain(key)
    return found if isinstance(found, str) else str(found)


def _text(value: Any) -> str:
    try:
        return str(value)[:LONGEST_TEXT]
    except Exception:
        return f"<{type(value).__qualname__}>"


LONGEST_LINE = 16 * 1024


def safe(text: str) -> str:
    """Return a text in which every control character is escaped."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def _spelled(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def indented(text: str, indent: str) -> str:
    """Return lines of text to follow a log line: escaped, each with an indent."""
    return "".join(f"\n{indent}{safe(line)}" for line in text.split("\n"))


def complete_lines(held: str, text: str, longest: int = LONGEST_LINE) -> tuple[list[str], str]:
    """Return the lines that a text completes after the held text, and the rest to hold.

    None of them is longer than `longest` characters: a longer line is split into several.
    """
    *ended, rest = (held + text).split("\n")
    lines = [piece for line in ended for piece in _pieces(line.removesuffix("\r"), longest)]
    *full, rest = _pieces(rest, longest)
    return lines + full, rest


def _pieces(line: str, longest: int) -> list[str]:
    if len(line) <= longest:
        return [line]
    return [line[start : start + longest] for start in range(0, len(line), longest)]
