"""Signatures: the arguments of a task, checked when it is submitted, typed when it runs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from inspect import Parameter
from types import NoneType, UnionType
from typing import (
    Any,
    NamedTuple,
    Never,
    NoReturn,
    TypedDict,
    Union,
    get_args,
    get_origin,
)

from poolhand.durable.calls.declaration import annotations_of
from poolhand.durable.calls.unfit import (
    changed_argument,
    changed_result,
    lost_part,
    other_moment,
    plain_reason,
)
from poolhand.errors import Undecodable, UsageError
from poolhand.misuse import misfits
from poolhand.rules.json_values import JSON, MSGPACK, SCALARS, Keeps, find_change
from poolhand.wire.annotation import Lower, ReadableType, Unreadable, readable
from poolhand.wire.payload import LONGEST_REASON
from poolhand.wire.round_trip import find_loss, find_untyped_change, is_equal, is_partly_untyped

# A stored call: the task, the names of its arguments, their values.
Call = tuple[str, list[str], Any]

# How codecs treat values without a type; pickle keeps them all.
KEEPS = {"json": JSON, "msgpack": MSGPACK}

RETURN = "return"


class ArgumentTypes(NamedTuple):
    """The types of a signature.

    `call` is the type of a stored call, `returns` that of a result, `fields` those of the
    parameters as annotated. Values of exactly the types in `simple` are read back unchanged; so are
    those in `plain`, if no part of them would change, and results of the types in `sure`. `read`
    has the way to read each, the result under "return", and `faults` why some cannot be read.
    Values of those in `open` have to be checked, as their type is partly open. Annotations in
    `unknown` cannot be resolved yet.
    """

    call: Any
    returns: Any
    fields: dict[str, Any]
    simple: dict[str, type]
    plain: dict[str, type]
    sure: frozenset[type]
    read: dict[str, ReadableType]
    faults: dict[str, str]
    open: frozenset[str]
    lowers: dict[str, Lower]
    unknown: dict[str, str]


class Signature:
    """The parameters and result of a function.

    Types that are not defined yet at creation are resolved when they are first needed.
    """

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self._fn = fn
        self._name = name
        try:
            if _is_built_in(fn):
                # From 3.13 on Python returns a signature for some, which does not describe their
                # calls.
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
        self._types: ArgumentTypes | None = None

    def __str__(self) -> str:
        return f"{self._name}{self._signature}"

    @property
    def returns(self) -> Any:
        return self._hints().returns

    @property
    def result_type(self) -> Any:
        """The type that a stored result is read as."""
        read = self._hints().read.get(RETURN)
        return Any if read is None else read.type

    @property
    def call_type(self) -> Any:
        """The type of a stored call of this function."""
        types = self._hints()
        if types.faults:
            self._refuse(types, of_result=False)
        return types.call

    def check_early(self) -> None:
        """Raise if calls or results could never be stored; skip types that are not defined yet.

        A parameter with a default may have any type, as it need not be given.
        """
        types = _types_of(self._fn, self._signature, is_early=True)
        self._refuse(types)
        if not types.unknown:
            self._types = types

    def check(self) -> None:
        """Raise if calls or results could never be stored."""
        self._refuse(self._hints())

    def _refuse(self, types: ArgumentTypes, of_result: bool = True) -> None:
        for name, why in types.faults.items():
            if name == RETURN:
                if not of_result:
                    continue
                shown = _shown(types.returns)
                raise UsageError(
                    f"task {self._name!r} returns {shown}, which cannot work: {why}; or run it in "
                    "a pool in memory, which stores nothing"
                )
            if self._signature.parameters[name].default is Parameter.empty:
                raise self._never(name, why, types)

    def _never(self, name: str, why: str, types: ArgumentTypes) -> UsageError:
        shown = _shown(types.fields[name])
        return UsageError(
            f"task {self._name!r}: parameter {name!r} is annotated {shown}, which cannot work: "
            f"{why}"
        )

    def fields(self) -> dict[str, tuple[Any, bool]]:
        """Return the stored type of each parameter, and whether a call must have it."""
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
        """Return the call to be stored, or raise UsageError if it does not fit."""
        if self._is_plain and not kwargs and len(args) == len(self._names):
            return self._name, self._names, dict(zip(self._names, args, strict=True))
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise self.misfit(misfits(self._signature, args, kwargs, error)) from None
        # Python 3.13.0 accepts a positional-only one by name, as if it belonged to `**kwargs`.
        missing = [name for name in self._only_by_place if name not in given]
        if missing:
            raise self.misfit(f"missing a required argument, given by its place: {missing[0]!r}")
        return self._name, list(given), given

    def misfit(self, why: object, call: Call | None = None) -> UsageError:
        """Return the error for a call that this function does not accept."""
        moment = None if call is None else other_moment(call[2], self._hints().fields)
        text = moment or plain_reason(why)
        return UsageError(f"{self} cannot be called so: {text}")

    def check_call(self, call: Call, codec: str = "json") -> bool:
        """Raise if an untyped argument would change; return whether all are surely read back.

        A call that is not sure has to be read back to check it.
        """
        types = self._types
        if types is None:
            types = self._hints()
            self._refuse(types)
        simple = types.simple
        for name, value in call[2].items():
            # True for nearly every argument; `get` returns None for those that are not simple.
            if simple.get(name) is not type(value):
                return self._check_rest(types, call, KEEPS.get(codec))
        return True

    def _check_rest(self, types: ArgumentTypes, call: Call, keeps: Keeps | None) -> bool:
        sure = True
        _, _, fields, simple, plain, *_ = types
        for name, value in call[2].items():
            kind = type(value)
            if simple.get(name) is kind:
                continue
            if name in types.faults and value is not None:
                raise self._never(name, types.faults[name], types)
            if keeps is not None and name in types.open:
                if kind not in SCALARS:
                    self._check_untyped(name, value, keeps, types)
                sure = sure and (fields[name] is Any or plain.get(name) is kind)
            elif fields[name] is not Any:
                sure = False
        return sure

    def lowered(self, call: Call, codec: str = "json") -> Call:
        """Return a call as it is written: union members that look alike are tagged with names."""
        lowers = self._hints().lowers
        if not lowers or codec not in KEEPS:
            return call
        name, names, given = call
        return (
            name,
            names,
            {one: lowers[one](value) if one in lowers else value for one, value in given.items()},
        )

    def check_read(self, call: Call, back: Call) -> None:
        """Raise if an argument that was read back has changed."""
        given, read = call[2], back[2]
        if is_equal(given, read):
            return
        fields = self._hints().fields
        for name, value in given.items():
            lost = find_loss(_listed(value, fields[name]), read[name])
            if lost is not None:
                text = lost_part(f"argument {name!r}", lost, fields[name])
                raise UsageError(f"task {self._name!r}: {text}")

    def check_result(self, value: Any, codec: str = "json") -> bool:
        """Raise if an untyped result would change; return whether it is surely read back."""
        types = self._hints()
        hint, kind = types.returns, type(value)
        if kind in types.sure or (hint is Any and kind in SCALARS):
            return True
        keeps = KEEPS.get(codec)
        if keeps is None:
            return hint is Any
        if hint is Any or types.plain.get(RETURN) is kind:
            changed = find_change(value, keeps)
        elif RETURN in types.open:
            changed = find_untyped_change(types.read[RETURN].node, value, keeps)
        else:
            return False
        if changed is not None:
            shown = None if hint is Any else _shown(hint)
            unknown = types.unknown.get(RETURN)
            raise UsageError(changed_result(self._name, value, changed, shown, unknown))
        return hint is Any or types.plain.get(RETURN) is kind

    def lowered_result(self, value: Any, codec: str = "json") -> Any:
        """Return a result as it is written."""
        lower = self._hints().lowers.get(RETURN) if codec in KEEPS else None
        return value if lower is None else lower(value)

    def check_read_result(self, value: Any, back: Any) -> None:
        """Raise if a result that was read back has changed."""
        lost = find_loss(value, back)
        if lost is not None:
            raise UsageError(f"task {self._name!r}: {lost_part('the result', lost, self.returns)}")

    def misreturned(self, value: Any, why: object) -> UsageError:
        """Return the error for a result that cannot be read back as annotated."""
        text = other_moment({RETURN: value}, {RETURN: self.returns}) or plain_reason(why)
        return UsageError(
            f"{self._name} is to return {_shown(self.returns)}, and returned "
            f"{type(value).__name__}: {text[:LONGEST_REASON]}; correct the annotation, or "
            "what is returned"
        )

    def _check_untyped(self, name: str, value: Any, keeps: Keeps, types: ArgumentTypes) -> None:
        hint = types.fields[name]
        if hint is Any or types.plain.get(name) is type(value):
            changed = find_change(value, keeps)
        else:
            changed = find_untyped_change(types.read[name].node, value, keeps)
        if changed is not None:
            shown = None if hint is Any else _shown(hint)
            unknown = types.unknown.get(name)
            raise UsageError(changed_argument(self._name, name, value, changed, shown, unknown))

    def unbind(self, call: Call) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a stored call as this function takes them now."""
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
                f"the kept call does not fit {self} any more: "
                f"unknown {unknown}, missing {missing}; give new parameters a default, and remove "
                "old ones when no job with them is left"
            )
        bound = inspect.BoundArguments(self._signature, given)
        return list(bound.args), dict(bound.kwargs)

    def _hints(self) -> ArgumentTypes:
        if self._types is None:
            self._types = _types_of(self._fn, self._signature, is_early=False)
        return self._types


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE in C: set for classes created at run time
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_SIMPLE = (int, str, float, bool)
_SURE = (*_SIMPLE, NoneType)
_PLAIN = (dict, dict[str, Any], dict[Any, Any], list, list[Any])


