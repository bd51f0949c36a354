"""Which values come back as arguments and results, and the errors for those that would not."""

from __future__ import annotations

import sys
import typing
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from math import inf, nan
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, Never, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import AnyUrl, BaseModel, Field, SecretStr

from poolhand.app import App
from poolhand.durable.calls.task_registry import TaskCode, TaskRegistry
from poolhand.errors import UsageError
from poolhand.wire.codec import AllowPickle
from poolhand.wire.envelope import KeyRing
from poolhand.wire.payload import Wire, encode

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
RING = KeyRing({"a": b"a" * 32}, current="a")


class Unannotated:
    """Stands for a parameter without an annotation."""


UNANNOTATED: Any = Unannotated


class Tags(list[Any]):
    """A list subclass of the user."""


class Cat(BaseModel):
    kind: Literal["cat"] = Field(default="cat", validation_alias="petKind")
    name: str


class Dog(BaseModel):
    kind: Literal["dog"] = Field(default="dog", validation_alias="petKind")
    name: str


class Puppy(Dog):
    weeks: int = 3


class First(BaseModel):
    name: str


class Second(BaseModel):
    name: str


class Note(BaseModel):
    text: str
    meta: dict[str, Any] = {}


class Keyed(BaseModel):
    key: SecretStr


@dataclass
class Trip:
    to: Path
    takes: timedelta | None = None
    stops: list[Path] = field(default_factory=list)


@dataclass
class Walk:
    steps: int


@dataclass
class Kennel:
    pet: Cat | Dog


@dataclass
class Bag:
    what: Any


class Pair(NamedTuple):
    left: int
    right: Any


class Row(TypedDict):
    at: datetime
    more: Any


class Block(msgspec.Struct):
    size: int


class Mood(StrEnum):
    CALM = "calm"


class Plain(Enum):
    ONE = 1


class Agent:
    """Nothing that could be stored."""


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
CAT, DOG = Cat(name="Tom"), Dog(name="Rex")


def code(hint: Any = UNANNOTATED, **options: Any) -> TaskCode:
    """The code of a task that takes a value and returns it."""

    def task(x: Any) -> Any:
        return x

    task.__annotations__ = {} if hint is UNANNOTATED else {"x": hint, "return": hint}
    made = TaskCode("task", task, Wire(**options))
    made.signature.check_early()
    return made


def there_and_back(made: TaskCode, value: Any) -> tuple[Any, Any]:
    return made.unpack(made.pack((value,), {}))(), made.unpack_result(made.pack_result(value))


TYPED: list[tuple[Any, Any]] = [
    (Cat | Dog, DOG),
    (Pet, DOG),
    (list[Pet], [DOG, CAT]),
    (dict[str, Cat | Dog], {"a": DOG}),
    (Pet | None, None),
    (Pet | None, CAT),
    (list[Cat | Dog] | None, [DOG]),
    (tuple[Pet, int], (DOG, 1)),
    (Cat | str, CAT),
    (Cat | str, "cat"),
    (Cat | int | None, 5),
    (Kennel, Kennel(DOG)),
    (Cat | datetime, NOON),
    (AnyUrl, AnyUrl("https://example.org/")),
    (Annotated[int, Field(gt=3)], 4),
    (Path, Path("a/b")),
    (PurePosixPath, PurePosixPath("a")),
    (list[Path], [Path("a")]),
    (dict[str, Path], {"a": Path("b")}),
    (Path | None, Path("a")),
    (Path | None, None),
    (Path | int, Path("a")),
    (Path | int, 5),
    (str | Path, Path("a")),
    (str | Path, "a"),
    (list[str | Path], ["a", Path("a")]),
    (dict[str, list[Path | str] | None], {"a": [Path("b"), "c"], "d": None}),
    (tuple[str | Path, int], (Path("a"), 1)),
    (Trip, Trip(Path("a"), timedelta(hours=1), [Path("b")])),
    (list[Trip], [Trip(Path("a"))]),
    (Trip | Walk, Walk(3)),
    (Trip | Walk | None, Trip(Path("a"))),
    (timedelta, timedelta(days=1, microseconds=1)),
    (list[timedelta], [timedelta(-1)]),
    (timedelta | int, timedelta(1)),
    (timedelta | str, timedelta(1)),
    (timedelta | str, "P1D"),
    (datetime | str, "2030-01-01T12:00:00Z"),
    (datetime | date, NOON),
    (bytes | str, b"abcd"),
    (list[int] | set[int], {1}),
    (set[int] | list[int], [1]),
    (Block | Walk, Block(1)),
    (Mood, Mood.CALM),
    (Plain, Plain.ONE),
    (dict[int, str], {1: "a"}),
    (dict[Mood, int], {Mood.CALM: 1}),
    (Iterable[int], [1]),
    (Any, {"a": [1, None, 1.5, "x", True, {}]}),
    (UNANNOTATED, {"a": [1, None, 1.5, "x", True, {}]}),
    (Note, Note(text="a", meta={"n": [1, None]})),
    (dict[str, Any], {"a": [1]}),
    (Row, {"at": NOON, "more": [1]}),
]


