"""Values against a JSON Schema: a value that cannot fit is refused, all others pass."""

from __future__ import annotations

from typing import Any

import pytest

from poolhand.rules.json_schema import NEEDED, schema_fault

ROOT = {
    "$defs": {
        "Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        "Line": {
            "title": "Line",
            "type": "object",
            "properties": {"start": {"$ref": "#/$defs/Point"}, "end": {"$ref": "#/$defs/Point"}},
            "required": ["start", "end"],
        },
        "Loop": {"$ref": "#/$defs/Loop"},
        "Tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Tree"}}},
    }
}
POINT = {"$ref": "#/$defs/Point"}
LINE = {"$ref": "#/$defs/Line"}
ALIASED = {"type": "object", "required": ["x", "y"], NEEDED: ["y"]}
MAYBE = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (5, {"type": "integer"}),
        (5, {"type": "number"}),
        (5.5, {"type": "number"}),
        ("x", {"type": "string"}),
        (None, MAYBE),
        ([1, 2], {"type": "array", "items": {"type": "integer"}}),
        ({"x": 1}, POINT),
        ({"x": 1, "unknown": 1}, POINT),
        ({"alias of x": 1, "y": 1}, ALIASED),
        ({"x": 1}, {"anyOf": [{"type": "null"}, POINT]}),
        (5, {}),
        (5, True),
        (5, None),
        (5, {"$ref": "#/$defs/Missing"}),
        (5, {"$ref": "#/$defs/Loop"}),
        ({"next": {"next": {}}}, {"$ref": "#/$defs/Tree"}),
        (1.5, {"type": "string", "format": "decimal"}),
        (5, {"type": "a type of the future"}),
        (5, {"type": "integer", "minimum": 5, "maximum": 5}),
        ("abc", {"type": "string", "minLength": 3, "maxLength": 3}),
        ("a", {"enum": ["a", "b"]}),
        ({"k": 1}, {"type": "object", "additionalProperties": {"type": "integer"}}),
        ({"k": 1}, {"type": "object", "additionalProperties": False}),
    ],
    ids=repr,
)
def test_a_value_that_may_fit_passes(value: Any, schema: Any) -> None:
    assert schema_fault(value, schema, ROOT, "it") is None


@pytest.mark.parametrize(
    ("value", "schema", "said"),
    [
        ("5", {"type": "integer"}, "it='5' is not allowed; it must be integer"),
        (True, {"type": "integer"}, "it=True is not allowed; it must be integer"),
        (1, {"type": "boolean"}, "it must be boolean"),
        (5, MAYBE, "it=5 is not allowed; it must be string or null"),
        (5, {"type": ["string", "null"]}, "it must be string or null"),
        ([1, "2"], {"type": "array", "items": {"type": "integer"}}, "it[1]='2' is not allowed"),
        ({"x": "1"}, POINT, "it.x='1' is not allowed; it must be integer"),
        (5, {"anyOf": [POINT, {"type": "null"}]}, "it must be Point or null"),
        ({"k": "1"}, {"additionalProperties": {"type": "integer"}}, "it.k='1' is not"),
        ({}, POINT, "it.x is missing; the task requires it"),
        ({}, LINE, "it.start, it.end are missing; Line requires them"),
        ({"start": {"x": 1}, "end": {}}, LINE, "it.end.x is missing; the task requires it"),
        ([{"x": 1}, {}], {"type": "array", "items": POINT}, "it[1].x is missing"),
        ({"x": 1}, ALIASED, "it.y is missing"),
        ({}, {"anyOf": [{"type": "null"}, POINT]}, "it.x is missing"),
        ({}, {"anyOf": [LINE, POINT]}, "it={} is not allowed; it must be Line or Point"),
        (4, {"type": "integer", "minimum": 5}, "it=4 is not allowed; it must be at least 5"),
        (6, {"type": "integer", "exclusiveMaximum": 6}, "it must be below 6"),
        ("ab", {"type": "string", "minLength": 3}, "it must be at least this long: 3"),
        ("c", {"enum": ["a", "b"]}, "it must be one of 'a', 'b'"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_reported(value: Any, schema: Any, said: str) -> None:
    fault = schema_fault(value, schema, ROOT, "it")
    assert fault is not None
    assert said in fault


def test_a_deeply_nested_value_is_checked_up_to_a_limit() -> None:
    deep: Any = {}
    for _ in range(5_000):
        deep = {"next": deep}
    assert schema_fault(deep, {"$ref": "#/$defs/Tree"}, ROOT, "it") is None
