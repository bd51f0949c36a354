"""Unions whose members look alike as data, such as `str | Path`: written with the member's name.

Text, numbers, bools and None that are members themselves are written as they are. Any other value
is written as {"$type": its member, "value": …}. Data without a name is read as the first member
that accepts it, so callers that only use JSON need not know the names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, get_origin

from poolhand.wire.typed import TypeMarker, build_from_json, build_from_msgpack

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
