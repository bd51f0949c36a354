"""Values that their own type changes when stored are refused, not changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from threading import Lock
from typing import Any, NotRequired, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    field_serializer,
    field_validator,
    model_validator,
)

from poolhand.durable.calls.task_registry import TaskCode
from poolhand.errors import Undecodable, UsageError
from poolhand.wire.payload import Wire
from tests.unit.durable.test_argument_types import there_and_back

# the hour that the clocks of Berlin show twice
TWICE = datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)


class Login(BaseModel):
    user: str = "ann"
    draft: str | None = Field(default=None, exclude=True)


class Rounded(BaseModel):
    x: float

    @field_serializer("x")
    def short(self, value: float) -> float:
        return round(value, 1)


class Counted(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def up(cls, value: int) -> int:
        return value + 1


class Cached(BaseModel):
    a: int = 1
    _hits: int = 0
    _lock: Any = PrivateAttr(default_factory=Lock)


class Holder(BaseModel):
    login: Login
    at: datetime = TWICE


class Tagged(BaseModel):
    name: str = Field(default="", validation_alias=AliasChoices("Name", "title"))
    more: dict[str, int] = {}


class Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")
    name: str = ""


class Renaming(BaseModel):
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def rename(cls, data: Any) -> Any:
        return {"name": data.get("old", "")} if isinstance(data, dict) else data


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    a: int = 0
    b: int = Field(default=0, exclude=True)


class Options(TypedDict, total=False):
    colour: str
    inner: NotRequired[Options]


@dataclass
class Page:
    title: str = ""
    number: int = 0
    tags: list[str] = field(default_factory=list)


@dataclass
class Grown:
    n: int

    def __post_init__(self) -> None:
        self.n += 1


class Block(msgspec.Struct, rename="camel", tag=True):
    long_name: int = 0


@dataclass(eq=False)
class Odd:
    n: int


def code(hint: Any, **options: Any) -> TaskCode:
    def task(x: Any) -> Any:
        return x

    task.__annotations__ = {"x": hint, "return": hint}
    return TaskCode("task", task, Wire(**options))


def used() -> Cached:
    cached = Cached()
    cached._hits = 3
    return cached


CHANGED: dict[str, tuple[Any, Any, str]] = {
    "excluded": (
        Login,
        Login(draft="d"),
        "holds a str at draft, which Login leaves out when it is",
    ),
    "in a list": (list[Login], [Login(draft="d")], "holds a str at [0].draft, which Login"),
    "optional": (Login | None, Login(draft="d"), "holds a str at draft, which Login"),
    "in a model": (Holder, Holder(login=Login(draft="d")), "a str at login.draft, which Login"),
    "in a set": (set[Frozen], {Frozen(b=1)}, "at (an item).b, which Frozen leaves out"),
    "serializer": (Rounded, Rounded(x=1.234), "a float at x, which would come back as another"),
    "validator": (Counted, Counted(n=1), "an int at n, which would come back as another int"),
    "post-init": (Grown, Grown(1), "__post_init__ of Grown changes it"),
    "private": (Cached, used(), "an int at _hits, a private attribute of Cached, which is not"),
    "typed dict": (Options, {"color": "a"}, "the key 'color', which Options would drop; did you"),
    "typed dict, within": (
        list[Options],
        [{"inner": {"color": "a"}}],
        "the key 'color' at [0]['inner'], which Options would drop; did you mean 'colour'?",
    ),
    "dataclass": (
        Page,
        {"titel": "a"},
        "key 'titel', which Page would drop; did you mean 'title'?",
    ),
    "dataclass, far": (Page, {"x": 1}, "Page would drop; there are title, number, tags"),
    "struct": (Block, {"type": "Block", "longname": 1}, "'longname', which Block would drop"),
    "model": (Tagged, {"nam": "a"}, "ConfigDict(extra='ignore')"),
}


@pytest.mark.parametrize(("hint", "value", "said"), CHANGED.values(), ids=CHANGED)
@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_a_value_that_its_own_type_would_change_is_refused(
    hint: Any, value: Any, said: str, codec: str
) -> None:
    with pytest.raises(UsageError, match="argument 'x'") as caught:
        code(hint, codec=codec).pack((value,), {})
    assert said in str(caught.value)
    with pytest.raises(UsageError, match="the result") as caught:
        code(hint, codec=codec).pack_result(value)
    assert said in str(caught.value)


def test_an_error_about_a_changed_value_does_not_show_it() -> None:
    with pytest.raises(UsageError) as caught:
        code(Login).pack((Login(draft="hush"),), {})
    assert "hush" not in str(caught.value)


KEPT: dict[str, tuple[Any, Any, Any]] = {
    "excluded default": (Login, Login(), Login()),
    "data of a validator": (Counted, {"n": 1}, Counted(n=1)),
    "alias": (Tagged, {"title": "a"}, Tagged.model_validate({"title": "a"})),
    "extra that is ignored": (Lenient, {"nam": "a"}, Lenient()),
    "own reading": (Renaming, {"old": "a"}, Renaming.model_validate({"old": "a"})),
    "encoded name": (Block, {"type": "Block", "longName": 1}, Block(1)),
    "numbers as keys": (dict[int, str], {"1": "a"}, {1: "a"}),
    "dict of a dataclass": (Page, {"title": "a", "tags": ("b",)}, Page("a", 0, ["b"])),
}


@pytest.mark.parametrize(("hint", "value", "back"), KEPT.values(), ids=KEPT)
def test_a_value_converted_by_its_type_is_stored(hint: Any, value: Any, back: Any) -> None:
    assert there_and_back(code(hint), value) == (back, back)


def test_a_value_that_cannot_be_compared_is_not_refused() -> None:
    assert there_and_back(code(Cached), Cached(a=2))[0].a == 2
    assert there_and_back(code(Odd), Odd(2))[0].n == 2


OTHER: dict[str, tuple[Any, Any, str]] = {
    "date": (date, TWICE, "argument 'x' is a datetime, and annotated date: give x.date()"),
    "optional": (date | None, TWICE, "and annotated date: give x.date()"),
    "time": (time, TWICE, "argument 'x' is a datetime, and annotated time: give x.time()"),
    "datetime": (datetime, TWICE.date(), "annotated datetime: give datetime.combine(x, time())"),
    "within": (list[date], [TWICE], "Expected `date` or its ISO 8601 text - at argument 'x'[0]"),
    "key": (dict[bool, int], {True: 1}, "bool cannot be a key of a dict; keys are text, numbers"),
    "none": (dict[None, int], {None: 1}, "NoneType cannot be a key of a dict"),
}


@pytest.mark.parametrize(("hint", "value", "said"), OTHER.values(), ids=OTHER)
def test_a_value_of_a_similar_type_is_refused_with_the_right_type(
    hint: Any, value: Any, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        code(hint).pack((value,), {})
    assert said in str(caught.value)


def test_a_result_of_a_similar_type_is_refused_with_the_right_type() -> None:
    with pytest.raises(UsageError, match=r"the result is a datetime, .* give result\.date\(\)"):
        code(date).pack_result(TWICE)


@pytest.mark.parametrize("hint", [date | datetime, datetime | date | None], ids=["first", "last"])
def test_a_union_of_date_and_datetime_keeps_both(hint: Any) -> None:
    for value in (datetime(2030, 1, 1, tzinfo=UTC), date(2030, 1, 1)):
        for back in there_and_back(code(hint), value):
            assert (type(back), back) == (type(value), value)


def test_a_stored_call_of_another_signature_is_reported_with_its_argument() -> None:
    payload = code(dict[str, str]).pack(({"n": "1"},), {})
    with pytest.raises(Undecodable) as caught:
        code(dict[str, int]).unpack(payload)
    assert caught.value.message == (
        "the stored call of task does not fit task(x: dict[str, int]) -> dict[str, int] any more: "
        "argument 'x'[...]: Expected `int`, got `str`; annotate the parameter so that it takes "
        "both, until no such job is left, or submit the job again"
    )


def test_a_datetime_in_a_named_zone_round_trips_as_the_same_instant() -> None:
    for hint, value in ((datetime, TWICE), (Holder, Holder(login=Login()))):
        back: Any = there_and_back(code(hint), value)[0]
        moment = back if hint is datetime else back.at
        assert moment.timestamp() == TWICE.timestamp()
        assert moment.utcoffset() == TWICE.utcoffset()
