"""Types that msgspec does not know: pydantic models, recognised by their methods, and object.

Pydantic is never imported here. Models go by field name, so that any alias comes back; they need
pydantic 2.11 or newer.
"""

from __future__ import annotations

from typing import Any

import msgspec

ALLOWED = "plain values, enums, dataclasses, msgspec Structs and pydantic models"


def dump_for_json(value: Any) -> Any:
    """Return what stands for a model in JSON."""
    return _dump(value, "json")


def dump_for_msgpack(value: Any) -> Any:
    """Return what stands for a model in MessagePack, which keeps bytes and moments as they are."""
    return _dump(value, "python")


def build_from_json(type: Any, value: Any) -> Any:
    """Make a model from what JSON held; as JSON, since a strict model reads dates only there."""
    if type is object:
        return value
    validate = _method(type, "model_validate_json")
    return _built(validate, msgspec.json.encode(value))


def build_from_msgpack(type: Any, value: Any) -> Any:
    """Make a model from what MessagePack held."""
    if type is object:
        return value
    return _built(_method(type, "model_validate"), value)


def _dump(value: Any, mode: str) -> Any:
    if not hasattr(type(value), "model_dump"):
        name = type(value).__qualname__
        raise TypeError(f"{name} cannot be written here; give {ALLOWED}, as keys text or numbers")
    return value.model_dump(mode=mode, round_trip=True, by_alias=False)


def _method(type: Any, name: str) -> Any:
    method = getattr(type, name, None)
    if method is None:
        raise TypeError(f"{type!r} cannot be made from data; ask for {ALLOWED}")
    return method


def _built(validate: Any, value: Any) -> Any:
    try:
        return validate(value, by_name=True)
    except ValueError as error:
        # Without where it comes from: that shows the input, which may be nobody's business.
        raise ValueError(_text(error)) from None


def _text(error: ValueError) -> str:
    if not hasattr(error, "errors"):
        return str(error)
    faults = error.errors()
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in faults)