def _is_built_in(fn: Callable[..., Any]) -> bool:
    """Return whether this is a class that was not created by Python code."""
    return isinstance(fn, type) and not fn.__flags__ & _HEAP_TYPE


def _types_of(
    fn: Callable[..., Any], signature: inspect.Signature, is_early: bool
) -> ArgumentTypes:
    hints, unknown = annotations_of(inspect.unwrap(fn))
    fields = {
        name: _kept_type(one, hints.get(name, Any)) for name, one in signature.parameters.items()
    }
    returns = _awaited(hints.get(RETURN, Any))
    read, faults = dict[str, ReadableType](), dict[str, str]()
    for name, hint in (*fields.items(), (RETURN, returns)):
        try:
            read[name] = readable(hint)
        except NameError as error:
            if is_early:
                unknown[name] = str(hint)
            else:
                faults[name] = f"{error}; define it where the module of the task can see it"
        except Unreadable as error:
            faults[name] = str(error)
    types = {name: read[name].type if name in read else Any for name in fields}
    arguments = TypedDict("Arguments", types, total=False)  # type: ignore[misc]
    return ArgumentTypes(
        call=tuple[str, list[str], arguments],
        returns=returns,
        fields=fields,
        simple={name: hint for name, hint in fields.items() if hint in _SIMPLE},
        plain=_plain_of({**fields, RETURN: returns}),
        sure=_sure_of(returns),
        read=read,
        faults=faults,
        open=frozenset(name for name, one in read.items() if is_partly_untyped(one.node)),
        lowers={name: one.lower for name, one in read.items() if one.lower is not None},
        unknown=unknown,
    )


def _plain_of(hints: dict[str, Any]) -> dict[str, type]:
    return {name: get_origin(hint) or hint for name, hint in hints.items() if hint in _PLAIN}


def _awaited(hint: Any) -> Any:
    """Return the result type of an awaitable that a plain function returns: a pool awaits it."""
    found = get_args(hint)[-1] if get_origin(hint) in (Awaitable, Coroutine) else hint
    # A function that never returns has no result to read.
    return NoneType if found in (NoReturn, Never) else found


def _sure_of(hint: Any) -> frozenset[type]:
    """Return the types whose values are surely read back as the hint says."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return frozenset(kinds) if all(kind in _SURE for kind in kinds) else frozenset()


def _shown(hint: Any) -> str:
    return inspect.formatannotation(hint).replace("typing.", "")


def _listed(value: Any, hint: Any) -> Any:
    """Return the values of `*args` in their stored form."""
    return list(value) if type(value) is tuple and get_origin(hint) is list else value


def _kept_type(parameter: Parameter, hint: Any) -> Any:
    match parameter.kind:
        case Parameter.VAR_POSITIONAL:
            return list[hint]
        case Parameter.VAR_KEYWORD:
            return dict[str, hint]
        case _:
            return hint
