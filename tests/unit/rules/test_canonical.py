"""The canonical form: the same bytes for the same value in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from poolhand.rules.json_values import Canonical, digest

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


class Colour(Enum):
    RED = "red"


@dataclass
class Page:
    url: str
    tags: set[str]


class Line(msgspec.Struct):
    item: str
    count: int = 1


class Cat(msgspec.Struct, tag=True):
    name: str


class Order(BaseModel):
    id: UUID
    tags: set[str]


class Plain:
    def __init__(self, tags: set[str]) -> None:
        self.tags = tags
        self.me = self


def values() -> dict[str, Any]:
    """Return a value of each kind, sets of texts within them."""
    tags = {"a", "b", "c", "d"}
    return {
        "plain": [None, True, 1, 1.5, "x", b"\x00", -0.0, float("inf")],
        "times": [MOMENT, date(2026, 1, 2), time(3, 4), timedelta(seconds=1.5)],
        "numbers": [Decimal("1.10"), UUID(int=7), 2**80],
        "sets": [tags, frozenset({frozenset(tags), frozenset({1, "1", None})})],
        "dicts": {"b": 1, "a": {2: "x", "2": "y"}, None: tags},
        "objects": [Page("u", tags), Line("i"), Cat("c"), Order(id=UUID(int=1), tags=tags)],
        "others": [Colour.RED, Plain(tags), Plain, len, (1, 2), range(3)],
    }


@pytest.mark.slow
def test_the_same_value_is_the_same_in_every_process() -> None:
    code = "from tests.unit.rules.test_canonical import *; print(digest(values()).hex())"
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in (1, 2)
    ]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({0, 8}, {8, 0}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([1, 2], (1, 2)),
        (MOMENT, MOMENT.astimezone(timezone(timedelta(hours=5)))),
        (Page("u", {"x"}), {"tags": {"x"}, "url": "u"}),
        (Line("i"), {"item": "i", "count": 1}),
        (Order(id=UUID(int=1), tags=set()), {"id": UUID(int=1), "tags": set()}),
        (Colour.RED, "red"),
        (bytearray(b"x"), b"x"),
    ],
)
def test_values_equal_as_data_have_the_same_digest(one: Any, other: Any) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (1, "1"),
        (None, "None"),
        (b"x", "x"),
        (["ab"], ["a", "b"]),
        ([["a"], "b"], [["a", "b"]]),
        ({1}, [1]),
        ({1: 2}, [1, 2]),
        ({"1": 2}, {1: 2}),
        (Cat("c"), {"name": "c"}),
        (MOMENT, MOMENT.replace(tzinfo=None)),
        (len, print),
    ],
)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


def test_a_set_with_several_elements_is_detected_at_any_depth() -> None:
    for value, said in (({1, 2}, True), ([{"a": {1, 2}}], True), ({1}, False), ([1, 2], False)):
        canonical = Canonical()
        canonical.write(value)
        assert canonical.unordered is said
