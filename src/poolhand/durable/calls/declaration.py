"""Checks the functions that decorators get: anything else is refused with what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from poolhand.errors import UsageError
from poolhand.rules.validation import is_text, shown

OF_OBJECTS = ("self", "cls")


def checked_function(fn: Any, decorator: str) -> Callable[..., Any]:
    """Return the function that a decorator was given, such as "@app.task", or raise."""
    if isinstance(fn, staticmethod):
        # Only the function itself shows whether it is async.
        fn = fn.__func__
    if inspect.iscoroutine(fn):
        fn.close()
        raise UsageError(
            f"{decorator} takes a function, not a coroutine: give {fn.__name__}, not "
            f"{fn.__name__}(…)"
        )
    if not callable(fn):
        raise UsageError(f"{decorator} takes a function; {_other(fn, decorator)}")
    if _is_method(fn):
        (first, *_), name = inspect.signature(fn).parameters, fn.__qualname__
        raise UsageError(
            f"{decorator}: {name} is a method, and no {first!r} is kept with a job; make it a "
            f"function of the module, or a @staticmethod without {first!r}"
        )
    found: Callable[..., Any] = fn
    return found


def _other(value: object, decorator: str) -> str:
    """Return what to write instead of a value that is not a function."""
    given = shown(value)
    if isinstance(value, classmethod):
        return (
            "a classmethod needs its class, which is not kept with a job; make it a function of "
            "the module, or a @staticmethod"
        )
    if decorator in NAMED and is_text(value):
        pool = f", or to choose its pool {decorator}(pool={given})" if "app" in decorator else ""
        return f"{given} is a text: to name it write {decorator}(name={given}){pool}"
    return f"{given} cannot be called; write {decorator} above `def` or `async def`"


NAMED = ("@app.task", "@app.agent", "@tool")


def _is_method(fn: Any) -> bool:
    """Return whether a function is defined in a class and takes `self` or `cls`."""
    path = getattr(fn, "__qualname__", "").rsplit(".", 2)
    if not inspect.isfunction(fn) or len(path) < 2 or path[-2] == "<locals>":
        return False
    return next(iter(inspect.signature(fn).parameters), None) in OF_OBJECTS
