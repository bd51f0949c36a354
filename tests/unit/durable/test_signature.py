"""Signatures: which calls are accepted, and how a stored call is made."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from msgspec import Meta

from poolhand.durable.calls.signature import Signature
from poolhand.errors import Undecodable, UsageError

if TYPE_CHECKING:
    from decimal import Decimal as Unheard


@dataclass
class Point:
    x: int


def everything(
    a: int, /, b: Point, c: str = "c", *args: Point, d: Annotated[int, Meta(ge=0)] = 4, **more: str
) -> Point:
    return b


def unheard(a: Point, b: Unheard) -> Unheard: ...  # type: ignore[empty-body]


def test_a_call_is_stored_by_parameter_name() -> None:
    signature = Signature(everything, "task")
    point = Point(1)
    assert signature.bind((1, point), {}) == ("task", ["a", "b"], {"a": 1, "b": point})
    name, names, given = signature.bind((1, point, "x", point, point), {"d": 5, "e": "e"})
    assert (name, names) == ("task", ["a", "b", "c", "args", "d", "more"])
    assert given["args"] == (point, point)
    assert given["more"] == {"e": "e"}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1, Point(1)), {}),
        ((1,), {"b": Point(1), "d": 7}),
        ((1, Point(1), "c", Point(2), Point(3)), {"d": 1, "e": "e", "f": "f"}),
    ],
    ids=["positional", "named", "all"],
)
def test_a_bound_call_unbinds_to_the_same_arguments(args: Any, kwargs: Any) -> None:
    signature = Signature(everything, "task")
    expected = signature._signature.bind(*args, **kwargs)
    found = signature._signature.bind(
        *(made := signature.unbind(signature.bind(args, kwargs)))[0], **made[1]
    )
    assert found.arguments == expected.arguments


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1,), {}), ((), {"a": 1, "b": 2}), ((1, 2), {"b": 3})], ids=str
)
def test_arguments_that_do_not_fit_are_refused_with_the_signature(args: Any, kwargs: Any) -> None:
    with pytest.raises(UsageError, match=r"task\(a: 'int', /, b: 'Point'.* cannot be called so"):
        Signature(everything, "task").bind(args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, r"missing: 'a', 'b'$"),
        ((), {"y": 1}, r"missing: 'a', 'b'; unexpected: 'y'$"),
        ((1,), {"y": 1, "z": 2}, r"missing: 'b'; unexpected: 'y', 'z'$"),
        ((1, 2), {"y": 1, "priority": 2}, r"'y', 'priority'; options of a job .*priority=…"),
        ((1,), {}, r"missing a required argument: 'b'$"),
        ((1, 2, 3), {}, r"too many positional arguments$"),
    ],
)
def test_all_missing_and_unexpected_arguments_are_named(args: Any, kwargs: Any, text: str) -> None:
    def task(a: int, b: int) -> None: ...

    with pytest.raises(UsageError) as caught:
        Signature(task, "task").bind(args, kwargs)
    assert re.search(text, caught.value.message)


def test_argument_types_are_those_of_the_parameters() -> None:
    hints = Signature(everything, "task")._hints()
    assert hints[2] == {
        "a": int,
        "b": Point,
        "c": str,
        "args": list[Point],
        "d": Annotated[int, Meta(ge=0)],
        "more": dict[str, str],
    }
    assert hints[1] is Point


def test_one_unknown_type_leaves_the_others() -> None:
    signature = Signature(unheard, "task")
    assert signature._hints()[2] == {"a": Point, "b": Any}
    assert signature.returns is Any


def test_a_decorated_function_has_the_types_of_the_one_inside() -> None:
    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    signature = Signature(decorate(everything), "task")
    assert signature._hints()[2]["b"] is Point
    with pytest.raises(UsageError):
        signature.bind((), {})


def test_only_plain_values_of_the_exact_type_skip_the_check() -> None:
    def call(a: int, b: str, c: Any, d: float = 0.0) -> None: ...

    signature = Signature(call, "task")
    for args, sure in (
        ((1, "x", {"a": [1]}), True),
        ((1, "x", None, 1.5), True),
        ((True, "x", None), False),
        (("1", "x", None), False),
        ((1, "x", None, 1), False),
    ):
        assert signature.check_call(signature.bind(args, {})) is sure


def test_only_plain_results_of_the_exact_type_skip_the_check() -> None:
    def signature(hint: Any) -> Signature:
        def call() -> Any: ...

        call.__annotations__["return"] = hint
        return Signature(call, "task")

    for hint, sure, unsure in (
        (Any, [1, {"a": [None]}], []),
        (None, [None], [0]),
        (int, [1], [True, "1", None]),
        (str | None, ["x", None], [1]),
        (list[int], [], [[1], None]),
        (Point, [], [Point(1)]),
        (Point | None, [], [None]),
    ):
        found = signature(hint)
        assert [value for value in sure if not found.check_result(value)] == []
        assert [value for value in unsure if found.check_result(value)] == []


def test_a_stored_call_that_no_longer_fits_reports_the_reason() -> None:
    def before(a: int, b: int = 2) -> None: ...

    def after(a: int, c: int) -> None: ...

    kept = Signature(before, "task").bind((1, 2), {})
    with pytest.raises(Undecodable, match=r"unknown \['b'\], missing \['c'\]"):
        Signature(after, "task").unbind(kept)


def test_a_stored_call_still_fits_when_parameters_are_reordered() -> None:
    def before(a: int, b: int) -> None: ...

    def after(b: int, *, a: int, c: int = 3) -> None: ...

    kept = Signature(before, "task").bind((1, 2), {})
    assert Signature(after, "task").unbind(kept) == ([2], {"a": 1})


def test_a_callable_without_a_signature_is_refused() -> None:
    with pytest.raises(UsageError, match="has no signature"):
        Signature(type, "task")
