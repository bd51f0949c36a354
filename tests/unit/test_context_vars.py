"""Context that travels: which variables, which values, and how they are restored."""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from http import HTTPMethod
from typing import Any

import pytest

from poolhand import UsageError, context

request_id: ContextVar[Any] = context.register(ContextVar("request_id"))
locale: ContextVar[str] = ContextVar("locale", default="en")
context.register(locale, name="language")


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in its own context."""

    @wraps(test)
    def run(**given: Any) -> None:
        copy_context().run(test, **given)

    return run


@dataclass
class Trace:
    id: str


@apart
def test_a_set_variable_is_captured_under_its_name() -> None:
    assert context.snapshot() == {}
    request_id.set("r-17")
    locale.set("de")
    assert context.snapshot() == {"request_id": "r-17", "language": "de"}


@apart
def test_a_default_is_not_captured_but_an_equal_explicit_value_is() -> None:
    assert locale.get() == "en"
    assert "language" not in context.snapshot()
    locale.set("en")
    assert context.snapshot() == {"language": "en"}


@pytest.mark.parametrize(
    "value", ["bee", "", 0, -1.5, 2**70, True, None, [1, ["a"]], {"a": {"b": [None]}}], ids=repr
)
@apart
def test_any_json_value_is_captured_unchanged(value: Any) -> None:
    request_id.set(value)
    (found,) = context.snapshot().values()
    assert found == value
    assert type(found) is type(value)


def holds_itself() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "is an object, which cannot be stored as JSON"),
        (datetime(2030, 1, 1, tzinfo=UTC), "is a datetime, which JSON would give back as a str"),
        (Trace("t"), "is a Trace, which JSON would give back as a dict"),
        ((1, 2), "is a tuple, which JSON would give back as a list"),
        ({"deep": [(1, 2)]}, r"holds a tuple at request_id\['deep'\]\[0\], which JSON would"),
        ({1: "one"}, "has an int as a key of request_id, and JSON has only text as keys"),
        (b"bytes", "is bytes, which JSON would give back as a str"),
        (HTTPMethod.GET, "is a HTTPMethod, which JSON would give back as a str"),
        (math.nan, "is set to a float that JSON cannot give back"),
        (math.inf, "is set to a float that JSON cannot give back"),
        ("half \ud800", "is set to a str that JSON cannot give back"),
        (holds_itself(), "is set to a list that JSON cannot give back"),
    ],
    ids=lambda value: type(value).__name__,
)
@apart
def test_a_value_that_json_would_change_is_refused_with_the_variable_name(
    value: Any, said: str
) -> None:
    request_id.set(value)
    with pytest.raises(UsageError, match=f"'request_id' travels with jobs, and {said}") as caught:
        context.snapshot()
    assert "2030" not in str(caught.value), "a value may be a secret"


@apart
def test_the_captured_context_has_a_size_limit_and_the_largest_variable_is_named() -> None:
    locale.set("x" * 4000)
    request_id.set("y" * 4000)
    assert set(context.snapshot()) == {"request_id", "language"}
    request_id.set("y" * 4200)
    with pytest.raises(UsageError, match=r"8,2\d\d bytes .* 'request_id'; the limit is 8,192"):
        context.snapshot()


@apart
def test_a_snapshot_is_a_copy() -> None:
    request_id.set(["a"])
    taken = context.snapshot()
    request_id.get().append("b")
    assert taken == {"request_id": ["a"]}


@apart
def test_a_snapshot_is_restored_for_a_block_and_then_all_is_as_before() -> None:
    locale.set("de")
    with context.restored({"request_id": "r-1", "language": "fr"}):
        assert (request_id.get(), locale.get()) == ("r-1", "fr")
        assert context.snapshot() == {"request_id": "r-1", "language": "fr"}
    assert locale.get() == "de"
    assert request_id not in copy_context()
    with pytest.raises(RuntimeError), context.restored({"language": "fr"}):
        raise RuntimeError
    assert locale.get() == "de"


@apart
def test_unregistered_names_in_a_snapshot_are_ignored() -> None:
    with context.restored({"of another version": 1, "request_id": "r-1"}):
        assert context.snapshot() == {"request_id": "r-1"}


@apart
def test_one_variable_may_be_registered_under_two_names() -> None:
    renamed: ContextVar[str] = ContextVar("before")
    context.register(context.register(renamed), name="after")
    with context.restored({"before": "fr", "after": "it"}):
        assert renamed.get() == "it"
        assert context.snapshot() == {"before": "it", "after": "it"}
    assert renamed not in copy_context()


@apart
def test_an_invalid_snapshot_is_refused() -> None:
    with (
        pytest.raises(UsageError, match=r"context\.snapshot\(\) returned, not a list"),
        context.restored([]),  # type: ignore[arg-type]
    ):
        pass


@pytest.mark.parametrize("variable", ["request_id", UserDict(), None])
@apart
def test_only_context_variables_are_registered(variable: Any) -> None:
    with pytest.raises(UsageError, match=f"ContextVar, not a {type(variable).__name__}"):
        context.register(variable)


@pytest.mark.parametrize("name", ["", "two\nlines", 7, "half \ud800"])
@apart
def test_a_name_is_a_text_of_one_line(name: Any) -> None:
    with pytest.raises(UsageError, match="a text of one line"):
        context.register(ContextVar("free"), name=name)


def loaded(name: str, code: str, **given: Any) -> None:
    """Run code as that of a module."""
    exec(code, {"__name__": name, **given})  # noqa: S102


@apart
def test_two_modules_cannot_register_two_variables_under_one_name() -> None:
    code = "from poolhand import context; context.register(made)"
    with pytest.raises(UsageError, match=rf"{__name__} has another variable .* 'request_id'"):
        loaded("elsewhere", code, made=ContextVar("request_id"))
    loaded("elsewhere", code, made=request_id)


@apart
def test_a_reloaded_module_registers_its_variable_again() -> None:
    code = """
from contextvars import ContextVar
from poolhand import context
made = context.register(ContextVar("reloaded"))
made.set(text)
"""
    for text in ("first", "second"):
        loaded("loaded_twice", code, text=text)
    assert context.snapshot() == {"reloaded": "second"}
