"""The signature of an agent: check that its first parameter accepts the session."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from poolhand.errors import UsageError

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def without_session(fn: Callable[..., Any], session: type) -> inspect.Signature:
    """Return the signature of an agent as its callers see it, or raise if it is invalid."""
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())
    if not inspect.iscoroutinefunction(fn):
        raise _refusal(fn, parameters, "it is not an async function")
    if not parameters:
        raise _refusal(fn, parameters, "it has no parameters")
    first = parameters[0]
    if first.kind not in POSITIONAL:
        raise _refusal(fn, parameters, f"its first parameter, {first}, cannot take the session")
    if not _may_be(_annotation(fn, first), session):
        raise _refusal(fn, parameters, f"its first parameter, {first}, is of another type")
    return signature.replace(parameters=parameters[1:])


def _annotation(fn: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter; Any if its name cannot be resolved here."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        return get_type_hints(fn, include_extras=True).get(parameter.name, Any)
    except Exception:
        return _looked_up(fn, parameter.annotation)


def _looked_up(fn: Callable[..., Any], text: str) -> Any:
    """Resolve one name in a function's globals, when another of its types cannot be resolved."""
    names = getattr(inspect.unwrap(fn), "__globals__", {})
    builtins = names.get("__builtins__", {})
    known = builtins if isinstance(builtins, dict) else vars(builtins)
    return names.get(text, known.get(text, Any))


def _may_be(kind: Any, session: type) -> bool:
    """Return whether a type may mean a session; only a clearly different type is rejected."""
    if get_origin(kind) is Annotated:
        return _may_be(get_args(kind)[0], session)
    if get_origin(kind) in (Union, UnionType):
        return any(_may_be(one, session) for one in get_args(kind))
    if kind is None or kind is type(None) or get_origin(kind) is not None:
        return False
    # Any is a class, and so is a protocol, which a session may well satisfy.
    if (
        kind in (inspect.Parameter.empty, Any)
        or not isinstance(kind, type)
        or getattr(kind, "_is_protocol", False)
    ):
        return True
    return issubclass(session, kind) or issubclass(kind, session)


def _refusal(fn: Callable[..., Any], parameters: list[inspect.Parameter], why: str) -> UsageError:
    name = getattr(fn, "__name__", None) or repr(fn)
    others = [str(one) for one in parameters if one.name != "session"]
    given = ", ".join(["session: Session", *others])
    return UsageError(
        f"{name} cannot be an agent: {why}; an agent is an async function whose first argument is "
        f"its session: `async def {name}({given})`"
    )
