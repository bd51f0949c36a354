"""Views as plain data, for any JSON encoder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from math import inf, nan
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct
from pydantic import BaseModel

from poolhand.rules.plain import PlainView, plain

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Mood(Enum):
    CALM = "calm"


class Leaf(BaseModel):
    at: datetime


@dataclass
class Box:
    content: Any


class Tagged(Struct, tag="tagged"):
    size: int


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("not today")


def function() -> None: ...


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (nan, None),
        (inf, None),
        (NOON, "2030-01-01T12:00:00+00:00"),
        (date(2030, 1, 1), "2030-01-01"),
        (timedelta(minutes=1), 60.0),
        (Mood.CALM, "calm"),
        (b"\x00", "AA=="),
        ((1, {2}), [1, [2]]),
        ({Mood.CALM: 1, 2: (3,), NOON: None}, {"calm": 1, "2": [3], NOON.isoformat(): None}),
        (Leaf(at=NOON), {"at": "2030-01-01T12:00:00Z"}),
        (Box(Box(NOON)), {"content": {"content": NOON.isoformat()}}),
        (Tagged(1), {"type": "tagged", "size": 1}),
        (Path("a"), "a"),
        (UUID(int=1), str(UUID(int=1))),
        (function, "function"),
        (Hostile(), "<Hostile>"),
        (ValueError("x"), "x"),
    ],
    ids=lambda value: str(type(value)),
)
def test_any_value_is_plain_data(value: Any, shown: Any) -> None:
    assert plain(value) == shown
    json.dumps(plain(value), allow_nan=False)


def test_a_value_that_contains_itself_is_cut_off() -> None:
    ring: list[Any] = []
    ring.append(ring)
    json.dumps(plain(ring))


class Shown(PlainView, frozen=True):
    at: datetime
    inner: tuple[Shown, ...] = ()


def test_to_dict_contains_the_fields_and_nested_views() -> None:
    inner = {"at": NOON.isoformat(), "inner": []}
    assert Shown(NOON, (Shown(NOON),)).to_dict() == {"at": NOON.isoformat(), "inner": [inner]}
