"""Types that msgspec does not know: pydantic models (recognised by their methods), paths, object.

Pydantic is never imported here; it is used only when a type or a value has already imported it.
Models are written by field name, so that aliases do not matter; they need pydantic 2.11 or newer.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import PurePath
from types import NoneType
from typing import Any

import msgspec

ALLOWED = "plain values, enums, paths, dataclasses, msgspec Structs and pydantic models"
MOST_ADAPTERS = 1024
_ONLY_VALUES = (bool, NoneType, tuple, frozenset)


class TypeMarker(type):
    """The metaclass of types that stand for an annotation that msgspec cannot read itself."""

    def __instancecheck__(cls, instance: Any) -> bool:
        # msgspec checks the type of the result: any value that `read` returns is accepted.
        return True

    def read(cls, value: Any, format: Any) -> Any:
        """Return a value of the annotation from plain data; `format` is msgspec.json or msgpack."""
        raise NotImplementedError


def dump_for_json(value: Any) -> Any:
    """Return the form of a model that is written as JSON."""
    return _dump(value, "json")


def dump_for_msgpack(value: Any) -> Any:
    """Return the form of a model for MessagePack, which preserves bytes and datetimes."""
    return _dump(value, "python")


def build_from_json(type: Any, value: Any) -> Any:
    """Make a model from JSON data; validated as JSON, because strict models read dates only so."""
    return _build(type, value, msgspec.json)


def build_from_msgpack(type: Any, value: Any) -> Any:
    """Make a model from MessagePack data."""
    return _build(type, value, msgspec.msgpack)


def is_readable(type: Any) -> bool:
    """Return whether this module can make values of a class that msgspec does not know."""
    return (
        type is object
        or isinstance(type, TypeMarker)
        or hasattr(type, "model_validate_json")
        or _is_path(type)
    )


def adapter_of(type: Any) -> Any:
    """Return pydantic's TypeAdapter of a type; pydantic must be imported already."""
    try:
        return _adapter(type)
    except TypeError:
        # The type has no hash.
        return _make_adapter(type)


def validate(adapter: Any, value: Any, format: Any) -> Any:
    """Return the value that an adapter makes of plain data."""
    if format is msgspec.json:
        return _built(adapter.validate_json, msgspec.json.encode(value))
    return _built(adapter.validate_python, value)


def _make_adapter(type: Any) -> Any:
    return sys.modules["pydantic"].TypeAdapter(type)


_adapter = lru_cache(MOST_ADAPTERS)(_make_adapter)


def _build(type: Any, value: Any, format: Any) -> Any:
    if type is object:
        return value
    if isinstance(type, TypeMarker):
        return type.read(value, format)
    if _is_path(type):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{value.__class__.__name__}`")
        return type(value)
    if format is msgspec.json:
        return _built(_method(type, "model_validate_json"), msgspec.json.encode(value))
    return _built(_method(type, "model_validate"), value)


def _is_path(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, PurePath)


def _dump(value: Any, mode: str) -> Any:
    kind = type(value)
    if hasattr(kind, "model_dump"):
        return value.model_dump(mode=mode, round_trip=True, by_alias=False)
    if isinstance(value, PurePath):
        return str(value)
    name = kind.__qualname__
    if isinstance(value, _ONLY_VALUES):
        # msgspec itself writes these as values, so this one is a key.
        raise TypeError(
            f"{name} cannot be a key of a dict; keys are text, numbers, dates or enums: give such "
            "keys, or a list of pairs"
        )
    if hasattr(kind, "get_secret_value"):
        raise TypeError(f"{name} is masked when it is written; pass a reference to the secret")
    if hasattr(kind, "__get_pydantic_core_schema__") and "pydantic" in sys.modules:
        return adapter_of(kind).dump_python(value, mode="json")
    raise TypeError(f"{name} cannot be written here; give {ALLOWED}, as keys text or numbers")


def _method(type: Any, name: str) -> Any:
    method = getattr(type, name, None)
    if method is None:
        raise TypeError(f"{type!r} cannot be made from data; ask for {ALLOWED}")
    return method


def _built(validate: Any, value: Any) -> Any:
    try:
        return validate(value, by_name=True)
    except ValueError as error:
        # `from None`, because the original error shows the input, which may be confidential.
        raise ValueError(_text(error)) from None


def _text(error: ValueError) -> str:
    if not hasattr(error, "errors"):
        return str(error)
    faults = error.errors()
    return "; ".join(": ".join((*_place(one["loc"]), one["msg"])) for one in faults)


def _place(loc: tuple[Any, ...]) -> list[str]:
    return [".".join(map(str, loc))] if loc else []