@pytest.mark.parametrize(
    "options",
    [{}, {"codec": "msgpack"}, {"codec": "pickle", "ring": RING, "pickle": AllowPickle()}],
    ids=["json", "msgpack", "pickle"],
)
@pytest.mark.parametrize(("hint", "value"), TYPED, ids=[f"{one[0]}-{one[1]}"[:60] for one in TYPED])
def test_an_annotated_value_round_trips(hint: Any, value: Any, options: dict[str, Any]) -> None:
    for back in there_and_back(code(hint, **options), value):
        assert back == value
        assert type(back) is type(value)


CHANGED: list[tuple[Any, str, str]] = [
    ((1, "a"), "is a tuple, which JSON would give back as a list", "tuple[int, str]"),
    ((1, 2, 3), "is a tuple", "tuple[int, ...]"),
    (Pair(1, 2), "is a Pair, which JSON would give back as a list", "Pair"),
    ({1}, "is a set, which JSON would give back as a list", "set[int]"),
    (frozenset({"a"}), "is a frozenset", "frozenset[str]"),
    (NOON, "is a datetime, which JSON would give back as a str", "datetime"),
    (NOON.date(), "is a date,", "date"),
    (time(12), "is a time,", "time"),
    (timedelta(1), "is a timedelta,", "timedelta"),
    (b"x", "is bytes, which JSON would give back as a str", "bytes"),
    (Decimal(1), "is a Decimal,", "Decimal"),
    (UUID(int=1), "is a UUID,", "UUID"),
    (Path("a"), "Path, which JSON would give back as a str", "Path"),
    (Mood.CALM, "is a Mood, which JSON would give back as a str", "Mood"),
    (Plain.ONE, "is a Plain, which JSON would give back as an int", "Plain"),
    (Walk(1), "is a Walk, which JSON would give back as a dict", "Walk"),
    (Block(1), "is a Block,", "Block"),
    (CAT, "is a Cat,", "Cat"),
    ({1: 2}, "has an int as a key of x, and JSON has only text as keys", "dict[int, int]"),
    ([NOON], "holds a datetime at x[0]", "list[datetime]"),
    ({"a": [{"b": (1,)}]}, "holds a tuple at x['a'][0]['b']", ""),
    ({"a": {2: 1}}, "has an int as a key of x['a']", "dict[str, dict[int, int]]"),
    (Counter("a"), "is a Counter, which JSON would give back as a dict", "dict[str, int]"),
    (defaultdict(list), "is a defaultdict, which JSON would give back as a dict", "dict"),
    ([OrderedDict(a=1)], "holds an OrderedDict at x[0], which JSON", "list[dict[str, int]]"),
    (Tags([1]), "is a Tags, which JSON would give back as a list", "list[int]"),
]


@pytest.mark.parametrize(("value", "said", "annotation"), CHANGED, ids=[str(c[0]) for c in CHANGED])
def test_an_unannotated_value_that_json_would_change_is_refused_with_the_annotation_to_write(
    value: Any, said: str, annotation: str
) -> None:
    for hint in (UNANNOTATED, Any, object):
        made = code(hint)
        with pytest.raises(UsageError) as caught:
            made.pack((value,), {})
        text = str(caught.value)
        assert text.startswith("task 'task': argument 'x' ")
        assert said in text
        assert "annotate it" in text
        assert f"`x: {annotation}" in text
        with pytest.raises(UsageError) as caught:
            made.pack_result(value)
        text = str(caught.value)
        assert text.startswith("task 'task': its work is done, but its result ")
        assert "annotate it" in text
        assert f"`-> {annotation}" in text


