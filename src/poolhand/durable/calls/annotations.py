"""Annotations of functions, also where some of them mean nothing at run time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_type_hints


def annotations_of(fn: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the annotations of a function, and as texts those that mean nothing at run time."""
    try:
        return get_type_hints(fn, include_extras=True), {}
    except Exception:
        # One that means nothing at run time is no reason not to run, nor to forget the others.
        known = getattr(fn, "__annotations__", {})
        found = {name: _hint(fn, annotation) for name, annotation in known.items()}
        hints = {name: hint for name, hint in found.items() if hint is not None}
        return hints, {name: str(known[name]) for name in known if name not in hints}


def _hint(fn: Callable[..., Any], annotation: Any) -> Any:
    one = SimpleNamespace(__annotations__={"it": annotation})
    try:
        hints = get_type_hints(one, getattr(fn, "__globals__", {}), include_extras=True)
    except Exception:
        return None
    return hints["it"]
