"""Fit: does a value come back as it is under an annotation?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.inspect import (
    AnyType,
    CustomType,
    DataclassType,
    DictType,
    NamedTupleType,
    StructType,
    TupleType,
    Type,
    TypedDictType,
    UnionType,
)

from poolhand.rules.json_values import DEEPEST, Changed, Keeps, find_change, short
from poolhand.wire.hints import nodes

_OBJECTS = DataclassType | StructType | NamedTupleType
_ARRAYS = (list, tuple, set, frozenset)


def is_untyped(node: Type) -> bool:
    """Return whether a type says nothing at all of its values."""
    return isinstance(node, AnyType) or (isinstance(node, CustomType) and node.cls is object)


def is_partly_untyped(node: Type) -> bool:
    """Return whether a type leaves open what some part of its values is."""
    return any(map(is_untyped, nodes(node)))


def find_untyped_change(node: Type, value: Any, keeps: Keeps, place: str = "") -> Changed | None:
    """Return the first part that would change among those whose type is left open."""
    if is_untyped(node):
        return find_change(value, keeps, place)
    if place.count("[") + place.count(".") > DEEPEST:
        return None
    match node:
        case UnionType():
            return _in_union(node, value, keeps, place)
        case DictType():
            if not isinstance(value, dict):
                return Changed(place, value) if is_untyped(node.value_type) else None
            if is_untyped(node.key_type) and is_untyped(node.value_type):
                return find_change(value, keeps, place)
        case DataclassType() | StructType() | NamedTupleType():
            if not isinstance(value, node.cls):
                return None
        case TypedDictType():
            if not isinstance(value, dict):
                return None
        case _:
            if not isinstance(value, _ARRAYS):
                return None
    found = (
        find_untyped_change(inner, part, keeps, place + step)
        for step, inner, part in _steps(node, value)
    )
    return next((one for one in found if one is not None), None)


def _steps(node: Any, value: Any) -> Iterator[tuple[str, Type, Any]]:
    match node:
        case DictType():
            for key, item in value.items():
                yield f"[{short(key)}]", node.value_type, item
        case TypedDictType():
            for field in node.fields:
                if field.name in value:
                    yield f"[{field.name!r}]", field.type, value[field.name]
        case DataclassType() | StructType() | NamedTupleType():
            for field in node.fields:
                if hasattr(value, field.name):
                    yield f".{field.name}", field.type, getattr(value, field.name)
        case TupleType():
            for index, (inner, item) in enumerate(zip(node.item_types, value, strict=False)):
                yield f"[{index}]", inner, item
        case _:
            item_type: Type | None = getattr(node, "item_type", None)
            if item_type is not None:
                for index, item in enumerate(value):
                    yield f"[{index}]", item_type, item


def _in_union(node: UnionType, value: Any, keeps: Keeps, place: str) -> Changed | None:
    if any(map(is_untyped, node.types)):
        return find_change(value, keeps, place)
    for one in node.types:
        takes_dict = isinstance(one, DictType | TypedDictType) and isinstance(value, dict)
        takes_items = _has_items(one) and isinstance(value, _ARRAYS)
        if takes_dict or takes_items or (isinstance(one, _OBJECTS) and isinstance(value, one.cls)):
            return find_untyped_change(one, value, keeps, place)
    return None


def _has_items(node: Type) -> bool:
    return hasattr(node, "item_type") or isinstance(node, TupleType)


class Lost(NamedTuple):
    """A part of a value that comes back as something else."""

    place: str
    given: Any
    back: Any


def find_loss(
    given: Any, back: Any, place: str = "", *, exact: bool = False, depth: int = 0
) -> Lost | None:
    """Return the first part of a value that did not come back as what it was.

    What an annotation makes of a value is no loss: a tuple becomes the list that is asked for. It
    is one where it is `exact`, as in a model, whose fields are what they shall be already.
    """
    if depth > DEEPEST or is_equal(given, back):
        return None
    kinds = type(given), type(back)
    if kinds[1] is str and not isinstance(given, str):
        return Lost(place, given, back)
    if kinds[1] in (bytes, bytearray) and not isinstance(given, bytes | bytearray | memoryview):
        return Lost(place, given, back)
    if hasattr(back, "get_secret_value"):
        return Lost(place, given, back)
    fields = _fields_of(given)
    if (fields is not None or exact) and kinds[0] is not kinds[1]:
        return Lost(place, given, back)
    exact = exact or hasattr(kinds[0], "model_dump")
    return _in_parts(_pairs(given, back, fields), place, exact, depth)


Pairs = Iterable[tuple[str, Any, Any]]


def _in_parts(pairs: Pairs, place: str, exact: bool, depth: int) -> Lost | None:
    for step, given, back in pairs:
        found = find_loss(given, back, place + step, exact=exact, depth=depth + 1)
        if found is not None:
            return found
    return None


def is_equal(given: Any, back: Any) -> bool:
    """Return whether two values are equal, False where their types cannot say."""
    try:
        return bool(given == back)
    except Exception:
        # Whatever the types of the user do when they are compared.
        return False


def _fields_of(value: Any) -> list[str] | None:
    """Return the names of the fields of an object that is written by its fields."""
    kind: Any = type(value)
    if isinstance(value, Struct):
        return list(value.__struct_fields__)
    models: Callable[[], Any] | None = getattr(kind, "model_dump", None)
    if models is not None:
        names = [name for name, one in kind.model_fields.items() if not one.exclude]
        return [*names, *(getattr(value, "__pydantic_extra__", None) or ())]
    fields = getattr(kind, "__dataclass_fields__", None)
    return None if fields is None else list(fields)


def _pairs(given: Any, back: Any, fields: list[str] | None) -> Pairs:
    if fields is not None:
        both = [name for name in fields if hasattr(given, name) and hasattr(back, name)]
        return [(f".{name}", getattr(given, name), getattr(back, name)) for name in both]
    if isinstance(given, dict) and isinstance(back, dict):
        # A key that is not there any more has become text.
        keys = [key for key in given if key not in back and not isinstance(key, str)]
        same = [(f"[{short(key)}]", given[key], back[key]) for key in given if key in back]
        return [(" (a key)", key, "") for key in keys] + same
    if isinstance(given, list | tuple) and isinstance(back, list | tuple):
        pairs = enumerate(zip(given, back, strict=False))
        return [(f"[{index}]", one, other) for index, (one, other) in pairs]
    return []
