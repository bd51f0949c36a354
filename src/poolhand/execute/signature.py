"""Signatures: the arguments of a task, checked when it is submitted, typed when it runs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from inspect import Parameter
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, TypedDict, Union, get_args, get_origin, get_type_hints

from poolhand.errors import Undecodable, UsageError
from poolhand.wire.payload import LONGEST_REASON

# What is kept of a call: the task, the names of its arguments, their values.
Call = tuple[str, list[str], Any]

# Of a kept call, of a result, of what is kept for each parameter; those a result surely has.
Types = tuple[Any, Any, dict[str, Any], frozenset[type]]


class Signature:
    """What a function takes and returns. Types are looked at late: they may be defined after it."""

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self._fn = fn
        self._name = name
        try:
            if _is_built_in(fn):
                # Of some Python gives a signature from 3.13 on, which says nothing of their calls.
                raise TypeError("it is a class of the interpreter")
            self._signature = inspect.signature(fn)
        except (TypeError, ValueError) as error:
            raise UsageError(f"task {name!r}: {fn!r} has no signature to check calls by") from error
        kinds = {one.kind for one in self._signature.parameters.values()}
        self._names = list(self._signature.parameters)
        self._is_plain = kinds <= {Parameter.POSITIONAL_OR_KEYWORD}
        self._only_by_place = [
            name
            for name, one in self._signature.parameters.items()
            if one.kind is Parameter.POSITIONAL_ONLY and one.default is Parameter.empty
        ]
        self._types: Types | None = None

    @property
    def returns(self) -> Any:
        return self._hints()[1]

    @property
    def call_type(self) -> Any:
        """The type of a kept call of this function."""
        return self._hints()[0]

    def fields(self) -> dict[str, tuple[Any, bool]]:
        """Return the type kept for each parameter, and whether a call must have it."""
        kept = self._hints()[2]
        return {
            name: (kept[name], one.default is Parameter.empty and one.kind not in _VARIABLE)
            for name, one in self._signature.parameters.items()
        }

    @property
    def kinds(self) -> list[str]:
        """How each parameter may be given."""
        return [one.kind.name for one in self._signature.parameters.values()]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Return a call as it is kept, or raise UsageError where it does not fit."""
        if self._is_plain and not kwargs and len(args) == len(self._names):
            return self._name, self._names, dict(zip(self._names, args, strict=True))
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise self.misfit(error) from None
        # Python 3.13.0 takes one that was given by name for one of the others' names.
        missing = [name for name in self._only_by_place if name not in given]
        if missing:
            raise self.misfit(f"missing a required argument, given by its place: {missing[0]!r}")
        return self._name, list(given), given

    def misfit(self, why: object) -> UsageError:
        """Return what is raised for a call that this function does not take."""
        return UsageError(f"{self._name}{self._signature} cannot be called so: {why}")

    def surely_fits(self, call: Call) -> bool:
        """Tell whether a call will be read back without a doubt, by the look of its arguments."""
        hints = self._hints()[2]
        for name, value in call[2].items():
            hint = hints[name]
            if hint is not Any and not (hint is type(value) and hint in _SIMPLE):
                return False
        return True

    def surely_returns(self, value: Any) -> bool:
        """Tell whether a result will be read back without a doubt, by the look of it."""
        _, hint, _, sure = self._hints()
        return hint is Any or type(value) in sure

    def misreturned(self, value: Any, why: object) -> UsageError:
        """Return what is raised for a result that nobody could read as what is annotated."""
        return UsageError(
            f"{self._name} is to return {inspect.formatannotation(self.returns)}, and returned "
            f"{type(value).__name__}: {str(why)[:LONGEST_REASON]}; correct the annotation, or what "
            "is returned"
        )

    def unbind(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a kept call as this function takes them now."""
        _, names, given = call
        if self._is_plain and names == self._names and len(given) == len(names):
            return [given[name] for name in names], {}
        parameters = self._signature.parameters
        unknown = [name for name in names if name not in parameters]
        missing = [
            name
            for name, one in parameters.items()
            if name not in given and one.default is Parameter.empty and one.kind not in _VARIABLE
        ]
        if unknown or missing:
            raise Undecodable(
                f"the kept call does not fit {self._name}{self._signature} any more: "
                f"unknown {unknown}, missing {missing}; give new parameters a default, and remove "
                "old ones when no job with them is left"
            )
        bound = inspect.BoundArguments(self._signature, given)
        return list(bound.args), dict(bound.kwargs)

    def _hints(self) -> Types:
        if self._types is None:
            self._types = _types_of(self._fn, self._signature)
        return self._types


_HEAP_TYPE = 1 << 9  # what C calls Py_TPFLAGS_HEAPTYPE: of classes that are made while Python runs
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_SIMPLE = (int, str, float, bool)
_SURE = (*_SIMPLE, NoneType)


def _is_built_in(fn: Callable[..., Any]) -> bool:
    """Tell whether this is a class that no Python code has made."""
    return isinstance(fn, type) and not fn.__flags__ & _HEAP_TYPE


def _types_of(fn: Callable[..., Any], signature: inspect.Signature) -> Types:
    hints = _hints_of(inspect.unwrap(fn))
    fields = {
        name: _kept_type(one, hints.get(name, Any)) for name, one in signature.parameters.items()
    }
    arguments = TypedDict("Arguments", fields, total=False)  # type: ignore[misc]
    returns = _awaited(hints.get("return", Any))
    return tuple[str, list[str], arguments], returns, fields, _sure_of(returns)


def _awaited(hint: Any) -> Any:
    """Return what comes of an awaitable that a plain function returns: a pool awaits it."""
    return get_args(hint)[-1] if get_origin(hint) in (Awaitable, Coroutine) else hint


def _sure_of(hint: Any) -> frozenset[type]:
    """Return the types whose values are surely read back as what a hint says."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return frozenset(kinds) if all(kind in _SURE for kind in kinds) else frozenset()


def _hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(fn, include_extras=True)
    except Exception:
        # One that means nothing at run time is no reason not to run, nor to forget the others.
        known = getattr(fn, "__annotations__", {})
        found = ((name, _hint(fn, annotation)) for name, annotation in known.items())
        return {name: hint for name, hint in found if hint is not None}


def _hint(fn: Callable[..., Any], annotation: Any) -> Any:
    one = SimpleNamespace(__annotations__={"it": annotation})
    try:
        hints = get_type_hints(one, getattr(fn, "__globals__", {}), include_extras=True)
    except Exception:
        return None
    return hints["it"]


def _kept_type(parameter: Parameter, hint: Any) -> Any:
    match parameter.kind:
        case Parameter.VAR_POSITIONAL:
            return list[hint]
        case Parameter.VAR_KEYWORD:
            return dict[str, hint]
        case _:
            return hint
