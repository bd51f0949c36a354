"""Reads annotations of functions, even if some of them cannot be resolved at run time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_type_hints


def annotations_of(fn: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the resolved annotations of a function, and the texts of those that cannot be."""
    try:
        return get_type_hints(fn, include_extras=True), {}
    except Exception:
        # Resolve one by one: an annotation that fails must not prevent the run or hide the others.
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
