"""Locating: find the part of a value that cannot be written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

from msgspec import Struct

from poolhand.wire.typed import dump_for_json

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
