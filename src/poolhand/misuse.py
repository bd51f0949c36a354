"""Misuse: calls that do not fit a signature raise an error that suggests the right option.

Python's own TypeError says that 'atempts' is unexpected, and nothing about 'attempts'. A call that
fits runs unchanged; only a TypeError is examined, so the check costs one frame.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import CO_VARARGS, CO_VARKEYWORDS, Parameter
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, StructMeta

from poolhand.errors import UsageError
from poolhand.rules.validation import nearest, no_option, shown

T = TypeVar("T")

LONGEST_DEFAULT = 20
NEAR = 0.7  # least similarity at which a misspelt attribute is recognised
BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


# fmt: off
SUBMIT_OPTIONS = frozenset({
    "priority", "key", "idempotency_key", "rerun_failed", "session", "tenant", "user", "timeout",
    "soft_timeout", "retry", "run_in", "delay", "run_at", "expires", "cancel_with_caller",
    "on_crash", "on_busy",
})
# fmt: on


def explain_misuse(target: T) -> T:
    """Make wrong calls of a function, or of the public methods of a class, raise a UsageError.

    The types stay as they are. Methods that forward all their arguments, as `submit` does, and
    methods without arguments are not wrapped. A class for `async with` refuses a plain `with`.
    """
    if not isinstance(target, type):
        function: Any = target
        explained: T = _explained(function, _label_of(function.__name__, function.__qualname__))
        return explained
    for name, method in list(vars(target).items()):
        if isinstance(method, FunctionType) and _has_own_arguments(name, method):
            setattr(target, name, _explained(method, _label_of(name, method.__qualname__)))
    if "__aenter__" in vars(target):
        _refuse_plain_with(target)
    return target


def _refuse_plain_with(kind: type) -> None:
    """Make `with` raise a UsageError; set at run time, so type checkers still reject `with`."""

    def enter(_: object) -> None:
        raise UsageError(f"{kind.__name__} is entered by `async with`, not by `with`")

    def leave(*_: object) -> None:
        """Do nothing; Python looks up `__exit__` before it calls `__enter__`."""

    kind.__enter__, kind.__exit__ = enter, leave  # type: ignore[attr-defined]


def _label_of(name: str, path: str) -> str:
    """Return the name that users call: a function or a method, or the class for `__init__`."""
    return path.split(".")[-2] if name == "__init__" else name


def _has_own_arguments(name: str, method: FunctionType) -> bool:
    if name.startswith("_") and name != "__init__":
        return False
    code = method.__code__
    takes_all = CO_VARARGS | CO_VARKEYWORDS
    is_forwarding = code.co_flags & takes_all == takes_all
    takes_some = code.co_argcount + code.co_kwonlyargcount > 1 or code.co_flags & takes_all
    return bool(takes_some) and not is_forwarding


def _explained(fn: Any, name: str) -> Any:
    if inspect.iscoroutinefunction(fn):

        @wraps(fn)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            try:
                running = fn(*args, **kwargs)
            except TypeError:
                check_call(fn, name, args, kwargs)
                raise
            return await running

        return call_async

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except TypeError:
            check_call(fn, name, args, kwargs)
            raise

    return call


class _OptionsMeta(StructMeta):
    """The metaclass of option records: msgspec offers no other hook to check argument names."""

    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except TypeError:
                check_call(cls, cls.__name__, args, kwargs)
                raise


class OptionsStruct(Struct, frozen=True, metaclass=_OptionsMeta):
    """A record of options that users create, such as Retry: wrong names raise a UsageError."""


def no_attribute(owner: object, name: str, hint: str | None = None) -> AttributeError:
    """Return the error that a `__getattr__` raises, with a hint if another name is meant."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    public = [one for one in dir(type(owner)) if not one.startswith("_")]
    if hint is None and not name.startswith("_") and (near := nearest(name, public, NEAR)):
        hint = f"did you mean {near!r}?"
    if hint is not None:
        # Without the object: Python would add a hint of its own.
        return AttributeError(f"{text}; {hint}")
    return AttributeError(text, name=name, obj=owner)


def check_call(
    fn: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raise UsageError if a call does not fit the signature, and show a call that would."""
    signature = inspect.signature(fn)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        reason = str(error)
    else:
        return
    parameters = dict(signature.parameters)
    if parameters.pop("self", None) is not None and not args:
        raise UsageError(f"{name} is a method: call it on an object, not on its class") from None
    known = [one.name for one in parameters.values() if one.kind in BY_NAME]
    takes_any = any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())
    unknown = [] if takes_any else [one for one in kwargs if one not in known]
    takes_options = bool(args) and hasattr(args[0], "with_options") and name != "with_options"
    meant = option_hint(unknown, f"{name}(…)") if takes_options else ""
    text = (
        "; ".join(no_option(one, known) for one in unknown) + meant
        or f"{reason}; write {name}({_shape(parameters)})"
    )
    raise UsageError(f"{name}: {text}") from None


def misfits(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], why: object
) -> str:
    """Return all arguments that a call lacks and that it has too many, or else `why` it fails."""
    parameters = signature.parameters.values()
    by_place = [one.name for one in parameters if one.kind in BY_PLACE]
    given = {*by_place[: len(args)], *kwargs}
    missing = [
        one.name
        for one in parameters
        if one.default is Parameter.empty and one.kind not in VARIABLE and one.name not in given
    ]
    known = {one.name for one in parameters if one.kind in BY_NAME}
    takes_any = any(one.kind is Parameter.VAR_KEYWORD for one in parameters)
    unexpected = [] if takes_any else [name for name in kwargs if name not in known]
    found = [
        f"{what}: {', '.join(map(repr, names))}"
        for what, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    # A single fault is named by Python as well as it can be.
    text = "; ".join(found) if len(missing) + len(unexpected) > 1 else str(why)
    return f"{text}{option_hint(unexpected)}"


def check_no_option(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Raise UsageError if an option of a submit is given as an argument that `fn` does not take."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return
    takes_any = any(one.kind is Parameter.VAR_KEYWORD for one in parameters)
    known = [one.name for one in parameters if one.kind in BY_NAME]
    unknown = [] if takes_any else [one for one in kwargs if one not in known]
    if hint := option_hint(unknown):
        label = getattr(fn, "__qualname__", None) or repr(fn)
        raise UsageError(f"{label} has no parameter {', '.join(map(repr, unknown))}{hint}")


def option_hint(unknown: Iterable[str], call: str = "submit(…)") -> str:
    """Return where to give options that a call takes for arguments; empty if there are none."""
    meant = ", ".join(f"{name}=…" for name in sorted(unknown) if name in SUBMIT_OPTIONS)
    return f"; options of a job are given so: with_options({meant}).{call}" if meant else ""


def _shape(parameters: Mapping[str, Parameter]) -> str:
    """Return parameters as they are written in a call, with defaults that are short."""
    words, is_marked = [], False
    for one in parameters.values():
        if one.kind is Parameter.KEYWORD_ONLY and not is_marked:
            words.append("*")
            is_marked = True
        words.append(_word(one))
    return ", ".join(words)


def _word(parameter: Parameter) -> str:
    if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        return str(parameter.replace(annotation=Parameter.empty))
    if parameter.default is Parameter.empty:
        return parameter.name
    default = shown(parameter.default)
    return f"{parameter.name}={default if len(default) <= LONGEST_DEFAULT else '…'}"
