"""Checks of values against the JSON Schema that a worker has published.

Only values that certainly do not fit are refused: the worker that runs the job validates again. So
formats and unknown names inside objects are not checked. Required fields of objects are checked,
except those that a schema omits from `NEEDED`: they may be given by an alias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

from poolhand.rules.validation import not_allowed

NEEDED = "x-needed"  # on an object: those of its `required` fields that have no alias
DEEPEST = 32  # levels of a value that are checked

TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (NoneType,),
}

BOUNDS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value: value, lambda value, bound: value >= bound, "at least"),
    "maximum": (lambda value: value, lambda value, bound: value <= bound, "at most"),
    "exclusiveMinimum": (lambda value: value, lambda value, bound: value > bound, "above"),
    "exclusiveMaximum": (lambda value: value, lambda value, bound: value < bound, "below"),
    "minLength": (len, lambda size, bound: size >= bound, "at least this long:"),
    "maxLength": (len, lambda size, bound: size <= bound, "at most this long:"),
    "minItems": (len, lambda size, bound: size >= bound, "at least this long:"),
    "maxItems": (len, lambda size, bound: size <= bound, "at most this long:"),
}


def schema_fault(value: Any, schema: Any, root: Mapping[str, Any], where: str) -> str | None:
    """Return the fault of a value, as JSON has it; `root` holds the `$defs` of the schema."""
    return _fault(value, schema, root, where, DEEPEST)


def _fault(value: Any, schema: Any, root: Mapping[str, Any], where: str, levels: int) -> str | None:
    if not isinstance(schema, Mapping) or not levels:
        return None
    if isinstance(name := schema.get("$ref"), str):
        found = root.get("$defs", {}).get(name.removeprefix("#/$defs/"))
        return _fault(value, found, root, where, levels - 1)
    choices = schema.get("anyOf") or schema.get("oneOf") or ()
    faults = [_fault(value, one, root, where, levels - 1) for one in choices]
    if faults and None not in faults:
        meant = [
            fault for one, fault in zip(choices, faults, strict=True) if _is_meant(value, one, root)
        ]
        if len(meant) == 1:
            return meant[0]
        return not_allowed(where, value, _allowed(schema))
    if not _fits(value, schema):
        return not_allowed(where, value, _allowed(schema))
    return (
        _bound_fault(value, schema, where)
        or _missing_fault(value, schema, where)
        or _part_fault(value, schema, root, where, levels)
    )


def _is_meant(value: Any, schema: Any, root: Mapping[str, Any]) -> bool:
    """Return whether a choice has the type of the value, object or array."""
    if isinstance(schema, Mapping) and isinstance(name := schema.get("$ref"), str):
        schema = root.get("$defs", {}).get(name.removeprefix("#/$defs/"))
    names = schema.get("type") if isinstance(schema, Mapping) else None
    return isinstance(value, dict | list) and names == (
        "object" if isinstance(value, dict) else "array"
    )


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    if "enum" in schema and value not in schema["enum"]:
        return False
    names = schema.get("type", ())
    types = [TYPES[one] for one in ([names] if isinstance(names, str) else names) if one in TYPES]
    if not types:
        return True
    if "format" in schema and isinstance(value, int | float) and not isinstance(value, bool):
        # A decimal, for example, is written as text but may be given as a number.
        return True
    if isinstance(value, bool):
        return (bool,) in types
    return any(isinstance(value, one) for one in types)


def _bound_fault(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    for name, (measure, holds, words) in BOUNDS.items():
        kinds = str | list if measure is len else int | float
        if name in schema and isinstance(value, kinds) and not holds(measure(value), schema[name]):
            return not_allowed(where, value, f"{words} {schema[name]}")
    return None


def _missing_fault(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    if not isinstance(value, dict):
        return None
    needed = schema.get(NEEDED, schema.get("required", ()))
    missing = [f"{where}.{name}" for name in needed if name not in value]
    if not missing:
        return None
    be, them = ("is", "it") if len(missing) == 1 else ("are", "them")
    return f"{', '.join(missing)} {be} missing; {schema.get('title', 'the task')} requires {them}"


def _part_fault(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], where: str, levels: int
) -> str | None:
    parts: list[tuple[str, Any, Any]] = []
    if isinstance(value, list):
        parts = [(f"{where}[{n}]", one, schema.get("items")) for n, one in enumerate(value)]
    elif isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties")
        parts = [(f"{where}.{key}", one, known.get(key, other)) for key, one in value.items()]
    faults = (_fault(one, kind, root, place, levels - 1) for place, one, kind in parts)
    return next((fault for fault in faults if fault is not None), None)


def _allowed(schema: Mapping[str, Any]) -> str:
    """Describe the values that a schema allows."""
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_allowed, choices)))
    names = schema.get("type", ())
    found = [names] if isinstance(names, str) else list(names)
    if found == ["object"] and "title" in schema:
        return f"object {schema['title']}"
    return " or ".join(found) or str(schema.get("$ref", "a fitting value")).removeprefix("#/$defs/")
