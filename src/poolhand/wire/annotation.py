"""Annotations: convert them to types that msgspec reads, and explain why some cannot be read.

An annotation with pydantic types where msgspec cannot read them is left to pydantic's TypeAdapter.
Any other union that msgspec cannot read is written with the name of its member.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.inspect import CustomType, DictType, Field, Type, type_info

from poolhand.rules.json_values import article
from poolhand.wire.typed import (
    TypeMarker,
    adapter_of,
    build_from_json,
    build_from_msgpack,
    is_readable,
    validate,
)

Lower = Callable[[Any], Any]
Member = tuple[Any, Any, Lower | None]  # the annotation, the type that reads it, its lowering

TYPE, VALUE = "$type", "value"
_PLAIN = (str, int, float, bool)


def choice_of(members: Sequence[Member]) -> tuple[Any, Lower]:
    """Return a type that reads any of these members, and the function that lowers a value."""
    names = _names([annotation for annotation, _, _ in members])
    types = {name: type for name, (_, type, _) in zip(names, members, strict=True)}
    plain = {kind for kind, _, _ in members if kind in _PLAIN} | {NoneType}

    class Choice(TypeMarker):
        def read(cls, value: Any, format: Any) -> Any:
            if type(value) in plain:
                return value
            if isinstance(value, dict) and value.keys() == {TYPE, VALUE}:
                if value[TYPE] not in types:
                    raise ValueError(f"{value[TYPE]!a} is none of {', '.join(types)}")
                return _read(value[VALUE], types[value[TYPE]], format)
            return _first(value, types.values(), format)

    def lower(value: Any) -> Any:
        if type(value) in plain:
            return value
        found = None
        for name, (annotation, _, inner) in zip(names, members, strict=True):
            if annotation is type(value) or (found is None and _is_of(value, annotation)):
                # Prefer the exact class to a base class: every datetime is a date.
                found = name, inner
        if found is None:
            return value
        return {TYPE: found[0], VALUE: value if found[1] is None else found[1](value)}

    return Choice("Choice", (), {}), lower


def lower_items(lowers: Sequence[Lower | None], *, repeat: bool = False) -> Lower:
    """Return a function that lowers the items of a list, each by its own or all by the first."""

    def lower(value: Any) -> Any:
        if not isinstance(value, list | tuple | set | frozenset):
            return value
        own = [lowers[0]] * len(value) if repeat else lowers
        return [item if one is None else one(item) for item, one in zip(value, own, strict=False)]

    return lower


def lower_dict(inner: Lower | None) -> Lower:
    """Return a function that lowers the values of a dict."""

    def lower(value: Any) -> Any:
        if not isinstance(value, dict) or inner is None:
            return value
        return {key: inner(item) for key, item in value.items()}

    return lower


def lower_places(lowers: Sequence[Lower]) -> Lower:
    """Return a function that applies each of these in turn."""

    def lower(value: Any) -> Any:
        for one in lowers:
            value = one(value)
        return value

    return lower


def _read(value: Any, type: Any, format: Any) -> Any:
    build = build_from_json if format.__name__ == "msgspec.json" else build_from_msgpack
    return format.decode(format.encode(value), type=type, dec_hook=build)


def _first(value: Any, types: Any, format: Any) -> Any:
    reasons = []
    for one in types:
        try:
            return _read(value, one, format)
        except Exception as error:
            reasons.append(str(error))
    raise ValueError("; ".join(reasons))


def _names(annotations: Sequence[Any]) -> list[str]:
    names = [getattr(one, "__name__", None) or str(one) for one in annotations]
    # Members with the same name, such as list[int] and list[str], are named by their full text.
    return [
        name if names.count(name) == 1 else str(one)
        for name, one in zip(names, annotations, strict=True)
    ]


def _is_of(value: Any, annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and isinstance(value, kind)


STORABLE = (
    "pass the data it is made from, or make it a dataclass, a msgspec Struct or a pydantic model"
)
ENUMS = "an Enum can be stored if its values are all str or all int"
_UNIONS = (Union, UnionType)


class Unreadable(Exception):
    """Stored data cannot be read as an annotation; the message says why, and what to do."""


class ReadableType(NamedTuple):
    """The type that reads an annotation; `lower` converts a value before writing, None: as is."""

    type: Any
    node: Type
    lower: Lower | None = None


def readable(hint: Any) -> ReadableType:
    """Return the type that reads an annotation, or raise Unreadable; NameError: not defined yet."""
    if hint is Iterable or (get_origin(hint) is Iterable and not get_args(hint)):
        raise Unreadable("name the type of its items, as in Iterable[int], or write Sequence")
    if get_origin(hint) is Iterable:
        hint = list[get_args(hint)]  # type: ignore[misc]
    brought = set(_brought(hint, set()))
    if "metadata" in brought:
        try:
            return _by_pydantic(hint)
        except Unreadable:
            # Pydantic does not know a part of it, so pydantic's constraints do not apply.
            brought.discard("metadata")
    try:
        return _by_msgspec(hint, None)
    except Unreadable as error:
        if "type" in brought:
            return _by_pydantic(hint)
        if not _has_union(hint):
            raise
        first = error
    try:
        return _by_msgspec(*_rewrite(hint))
    except Unreadable:
        raise first from None


def _by_msgspec(hint: Any, lower: Lower | None) -> ReadableType:
    try:
        msgspec.json.Decoder(hint, dec_hook=build_from_json)
        node = type_info(hint)
    except NameError:
        raise
    except Exception as error:
        raise Unreadable(_reason(error)) from None
    for part in nodes(node):
        if isinstance(part, DictType) and isinstance(part.key_type, CustomType):
            name = part.key_type.cls.__name__
            raise Unreadable(f"{name} cannot be a key of a dict; keys are text, numbers or enums")
        if isinstance(part, CustomType) and not is_readable(part.cls):
            raise Unreadable(f"{article(part.cls.__name__)} cannot be stored: {STORABLE}")
    return ReadableType(hint, node, lower)


def _by_pydantic(hint: Any) -> ReadableType:
    try:
        adapter = adapter_of(hint)
    except NameError:
        raise
    except Exception as error:
        raise Unreadable(f"pydantic cannot read it: {str(error).splitlines()[0]}") from None
    if not adapter.pydantic_complete:
        raise NameError("a part of it is not defined yet")

    class Pydantic(TypeMarker):
        def read(cls, value: Any, format: Any) -> Any:
            return validate(adapter, value, format)

    marker = Pydantic("Annotation", (), {})
    return ReadableType(marker, type_info(marker))


def _reason(error: Exception) -> str:
    text = str(error)
    if "Type unions may not contain" in text or "Type unions containing" in text:
        return (
            f"{text}; give each member a tag (msgspec.Struct, tag=True), or wrap them in one class"
        )
    if "Enums must contain" in text:
        return f"{ENUMS}: change its values, or pass one as `.value`, annotated with its type"
    return text


def nodes(node: Type) -> Iterator[Type]:
    """Yield a type and all types it consists of, each once."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting.extend(_parts(part))


