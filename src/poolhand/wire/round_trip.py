"""Round trips: whether a value comes back unchanged under an annotation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
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
from poolhand.wire.annotation import TYPE, VALUE, nodes

_OBJECTS = DataclassType | StructType | NamedTupleType
_ARRAYS = (list, tuple, set, frozenset)


def is_untyped(node: Type) -> bool:
    """Return whether a type says nothing about its values."""
    return isinstance(node, AnyType) or (isinstance(node, CustomType) and node.cls is object)


def is_partly_untyped(node: Type) -> bool:
    """Return whether a type leaves some part of its values untyped."""
    return any(map(is_untyped, nodes(node)))


def find_untyped_change(node: Type, value: Any, keeps: Keeps, place: str = "") -> Changed | None:
    """Return the first part that would change among the untyped parts."""
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
                # A subclass becomes the dict that is asked for.
                return find_change(dict(value), keeps, place)
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


class LostPart(NamedTuple):
    """A part of a value that comes back changed.

    `how`: its "type" or its "value" changes, or it is not stored because it is "excluded",
    "private" or "dropped", a key that the class has no field for. `known` are the class's names.
    """

    place: str
    given: Any
    back: Any
    how: str = "type"
    owner: str = ""
    known: tuple[str, ...] = ()


class Part(NamedTuple):
    """A part of a value as it was given and as it came back; `how` it is lost, if known."""

    step: str
    given: Any
    back: Any
    how: str = ""


class Within(NamedTuple):
    """What a part belongs to; `exact`: a model, whose fields have already been validated."""

    owner: str = ""
    exact: bool = False
    depth: int = 0


TOP = Within()


def find_loss(given: Any, back: Any, place: str = "", within: Within = TOP) -> LostPart | None:
    """Return the first part of a value that did not come back as it was.

    A conversion that the annotation asks for is no loss: a tuple becomes the requested list. Inside
    a model it is a loss, because a model's fields already have their types. A part of an object
    that has the requested type must come back equal.
    """
    if within.depth > DEEPEST or is_equal(given, back):
        return None
    kinds = type(given), type(back)
    fields = _fields_of(given)
    is_object = fields is not None
    if _is_other_type(given, back) or ((is_object or within.exact) and kinds[0] is not kinds[1]):
        return LostPart(place, given, back)
    dropped = _dropped(given, back, place)
    if dropped is not None:
        return dropped
    owner = kinds[0].__name__ if is_object else within.owner
    exact = within.exact or hasattr(kinds[0], "model_dump")
    inner = Within(owner, exact, within.depth + 1)
    for step, one, other, how in _pairs(given, back, fields):
        found = find_loss(one, other, place + step, inner)
        if found is not None:
            return LostPart(place + step, one, other, how, owner) if how else found
    if within.owner and not is_object and kinds[0] is kinds[1] and _is_changed(given, back):
        return LostPart(place, given, back, "value", within.owner)
    return None


def _is_other_type(given: Any, back: Any) -> bool:
    """Return whether a value has become text or bytes, or is masked."""
    kind = type(back)
    if kind is str and not isinstance(given, str):
        return True
    if kind in (bytes, bytearray) and not isinstance(given, bytes | bytearray | memoryview):
        return True
    return hasattr(back, "get_secret_value")


def is_equal(given: Any, back: Any) -> bool:
    """Return whether two values are equal, False if comparing them raises."""
    try:
        return bool(given == back)
    except Exception:
        # The user's types may raise anything when compared.
        return False


def _is_changed(given: Any, back: Any) -> bool:
    """Return whether a value of the same type certainly differs."""
    kind: Any = type(given)
    if isinstance(given, dict | list | tuple):
        # Their items have already been compared.
        return len(given) != len(back)
    if kind.__eq__ is object.__eq__ or not is_equal(given, given):
        # Compared by identity, such as locks and clients, or NaN.
        return False
    if isinstance(given, datetime) and given.tzinfo is not None and back.tzinfo is not None:
        # Python never treats datetimes of two zones as equal in an hour that occurs twice.
        return bool(given.astimezone(UTC) != back.astimezone(UTC))
    try:
        return bool(given != back)
    except Exception:
        # Arrays, for example, compare item by item.
        return False


def _fields_of(value: Any) -> list[str] | None:
    """Return the names of the fields of an object that is written by its fields."""
    kind: Any = type(value)
    if isinstance(value, Struct):
        return list(value.__struct_fields__)
    if hasattr(kind, "model_dump"):
        return [*kind.model_fields, *(getattr(value, "__pydantic_extra__", None) or ())]
    fields = getattr(kind, "__dataclass_fields__", None)
    return None if fields is None else list(fields)


def _pairs(given: Any, back: Any, fields: list[str] | None) -> Iterator[Part]:
    if fields is not None:
        yield from _field_pairs(given, back, fields)
    elif isinstance(given, dict):
        # A key that is missing now has become text.
        keys = [key for key in given if isinstance(back, dict) and key not in back]
        yield from (Part(" (a key)", key, "") for key in keys if not isinstance(key, str))
        has, get = _lookup(back)
        yield from (
            Part(f"[{short(key)}]", one, get(key)) for key, one in given.items() if has(key)
        )
    elif isinstance(given, list | tuple) and isinstance(back, list | tuple):
        for index, (one, other) in enumerate(zip(given, back, strict=False)):
            yield Part(f"[{index}]", one, other)
    elif isinstance(given, set | frozenset) and isinstance(back, set | frozenset):
        # Pair unequal items of the same class: which item became which is unknown.
        others = {type(one): one for one in back - given}
        for one in given - back:
            if type(one) in others:
                yield Part(" (an item)", one, others[type(one)])


def _lookup(back: Any) -> tuple[Callable[[Any], bool], Callable[[Any], Any]]:
    """Return functions that look up a key in a dict, or in an object made from one."""
    if isinstance(back, dict):
        return back.__contains__, back.__getitem__
    names = _fields_of(back) or ()
    return lambda key: key in names and hasattr(back, key), lambda key: getattr(back, key)


def _field_pairs(given: Any, back: Any, fields: list[str]) -> Iterator[Part]:
    models = getattr(type(given), "__pydantic_fields__", {})
    for name in fields:
        if hasattr(given, name) and hasattr(back, name):
            excluded = getattr(models.get(name), "exclude", None)
            how = "excluded" if excluded else ""
            yield Part(f".{name}", getattr(given, name), getattr(back, name), how)
    private = getattr(given, "__pydantic_private__", None) or {}
    others = getattr(back, "__pydantic_private__", None) or {}
    for name, one in private.items():
        yield Part(f".{name}", one, others.get(name), "private")


def _dropped(given: Any, back: Any, place: str) -> LostPart | None:
    """Return the first key of a dict that is missing in the object made from it."""
    if not isinstance(given, dict):
        return None
    if isinstance(back, dict):
        # With as many keys as before, they were only converted, for example to numbers.
        gone = [key for key in given if key not in back] if len(back) < len(given) else []
        known: tuple[str, ...] = ()
    else:
        known = known_names(type(back))
        given = given[VALUE] if given.keys() == {TYPE, VALUE} else given
        gone = [key for key in given if key not in known] if known else []
    owner = "" if isinstance(back, dict) else type(back).__name__
    return LostPart(place, gone[0], back, "dropped", owner, known) if gone else None


def known_names(kind: Any) -> tuple[str, ...]:
    """Return the keys that a class reads; none if it may accept or explicitly ignores others."""
    if issubclass(kind, Struct):
        tag = kind.__struct_config__.tag_field
        names = {*kind.__struct_fields__, *kind.__struct_encode_fields__, tag or ""}
        return tuple(sorted(names - {""}))
    if hasattr(kind, "__pydantic_fields__"):
        return _model_names(kind)
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(one.name for one in kind.__attrs_attrs__)
    return tuple(getattr(kind, "__dataclass_fields__", ()))


def _model_names(kind: Any) -> tuple[str, ...]:
    config = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
    validators = kind.__pydantic_decorators__.model_validators.values()
    if "extra" in config or any(one.info.mode != "after" for one in validators):
        return ()
    names = dict.fromkeys(kind.__pydantic_fields__)
    for field in kind.__pydantic_fields__.values():
        for alias in (field.alias, field.validation_alias):
            for one in getattr(alias, "choices", (alias,)):
                names[str(getattr(one, "path", (one,))[0])] = None
    return tuple(name for name in names if name != "None")