def test_the_error_for_a_dict_or_list_subclass_suggests_a_conversion() -> None:
    with pytest.raises(UsageError, match=r"annotate it: `x: dict\[str, int\]`, or pass dict\(x\)"):
        code().pack((Counter("a"),), {})
    with pytest.raises(UsageError, match=r"or pass list\(x\['a'\]\)"):
        code().pack(({"a": Tags([1])},), {})
    with pytest.raises(UsageError, match=r"or return dict\(result\)"):
        code().pack_result(Counter("a"))


def test_the_error_for_a_value_without_a_simple_annotation_suggests_an_alternative() -> None:
    with pytest.raises(UsageError, match=r"a dataclass, TypedDict, .* or pass x\['at'\]"):
        code().pack(({"n": 1, "at": NOON},), {})
    with pytest.raises(UsageError, match=r"has None as a key of x.*or pass text as keys"):
        code().pack(({None: 1},), {})
    with pytest.raises(UsageError, match="is an Agent, which cannot be stored as JSON: pass the"):
        code().pack((Agent(),), {})


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (dict, {"a": NOON}, "holds a datetime at x['a']"),
        (dict[str, Any], {"a": (1,)}, "dict[str, Any] does not say so, annotate it: `x: dict["),
        (list, [{1}], "holds a set at x[0]"),
        (list[Any] | None, [Path("a")], "at x[0]"),
        (Bag, Bag((1,)), "holds a tuple at x.what"),
        (Bag, Bag([NOON]), "annotate the field of Bag: `what: list[datetime]`, or pass x.what[0]"),
        (list[Bag], [Bag(NOON)], "annotate the field 'what' of x[0], or pass x[0].what.iso"),
        (Pair, Pair(1, NOON), "annotate the field of Pair: `right: datetime`, or pass x.right.iso"),
        (Row, {"at": NOON, "more": NOON}, "holds a datetime at x['more']"),
        (tuple[int, Any], (1, b"x"), "holds bytes at x[1]"),
        (dict, Walk(1), "is a Walk"),
        (dict, {"a": Counter("a")}, "holds a Counter at x['a']"),
    ],
    ids=str,
)
def test_parts_not_covered_by_an_annotation_are_checked_like_unannotated_values(
    hint: Any, value: Any, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        code(hint).pack((value,), {})
    assert said in str(caught.value)
    with pytest.raises(UsageError, match="its result"):
        code(hint).pack_result(value)


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (First | Second, Second(name="a"), "is a Second, which would come back as a First"),
        (First | Second, Second(name="a"), "Annotated[A | B, Field(discriminator=…)]"),
        (Dog, Puppy(name="a"), "is a Puppy, which would come back as a Dog; annotate it Puppy"),
        (Note, Note(text="a", meta={"at": NOON}), "holds a datetime at meta['at'], which would"),
        (Note, Note(text="a", meta={"at": (1,)}), "holds a tuple at meta['at'], which would come"),
        (Keyed, Keyed(key=SecretStr("a")), "holds a SecretStr at key, which is masked when it"),
        (SecretStr, SecretStr("a"), "SecretStr is masked when it is written"),
        (str, NOON, "is a datetime, which would come back as a str"),
        (str, Path("a"), "would come back as a str; annotate it PosixPath, or pass a str"),
        (bytes, "abcd", "is a str, which would come back as bytes; annotate it str"),
        (dict[str, int], {1: 2}, "holds an int at (a key), which would come back as a str"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_annotated_value_that_would_change_type_is_refused(
    hint: Any, value: Any, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        code(hint).pack((value,), {})
    assert said in str(caught.value)
    with pytest.raises(UsageError) as caught:
        code(hint).pack_result(value)
    assert said in str(caught.value)


def test_a_value_may_be_converted_to_its_annotated_type() -> None:
    for hint, value, back in (
        (list[int], (1, 2), [1, 2]),
        (set[str], ["a"], {"a"}),
        (float, 1, 1.0),
        (Path, "a", Path("a")),
        (Cat, {"kind": "cat", "name": "a"}, Cat(name="a")),
        (Pet, {"kind": "dog", "name": "a"}, Dog(name="a")),
        (Trip | Walk, {"steps": 3}, Walk(3)),
        (str, Mood.CALM, "calm"),
        (dict, Counter("a"), {"a": 1}),
        (dict[str, int], Counter("a"), {"a": 1}),
        (list, Tags([1]), [1]),
    ):
        assert there_and_back(code(hint), value) == (back, back)


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_a_nan_is_refused_with_the_name_of_its_parameter(number: float) -> None:
    for hint, value in (
        (UNANNOTATED, {"a": number}),
        (float, number),
        (dict[str, float], {"a": number}),
    ):
        with pytest.raises(
            UsageError, match=r"argument 'x' of a call of task .* no number in JSON"
        ):
            code(hint).pack((value,), {})


def test_an_int_of_any_length_round_trips_or_is_refused() -> None:
    assert there_and_back(code(), 10**4000) == (10**4000, 10**4000)
    with pytest.raises(UsageError, match=r"argument 'x' .* has more than 4300 digits; give a str"):
        code().pack((10**5000,), {})


def test_a_codec_that_keeps_more_refuses_less() -> None:
    packed, pickled = code(codec="msgpack"), code(codec="pickle", ring=RING, pickle=AllowPickle())
    value: Any
    for value in (b"x", NOON, {1: 2}, [nan]):
        assert repr(there_and_back(packed, value)) == repr((value, value))
    for value in ((1,), {1}, NOON.replace(tzinfo=None), Walk(1)):
        with pytest.raises(UsageError, match="annotate it"):
            packed.pack((value,), {})
        assert there_and_back(pickled, value) == (value, value)


def test_with_exact_false_a_value_may_change_by_its_codec() -> None:
    def give(x: Any) -> Any: ...

    made = TaskCode("step", give, Wire(), exact=False)
    assert made.pack((((1, 2), NOON),), {})
    assert made.unpack_result(made.pack_result((1, NOON.date()))) == [1, "2030-01-01"]


# Types that can never be stored


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (Agent, "an Agent cannot be stored: pass the data it is made from, or make it a dataclass"),
        (list[Agent], "an Agent cannot be stored"),
        (Agent | None, "an Agent cannot be stored"),
        (Agent | int, "custom type"),
        (Callable[[], int], "a Callable cannot be stored"),
        (dict[Path, int], "Path cannot be a key of a dict; keys are text, numbers or enums"),
        (Cat | Agent, "pydantic cannot read it"),
        (complex, "a complex cannot be stored"),
    ],
    ids=str,
)
def test_a_parameter_that_can_never_work_is_refused_when_its_task_is_made(
    hint: Any, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        code(hint)
    assert "task 'task': parameter 'x' is annotated " in str(caught.value)
    assert said in str(caught.value)


def test_a_result_that_can_never_work_is_refused_when_its_task_is_made() -> None:
    def make() -> Agent: ...  # type: ignore[empty-body]

    with pytest.raises(
        UsageError, match=r"task 'make' returns .*Agent, which cannot work: an Agent"
    ):
        TaskCode("make", make, Wire()).signature.check_early()

    def never() -> Never: ...  # type: ignore[empty-body]

    TaskCode("never", never, Wire()).signature.check_early()


def test_a_parameter_with_a_default_may_have_any_type_while_it_is_not_given() -> None:
    def call(topic: str, agent: Agent | None = None, made: Agent | int = 5) -> str:
        return f"{topic} {agent} {made}"

    made = TaskCode("call", call, Wire())
    made.signature.check_early()
    assert made.unpack(made.pack(("a",), {}))() == "a None 5"
    assert made.unpack(made.pack(("a", None), {}))() == "a None 5"
    with pytest.raises(UsageError, match=r"parameter 'agent' is annotated .* an Agent cannot be"):
        made.pack(("a", Agent()), {})


def later(x: Later, y: list[Later] | None = None) -> Later:
    return x


def holding(x: Holder) -> None: ...


def never_stored(x: LateAgent) -> None: ...


@dataclass
class Holder:
    inner: Later


EARLY = [TaskCode(fn.__name__, fn, Wire()) for fn in (later, holding, never_stored)]
for _early in EARLY:
    _early.signature.check_early()


@dataclass
class Later:
    size: int


class LateAgent:
    """Nothing that could be stored either."""


def test_a_type_that_is_defined_after_its_task_works() -> None:
    first, held, _ = EARLY
    assert there_and_back(first, Later(1)) == (Later(1), Later(1))
    assert held.unpack(held.pack((Holder(Later(1)),), {}))() is None


def test_a_late_type_that_can_never_work_is_refused_by_the_submit_and_by_the_worker() -> None:
    _, _, refused = EARLY
    with pytest.raises(UsageError, match=r"parameter 'x' is annotated .*LateAgent"):
        refused.pack((LateAgent(),), {})
    codes = TaskRegistry()
    codes.add(refused)
    with pytest.raises(UsageError, match=r"parameter 'x' is annotated .*LateAgent"):
        codes.check()


def test_an_annotation_that_cannot_be_resolved_is_named() -> None:
    def call(x: Unheard) -> Unheard:  # type: ignore[name-defined]  # noqa: F821
        return x

    made = TaskCode("call", call, Wire())
    made.signature.check_early()
    assert there_and_back(made, {"a": 1}) == ({"a": 1}, {"a": 1})
    said = "x is annotated Unheard, which is not found at run time: annotate it with a type that is"
    with pytest.raises(UsageError, match=said):
        made.pack((NOON,), {})
    with pytest.raises(
        UsageError, match="its return type is annotated Unheard, which is not found"
    ):
        made.pack_result(NOON)


# Payloads of older versions


def test_calls_and_results_of_older_versions_are_read() -> None:
    def old(name: str, value: Any) -> bytes:
        return encode((name, ["x"], {"x": value}))

    for hint, value, back in (
        (list[Cat], [{"kind": "cat", "name": "a"}], [Cat(name="a")]),
        (Trip, {"to": "a", "takes": "PT1H", "stops": []}, Trip(Path("a"), timedelta(hours=1))),
        (Any, [1, "2030-01-01"], [1, "2030-01-01"]),
        (tuple[int, str], [1, "a"], (1, "a")),
    ):
        made = code(hint)
        assert made.unpack(old("task", value))() == back
        assert made.unpack_result(encode(value)) == back


def test_a_wrong_argument_is_reported_by_its_parameter_name() -> None:
    with pytest.raises(UsageError, match="Expected `int`, got `str` - at argument 'x'"):
        code(int).pack(("five",), {})
    with pytest.raises(UsageError, match=r"Expected `int`, got `str` - at argument 'x'\[1\]"):
        code(list[int]).pack(([1, "five"],), {})
    with pytest.raises(UsageError, match="Input should be greater than 3 - at argument 'x'"):
        code(Annotated[int, Field(gt=3)]).pack((2,), {})


def test_pydantic_is_imported_only_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pydantic")
    for hint, value in ((str | Path, Path("a")), (Trip | Walk, Walk(1)), (dict[str, Any], {})):
        assert there_and_back(code(hint), value) == (value, value)
    assert "pydantic" not in sys.modules


class Mixed(Enum):
    NUMBER = 1
    TEXT = "b"


async def test_an_enum_of_mixed_values_is_answered_with_what_works() -> None:
    app = App("memory://")

    async def take(x) -> None: ...  # type: ignore[no-untyped-def]
    async def take_mixed(x: Mixed) -> None: ...

    works = "an Enum can be stored if its values are all str or all int: change its values, or pass"
    async with app:
        with pytest.raises(UsageError, match=f"{works} x.value"):
            await app.task(name="take")(take).submit(Mixed.NUMBER)
    with pytest.raises(UsageError, match=f"{works} one as `.value`"):
        app.task(name="take_mixed")(take_mixed)


@pytest.mark.parametrize("annotation", [Iterable, typing.Iterable])
def test_an_iterable_of_no_type_is_answered_with_what_works(annotation: Any) -> None:
    async def take(x) -> None: ...  # type: ignore[no-untyped-def]

    take.__annotations__["x"] = annotation
    with pytest.raises(UsageError, match=r"name the type of its items, as in Iterable\[int\], or"):
        App("memory://").task(name="take")(take)