def _parts(node: Type) -> Iterator[Type]:
    for name in node.__struct_fields__:
        value = getattr(node, name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Type):
                yield one
            elif isinstance(one, Field):
                yield one.type


# Pydantic types in annotations


def _brought(hint: Any, seen: set[int]) -> Iterator[str]:
    """Yield "type" for each pydantic type in an annotation, "metadata" for pydantic metadata."""
    if "pydantic" not in sys.modules or id(hint) in seen:
        return
    seen.add(id(hint))
    if hasattr(hint, "__get_pydantic_core_schema__"):
        yield "type"
        return
    if get_origin(hint) is Annotated:
        base, *metadata = get_args(hint)
        yield from _brought(base, seen)
        if any(type(one).__module__.partition(".")[0] == "pydantic" for one in metadata):
            yield "metadata"
        return
    for part in (*get_args(hint), *_fields(hint)):
        yield from _brought(part, seen)


def _fields(hint: Any) -> Iterable[Any]:
    kind = get_origin(hint) or hint
    if not isinstance(kind, type):
        return ()
    if not (is_dataclass(kind) or issubclass(kind, Struct | tuple | dict)):
        return ()
    if "__annotations__" not in vars(kind):
        return ()
    try:
        return get_type_hints(kind, include_extras=True).values()
    except Exception:
        return ()


# Unions


def _has_union(hint: Any) -> bool:
    return get_origin(hint) in _UNIONS or any(map(_has_union, get_args(hint)))


def _rewrite(hint: Any) -> tuple[Any, Lower | None]:
    """Return an annotation with unreadable unions replaced, and the function that lowers values."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base, lower = _rewrite(args[0])
        return (hint if base is args[0] else base), lower
    if origin is None or not args or origin is Callable:
        return hint, None
    pairs = [(arg, None) if arg is Ellipsis else _rewrite(arg) for arg in args]
    types = tuple(type for type, _ in pairs)
    lowers = [lower for _, lower in pairs]
    if origin in _UNIONS:
        return _union(types, args, lowers)
    if not any(lowers):
        return hint, None
    return origin[types], _lower_of(origin, args, lowers)


def _union(
    types: tuple[Any, ...], args: tuple[Any, ...], lowers: list[Lower | None]
) -> tuple[Any, Lower | None]:
    whole = reduce(or_, types)
    try:
        _by_msgspec(whole, None)
    except Unreadable:
        members = [one for one in zip(args, types, lowers, strict=True) if one[0] is not NoneType]
        for _, type, _ in members:
            _by_msgspec(type, None)
        marker, lower = choice_of(members)
        return (marker | None if NoneType in args else marker), lower
    own = [lower for lower in lowers if lower is not None]
    # At most one member takes lists and one takes dicts; the others leave a value unchanged.
    return whole, (lower_places(own) if own else None)


def _lower_of(origin: Any, args: tuple[Any, ...], lowers: list[Lower | None]) -> Lower:
    if origin is tuple and args[-1] is not Ellipsis:
        return lower_items(lowers)
    if origin is not tuple and len(args) == 2:
        return lower_dict(lowers[1])
    return lower_items([lowers[0]], repeat=True)
