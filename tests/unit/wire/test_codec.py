"""Which types come back when they are requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from math import nan
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import (
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    computed_field,
    field_validator,
)

from poolhand.errors import Undecodable, UsageError
from poolhand.wire.envelope import Envelope, pack
from poolhand.wire.payload import decode, encode

CODECS = ["json", "msgpack"]
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Mood(Enum):
    CALM = "calm"
    BUSY = "busy"


class Level(IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict):
    deep: bool


@dataclass
class Source:
    url: str
    seen_at: datetime
    parent: Source | None = None
    tags: set[str] = field(default_factory=set)


class Report(msgspec.Struct):
    id: UUID
    cost: Decimal
    mood: Mood
    sources: list[Source]


class Leaf(BaseModel):
    size: int


class Plant(BaseModel):
    """A demanding model: strict, closed, with aliases both ways and a computed field."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str = Field(alias="plantName")
    kind: str = Field(validation_alias="type", serialization_alias="sort")
    planted_at: datetime
    id: UUID
    price: Decimal
    colours: set[str]
    leaves: tuple[Leaf, ...]
    page: AnyUrl

    @computed_field  # type: ignore[prop-decorator]
    @property
    def title(self) -> str:
        return self.name.title()


class Crew(RootModel[list[Leaf]]):
    pass


SOURCE = Source("a", NOON, Source("b", NOON), {"x", "y"})
REPORT = Report(UUID(int=7), Decimal("1.20"), Mood.BUSY, [SOURCE])
PLANT = Plant.model_validate(
    {
        "plantName": "rose",
        "type": "bush",
        "planted_at": NOON,
        "id": UUID(int=7),
        "price": Decimal("1.20"),
        "colours": {"red"},
        "leaves": (Leaf(size=1), Leaf(size=2)),
        "page": AnyUrl("https://example.org/"),
    }
)

TYPED: list[tuple[Any, Any]] = [
    (SOURCE, Source),
    (REPORT, Report),
    ([REPORT], list[Report]),
    ({"a": REPORT}, dict[str, Report]),
    (Mood.CALM, Mood),
    ({Mood.CALM: Level.LOW}, dict[Mood, Level]),
    (NOON, datetime),
    (NOON.replace(tzinfo=None), datetime),
    (NOON.astimezone(timezone(timedelta(hours=5))), datetime),
    (NOON.date(), date),
    (timedelta(days=1, milliseconds=5), timedelta),
    (UUID(int=7), UUID),
    (Decimal("0.10"), Decimal),
    ({1, 2}, set[int]),
    (frozenset({"a"}), frozenset[str]),
    ((1, "a"), tuple[int, str]),
    ((1, 2, 3), tuple[int, ...]),
    (Point(1, 2), Point),
    ({"deep": True}, Options),
    ({1: 2}, dict[int, int]),
    (b"\x00\xff", bytes),
    ([1], Sequence[int]),
    ({"a": 1}, Mapping[str, int]),
    ("b", Literal["a", "b"]),
    (5, Annotated[int, msgspec.Meta(ge=5)]),
    (None, None),
    (NOON, datetime | None),
    (Leaf(size=1), Leaf),
    ([Leaf(size=1), None], list[Leaf | None]),
    (Crew([Leaf(size=1)]), Crew),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("value", "type"), TYPED, ids=[str(one[1]) for one in TYPED])
def test_a_typed_value_round_trips_when_its_type_is_given(
    codec: str, value: Any, type: Any
) -> None:
    again = decode(encode(value, codec=codec), type)
    assert again == value
    assert again.__class__ is value.__class__


def test_a_strict_model_round_trips_through_json() -> None:
    again = decode(encode(PLANT), Plant)
    assert again == PLANT
    assert again.title == "Rose"


def test_a_model_is_decoded_as_plain_data_without_its_type() -> None:
    assert decode(encode(Leaf(size=1))) == {"size": 1}
    assert decode(encode([Leaf(size=1)]), list[Any]) == [{"size": 1}]


def test_an_unhashable_type_can_be_given() -> None:
    assert decode(encode(5), Annotated[int, {"not": "hashable"}]) == 5


# Values that do not fit


