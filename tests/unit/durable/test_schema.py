"""Schemas of arguments, and the versions of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field, model_validator

from poolhand.durable.calls.declaration import _without_notes, arguments_schema
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.rules.json_schema import NEEDED, schema_fault
from poolhand.wire.limits import Limits
from poolhand.wire.payload import Wire


class Model(BaseModel):
    title: str


@dataclass
class Order:
    number: int
    models: list[Model]


class Strange:
    """A type without a schema."""


def task(order: Order, note: str = "", *more: int, model: Model | None = None, **rest: Any) -> None:
    """Take one of everything."""


def code(fn: Any, wire: Wire | None = None) -> TaskCode:
    return TaskCode("task", fn, wire or Wire())


def test_arguments_are_described_by_a_json_schema() -> None:
    schema = code(task).arguments()
    assert (schema["type"], schema["required"]) == ("object", ["order"])
    assert schema["properties"]["order"] == {"$ref": "#/$defs/Order"}
    assert schema["properties"]["note"] == {"type": "string"}
    assert schema["properties"]["more"] == {"type": "array", "items": {"type": "integer"}}
    assert schema["properties"]["model"]["anyOf"][1] == {"type": "null"}
    order = schema["$defs"]["Order"]
    assert order["required"] == ["number", "models"]
    assert order["properties"]["models"]["items"]["properties"]["title"]["type"] == "string"


def test_references_of_nested_models_resolve() -> None:
    class Inner(BaseModel):
        number: int

    class Outer(BaseModel):
        inner: Inner
        inners: list[Inner]

    def nested(one: Any, many: Any) -> None: ...

    nested.__annotations__ |= {"one": Outer, "many": list[Outer | None]}
    schema = code(nested).arguments()
    assert schema["$defs"]["Inner"]["properties"]["number"]["type"] == "integer"
    assert "$defs" not in str(schema["properties"]).replace("#/$defs/", "")


class Aliased(BaseModel):
    email: str = Field(alias="e-mail")
    name: str


class Completed(BaseModel):
    name: str

    @model_validator(mode="before")
    @classmethod
    def complete(cls, given: Any) -> Any:
        return {"name": "", **given}


def test_required_fields_with_an_alias_are_noted() -> None:
    def call(one: Aliased, other: Completed, plain: Model, both: Aliased | Model) -> None: ...

    schema = code(call).arguments()
    found = [schema["properties"][name] for name in ("one", "other", "plain")]
    assert [one["required"] for one in found] == [["e-mail", "name"], ["name"], ["title"]]
    assert [one.get(NEEDED) for one in found] == [["name"], [], None]
    assert schema["$defs"]["Aliased"][NEEDED] == ["name"]
    assert schema_fault({"email": "x", "name": "y"}, found[0], schema, "one") is None
    assert schema_fault({"e-mail": "x", "name": "y"}, found[0], schema, "one") is None
    assert schema_fault({"email": "x"}, found[0], schema, "one") is not None
    assert schema_fault({}, found[1], schema, "other") is None


def test_notes_in_a_schema_do_not_change_the_version_of_a_task() -> None:
    def call(one: Aliased) -> None: ...

    noted = arguments_schema(code(call).signature)
    plain = {**noted, "properties": {"one": Aliased.model_json_schema()}}
    assert noted != plain
    assert _without_notes(noted) == plain


def test_a_type_without_a_schema_allows_anything() -> None:
    def strange(one: Strange, number: int) -> None: ...

    properties = code(strange).arguments()["properties"]
    assert properties == {"one": {}, "number": {"type": "integer"}}


def test_defaults_and_return_type_do_not_change_the_version_of_a_task() -> None:
    def one(number: int, note: object = object()) -> int:
        return number

    def other(number: int, note: object = object()) -> str:
        return str(number)

    assert code(one).version == code(other).version


def _renamed(count: int) -> None: ...


def _retyped(number: str) -> None: ...


def _optional(number: int = 1) -> None: ...


def _by_name(*, number: int) -> None: ...


@pytest.mark.parametrize("changed", [_renamed, _retyped, _optional, _by_name])
def test_other_parameters_are_another_version(changed: Any) -> None:
    def plain(number: int) -> None: ...

    assert code(plain).version != code(changed).version


def test_a_field_more_in_a_type_is_another_version() -> None:
    def of(kind: type) -> TaskCode:
        def take(value: Any) -> None: ...

        take.__annotations__["value"] = kind
        return code(take)

    @dataclass
    class Narrow:
        number: int

    @dataclass
    class Wide:
        number: int
        unit: str

    Wide.__name__ = Wide.__qualname__ = "Narrow"
    assert of(Narrow).version != of(Wide).version


def test_a_smaller_payload_limit_is_a_different_version() -> None:
    def plain(number: int) -> None: ...

    small = Wire(limits=Limits(payload=1000))
    assert code(plain).version != code(plain, small).version