@pytest.mark.parametrize("codec", CODECS)
def test_an_error_names_the_place_in_nested_data(codec: str) -> None:
    value = {"url": "a", "seen_at": NOON, "parent": {"url": 1, "seen_at": NOON}}
    with pytest.raises(Undecodable) as caught:
        decode(encode(value, codec=codec), Source, what="argument 'source'")
    assert caught.value.message == (
        "argument 'source' cannot be read as Source: Expected `str`, got `int` - at `$.parent.url`"
    )


@pytest.mark.parametrize("codec", CODECS)
def test_a_model_error_names_all_its_faults_and_shows_no_input(codec: str) -> None:
    data = encode([{"size": "hunter2"}], codec=codec)
    with pytest.raises(Undecodable) as caught:
        decode(data, list[Leaf])
    assert "size: Input should be a valid integer" in str(caught.value)
    assert "$[0]" in str(caught.value)
    told: BaseException | None = caught.value
    while told is not None:
        assert "hunter2" not in str(told)
        told = told.__cause__
    with pytest.raises(Undecodable, match=r"planted_at: .*; id: "):
        decode(encode({}), Plant)


@pytest.mark.parametrize("codec", CODECS)
def test_code_of_a_type_that_raises_anything_makes_the_data_undecodable(codec: str) -> None:
    class Moody(msgspec.Struct):
        size: int

        def __post_init__(self) -> None:
            raise KeyError("not today")

    class Grumpy(BaseModel):
        size: int

        @field_validator("size")
        @classmethod
        def refuse(cls, value: int) -> int:
            raise RuntimeError("not today")

    for type in (Moody, Grumpy):
        with pytest.raises(Undecodable, match="not today"):
            decode(encode([{"size": 1}], codec=codec), list[type])  # type: ignore[valid-type]


@pytest.mark.parametrize(
    "type",
    ["int", 5, Leaf | int, Annotated[Leaf | int, {}]],
    ids=["text", "5", "union", "unhashed"],
)
def test_an_unreadable_type_is_a_usage_error(type: Any) -> None:
    with pytest.raises(UsageError, match=r"type=.* cannot be read"):
        decode(encode(1), type)


def test_a_class_that_cannot_be_built_from_data_is_refused() -> None:
    class Agent:
        pass

    with pytest.raises(Undecodable, match="cannot be made from data; ask for plain values"):
        decode(encode({}), Agent)


# Where a value cannot be written


class Cell(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    score: float = 0.0
    extra: Any = None


@dataclass
class Box:
    content: Any


class Case(msgspec.Struct):
    content: Any


class Odd(Enum):
    NOTHING = nan


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (Box([nan]), "$.content[0]"),
        (Case({"a": nan}), "$.content['a']"),
        (Cell(score=nan), "$.score"),
        ([Cell(score=nan)], "$[0].score"),
        (Box(Case({"x": Cell(score=nan)})), "$.content.content['x'].score"),
        (RootModel[list[float]]([1.0, nan]), "$[1]"),
        (Odd.NOTHING, "$.value"),
        ((1, frozenset({nan})), "$[1][0]"),
        (Box(object()), "$.content"),
        ({"k" * 100: object()}, "$['" + "k" * 39 + "…]"),
    ],
)
def test_the_location_of_a_fault_is_found_in_any_kind_of_value(value: Any, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        encode(value)
    assert f", at {place}: " in str(caught.value)


def test_a_model_that_cannot_be_dumped_is_named() -> None:
    for codec in CODECS:
        with pytest.raises(UsageError, match=r"at \$\['cell'\]: .*object"):
            encode({"cell": Cell(extra=object())}, codec=codec)


def test_a_self_referencing_model_is_encoded_without_its_excluded_field() -> None:
    class Node(BaseModel):
        name: str | None
        top: Any = Field(default=None, exclude=True)

    node = Node(name=None)
    node.top = node
    assert decode(encode([2**100, node]), list[Any]) == [2**100, {"name": None}]


def test_an_invalid_json_key_is_reported_with_its_dict() -> None:
    with pytest.raises(
        UsageError, match=r"at \$\['a'\]: tuple cannot be a key of a dict; keys are text"
    ):
        encode({"a": {(1, 2): 3}})


def test_unknown_msgpack_extensions_are_undecodable() -> None:
    with pytest.raises(Undecodable, match="unknown MessagePack extension 5"):
        decode(pack(Envelope("msgpack", b"\x91\xd4\x05a")))
