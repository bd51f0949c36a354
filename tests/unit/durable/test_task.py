"""Tasks: arguments and results arrive typed; values that cannot are refused at the submit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, Optional
from uuid import UUID, uuid4

import msgspec
import pytest
from pydantic import BaseModel

from poolhand import PoolhandError, Retry, UsageError, fair_round_robin
from poolhand.app import App
from poolhand.durable.client.task import Task
from poolhand.errors import JobFailed, TooLarge
from poolhand.settings import Wire
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from poolhand.wire.limits import Limits
from tests.unit.durable.support import SharedStore, StoreApp, seeded, stored

if TYPE_CHECKING:
    from decimal import Decimal as Unheard


@dataclass
class Query:
    topic: str
    depth: int = 1


class Hit(msgspec.Struct):
    title: str
    at: datetime


class Answer(BaseModel):
    text: str
    hits: list[int]


async def run(app: App, task: Task[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
    async with app, app.worker(2):
        return await (await task.submit(*args, **kwargs))


@seeded
async def test_a_dataclass_a_struct_and_a_model_arrive_with_their_type(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    seen: list[Any] = []

    @app.task(name="look")
    async def look(query: Query, hit: Hit, answer: Answer) -> Answer:
        seen.extend([query, hit, answer])
        return Answer(text=query.topic, hits=[query.depth])

    given = Query("bees", 3), Hit("a", datetime(2030, 1, 1, tzinfo=UTC)), Answer(text="", hits=[])
    assert await run(app, look, *given) == Answer(text="bees", hits=[3])
    assert seen == list(given)


@seeded
async def test_every_kind_of_parameter_gets_its_argument(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    def call(
        first: UUID, /, second: Query, *rest: Query, word: set[int], **more: Query
    ) -> tuple[UUID, Query, list[Query], set[int], dict[str, Query]]:
        return first, second, list(rest), word, more

    id = uuid4()
    found = await run(
        app, call, id, Query("a"), Query("b"), Query("c"), word={2, 1}, extra=Query("d")
    )
    a, b, c, d = map(Query, "abcd")
    assert found == (id, a, [b, c], {1, 2}, {"extra": d})


@seeded
async def test_a_parameter_that_was_left_out_has_its_default(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call(first: int, second: int = 2, *, third: int = 3) -> list[int]:
        return [first, second, third]

    async with app, app.worker():
        assert await (await call.submit(1)) == [1, 2, 3]
        assert await (await call.submit(1, third=9)) == [1, 2, 9]
        assert await (await call.submit(second=7, first=1)) == [1, 7, 3]


@seeded
async def test_one_unresolvable_annotation_leaves_the_others_typed(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call(query: Query, number: Unheard) -> str:
        return f"{query.topic} {number}"

    assert await run(app, call, Query("bees"), 5) == "bees 5"


@seeded
async def test_a_type_may_be_defined_after_the_task(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    later = app.task(takes_later)
    assert await run(app, later, Later(5)) == Later(6)


async def takes_later(value: Later) -> Later:
    return Later(value.number + 1)


@dataclass
class Later:
    number: int


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'number'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"colour": "red"}, "unexpected keyword argument 'colour'"),
        ((1,), {"number": 1}, "multiple values"),
        (("one",), {}, "Expected `int`, got `str`"),
        ((1,), {"words": "ab"}, "Expected `array | null`, got `str`"),
    ],
    ids=["missing", "too many", "unknown", "twice", "wrong type", "wrong option"],
)
async def test_arguments_that_do_not_fit_are_refused_at_the_submit(
    args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    app = App("memory://")

    @app.task(name="count")
    async def count(number: int, *, words: list[str] | None = None) -> int:
        return number

    async with app:
        with pytest.raises(UsageError, match="count") as caught:
            await count.submit(*args, **kwargs)
        assert said in str(caught.value)


async def test_an_argument_that_cannot_be_written_is_refused_at_the_submit() -> None:
    app = App("memory://")

    @app.task(name="call")
    async def call(value: Any) -> None: ...

    async with app:
        with pytest.raises(
            UsageError, match=r"argument .value. holds an object at value\[.a.\]\[0\]"
        ):
            await call.submit({"a": [object()]})


async def test_an_argument_that_is_too_large_is_refused_at_the_submit() -> None:
    app = App("memory://", wire=Wire(limits=Limits(payload=2000)))

    @app.task(name="call")
    async def call(value: str) -> None: ...

    async with app:
        with pytest.raises(TooLarge, match="the limit is 2000"):
            await call.submit("x" * 2001)
        assert (await call.submit("x" * 1500)).status is Status.QUEUED


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (object, "its result is an object, which cannot be stored as JSON"),
        (lambda: "x" * 2000, "the limit is 1000"),
        (lambda: {"a": {"b": object()}}, "holds an object at result\\['a'\\]\\['b'\\]"),
    ],
    ids=["no data", "too large", "deep inside"],
)
async def test_a_result_that_cannot_be_stored_fails_the_job_with_the_reason(
    make: Callable[[], object], said: str
) -> None:
    app = App("memory://", wire=Wire(limits=Limits(payload=1000)))
    runs: list[int] = []

    @app.task(name="give")
    async def give() -> Any:
        runs.append(1)
        return make()

    async with app, app.worker():
        ticket = await give.submit()
        with pytest.raises(PoolhandError, match=said):
            await ticket
        assert (await stored(app, ticket.id)).dead
        assert len(runs) == 1
        # The slot is free for the next job.
        assert not isinstance(await (await give.submit()).refresh(), BaseException)


def returning(hint: Any, value: Any) -> Any:
    """Return a function whose result does not have its annotated type."""

    async def give() -> Any:
        return value

    give.__annotations__["return"] = hint
    return give


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (int, "five", "is to return int, and returned str: Expected `int`, got `str`"),
        (None, 5, "is to return NoneType, and returned int: Expected `null`"),
        (int | None, "five", "and returned str: Expected `int"),
        (str, None, "is to return str, and returned NoneType: Expected `str`"),
        (list[int], [1, "two"], r"is to return list\[int\], and returned list: .*`\$\[1\]`"),
        (Query, Query(topic=5), "and returned Query: Expected `str`, got `int` - at"),  # type: ignore[arg-type]
        (Hit, {"title": "x"}, "and returned dict: Object missing required field `at`"),
        (Answer, Answer.model_construct(text="x", hits="none"), "and returned Answer: hits"),
        (NoReturn, 5, "is to return NoneType, and returned int"),
    ],
    ids=["int", "none", "optional", "forgotten", "generic", "dataclass", "struct", "model",
         "no return"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_a_result_that_does_not_fit_its_annotation_fails_the_job_with_the_reason(
    hint: Any, value: Any, said: str, url: str
) -> None:
    app = App(url)
    give = app.task(name="give")(returning(hint, value))
    async with app, app.worker():
        ticket = await give.submit()
        with pytest.raises(UsageError, match=said) as caught:
            await ticket
        assert str(caught.value).startswith("give is to return ")
        assert "correct the annotation, or what is returned" in str(caught.value)
        kept = await stored(app, ticket.id)
        assert kept.dead
        assert kept.job.attempts == 1


@pytest.mark.parametrize(
    ("hint", "value", "read"),
    [
        (None, None, None),
        (int | None, None, None),
        (Optional[str], "x", "x"),  # noqa: UP045
        (float, 5, 5.0),
        (list[int], (1, 2), [1, 2]),
        (set[str], ["a"], {"a"}),
        (object, {"a": [1]}, {"a": [1]}),
        (dict[str, object], {"a": 1, "b": "two"}, {"a": 1, "b": "two"}),
        (Query, {"topic": "bees"}, Query("bees")),
        (Query | None, Query("bees"), Query("bees")),
        (list[Answer], [Answer(text="x", hits=[])], [Answer(text="x", hits=[])]),
        ("Unheard", 5, 5),
        (Awaitable[int], 5, 5),
        (Coroutine[Any, Any, list[int]], (5,), [5]),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_result_is_converted_to_its_annotation(hint: Any, value: Any, read: Any) -> None:
    app = App("memory://")
    give = app.task(name="give")(returning(hint, value))
    async with app, app.worker():
        found = await (await give.submit())
    assert found == read
    assert type(found) is type(read)


class Hostile:
    """A value that raises wherever it is inspected."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise ZeroDivisionError

    def __repr__(self) -> str:
        raise ZeroDivisionError


async def test_a_hostile_result_fails_only_its_job() -> None:
    app = App("memory://")

    @app.task(name="give")
    async def give(hostile: bool) -> Any:
        return Hostile() if hostile else 1

    async with app, app.worker(1):
        with pytest.raises(UsageError, match="raises ZeroDivisionError when encoded"):
            await (await give.submit(True))
        assert await (await give.submit(False)) == 1


@seeded
async def test_a_call_kept_for_an_older_signature_runs_while_it_fits(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    before = StoreApp(store, runtime)

    @before.task(name="greet")
    async def greet(name: str, mood: str = "glad") -> str:
        return f"{name} {mood}"

    async with before:
        fits = await greet.submit("ann")
        fails = await greet.submit("ann", "sad")
    after = StoreApp(store, runtime)

    @after.task(name="greet")
    async def greet_now(name: str, *, loud: bool = False) -> str:
        return f"{name} {loud}"

    async with after, after.worker():
        now = await after.get(fits.id), await after.get(fails.id)
        assert now[0] is not None
        assert now[1] is not None
        assert await now[0] == "ann False"
        await asyncio.sleep(10)
        explained = await now[1].explain()
        assert explained.reason == "other_version"
        assert "unknown ['mood'], missing []" in str(explained)
    async with before, before.worker():
        assert await fails == "ann sad"


@seeded
async def test_a_call_that_lacks_a_new_parameter_waits_until_there_is_a_default(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    before, after = StoreApp(store, runtime), StoreApp(store, runtime)

    @before.task(name="greet")
    async def greet(name: str) -> str:
        return name

    async with before:
        kept = await greet.submit("ann")

    @after.task(name="greet")
    async def greet_now(name: str, mood: str) -> str:
        return name

    async with after, after.worker():
        ticket = await after.get(kept.id)
        assert ticket is not None
        await asyncio.sleep(10)
        explained = await ticket.explain()
        assert explained.reason == "other_version"
        assert "missing ['mood']; give new parameters a default" in str(explained)
    fixed = StoreApp(store, runtime)

    @fixed.task(name="greet")
    async def greet_with_default(name: str, mood: str = "glad") -> str:
        return f"{name} {mood}"

    async with fixed, fixed.worker():
        ticket = await fixed.get(kept.id)
        assert ticket is not None
        assert await ticket == "ann glad"


@seeded
async def test_a_result_is_read_as_the_type_that_is_returned_now(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    before, after = StoreApp(store, runtime), StoreApp(store, runtime)

    @before.task(name="find")
    async def find() -> dict[str, Any]:
        return {"topic": "bees", "depth": 3}

    async with before, before.worker():
        kept = await find.submit()
        assert await kept == {"topic": "bees", "depth": 3}

    @after.task(name="find")
    async def find_now() -> Query:
        return Query("")

    async with after:
        ticket = await after.get(kept.id)
        assert ticket is not None
        assert await ticket == Query("bees", 3)
        assert ticket.snapshot().result == Query("bees", 3)


async def test_a_plain_call_just_runs() -> None:
    app = App("memory://")

    @app.task(name="later", pool="research")
    async def later(topic: str) -> str:
        """Look it up."""
        return topic.upper()

    @app.task(name="now")
    def now(topic: str) -> str:
        return topic.upper()

    assert await later("bees") == now("bees") == "BEES"
    assert later.__doc__ == "Look it up."
    assert later.__name__ == "later"
    assert repr(later) == "<Task later in pool 'research'>"


async def test_submit_many_accepts_its_calls_in_order() -> None:
    app = App("memory://")

    @app.task(name="double")
    async def double(number: int, plus: int = 0) -> int:
        return 2 * number + plus

    async with app, app.worker(3):
        tickets = await double.submit_many([(1,), (2, 5), (3,)])
        assert [await one for one in tickets] == [2, 9, 6]
        assert await double.submit_many([]) == []


@pytest.mark.parametrize("calls", [[(1,), ("x",)], [(1,), ()], [(1,), 2]], ids=str)
async def test_submit_many_with_one_wrong_call_submits_nothing(calls: list[Any]) -> None:
    app = App("memory://")

    @app.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    async with app:
        with pytest.raises(UsageError):
            await double.submit_many(calls)
        connection = await app.core.connection()
        assert await connection.thread.ask(connection.store.pools) == []


@pytest.mark.parametrize("calls", [None, 5, True, "bees", ["bees"]], ids=str)
async def test_submit_many_takes_tuples_of_arguments(calls: Any) -> None:
    app = App("memory://")

    @app.task(name="call")
    async def call(text: str = "") -> None: ...

    async with app:
        with pytest.raises(UsageError, match=r"tuples of arguments, such as \[\('bees',\)"):
            await call.submit_many(calls)


async def test_too_many_calls_in_submit_many_are_refused_before_any_is_checked() -> None:
    app = App("memory://")

    @app.task(name="call")
    async def call(number: int) -> None: ...

    async with app:
        endless = ((number,) for number in count())
        with pytest.raises(UsageError, match="at most 50,000 calls at once; submit them in parts"):
            await call.submit_many(endless)
        assert next(endless) == (50_001,)
        assert sum((await app.operator().count()).values()) == 0


@pytest.mark.parametrize("first", ["bees", None, 5, "x" * 3_000_000], ids=lambda one: str(one)[:9])
async def test_submit_in_without_a_transaction_is_refused_with_the_fix(first: Any) -> None:
    app = App("memory://")

    @app.task(name="call")
    async def call(text: str = "") -> None: ...

    async with app:
        with pytest.raises(
            UsageError, match=r"give the transaction first: submit_in\(tx"
        ) as caught:
            await call.submit_in(first, "bees")
    assert len(str(caught.value)) < 500


SIGNS = range(0x4E00, 0x9FA5)


async def test_labels_of_a_stored_job_have_a_bounded_length(url: str) -> None:
    app = App(url)

    @app.task(name="call")
    async def call() -> int:
        return 1

    labels = ("key", "idempotency_key", "session", "tenant", "user")
    # As long as allowed, and incompressible.
    wide: Any = {name: "".join(map(chr, Random(name).choices(SIGNS, k=333))) for name in labels}
    async with app, app.worker():
        assert await (await call.with_options(**wide).submit()) == 1
        for label in labels:
            with pytest.raises(UsageError, match=f"{label}='xx.*at most 1,000 bytes in UTF-8"):
                call.with_options(**{**wide, label: "x" * 1001})


async def test_all_wrong_options_are_reported_at_once_by_with_options() -> None:
    app = App("memory://")

    @app.task(name="call")
    async def call() -> None: ...

    with pytest.raises(UsageError) as caught:
        call.with_options(priority="high", timeout=-1, colour="red")  # type: ignore[arg-type]
    text = str(caught.value)
    assert "priority='high'" in text
    assert "timeout=-1" in text
    assert "'colour' is not an option" in text
    with pytest.raises(UsageError, match="delay or run_at"):
        call.with_options(delay=1).with_options(run_at=datetime.now(UTC))


async def test_a_misspelt_task_option_gets_a_suggestion() -> None:
    app = App("memory://")
    with pytest.raises(
        UsageError, match=r"@app.task: 'tiemout' is not an option; did you mean 'timeout'"
    ):

        @app.task(name="call", tiemout=5)  # type: ignore[call-overload, untyped-decorator]
        async def call() -> None: ...


async def test_task_options_are_the_defaults_of_its_submits() -> None:
    app = App("memory://")

    @app.task(name="call", priority=7, timeout=3)
    async def call() -> None: ...

    async with app:
        first = (await call.submit()).snapshot()
        changed = call.with_options(priority=9, tenant="acme", user="ann").with_options(key="k")
        second = (await changed.submit()).snapshot()
    assert (first.priority, first.tenant, first.key) == (7, None, "")
    assert (second.priority, second.tenant, second.user, second.key) == (9, "acme", "ann", "k")


@pytest.mark.parametrize(
    "options",
    [{"priority": "x"}, {"timeout": 0}, {"on_crash": "explode"}, {"colour": 1}, {"name": 5}],
    ids=str,
)
async def test_wrong_task_options_are_refused_at_declaration(options: Any) -> None:
    app = App("memory://")
    with pytest.raises(UsageError):

        @app.task(**{"name": "call", **options})
        async def call() -> None: ...


async def test_the_field_of_a_fair_pool_is_an_option_of_its_tasks() -> None:
    app = App("memory://")
    app.pool("chat", queue=fair_round_robin("customer"))

    @app.task(name="call", pool="chat")
    async def call() -> None: ...

    async with app:
        ticket = await call.with_options(customer="acme").submit()
        assert ticket.snapshot().key == "acme"


async def test_a_pool_may_be_declared_after_its_tasks() -> None:
    app = App("memory://")

    @app.task(name="call", pool="chat")
    async def call() -> None: ...

    app.pool("chat", queue=fair_round_robin("customer"), retry=Retry(attempts=2))
    async with app:
        ticket = await call.with_options(customer="acme").submit()
        assert ticket.snapshot().key == "acme"


@pytest.mark.parametrize("run_in", ["thread", "process"])
async def test_an_async_task_cannot_ask_to_run_elsewhere(run_in: str) -> None:
    app = App("memory://")

    @app.task(name="call")
    async def call() -> None: ...

    with pytest.raises(UsageError, match="is async and runs on the loop"):
        call.with_options(run_in=run_in)
    with pytest.raises(UsageError, match="is async and runs on the loop"):
        app.task(name="other", run_in=run_in)(call.fn)


async def test_an_async_task_runs_on_the_loop_whatever_the_pool_default() -> None:
    app = App("memory://")
    app.pool("cpu", run_in="thread")

    @app.task(name="call", pool="cpu")
    async def call() -> bool:
        return asyncio.get_running_loop() is loop

    loop = asyncio.get_running_loop()
    async with app, app.worker():
        assert await (await call.submit())


def test_a_process_task_must_be_importable() -> None:
    app = App("memory://")
    with pytest.raises(UsageError, match="top level of a module"):

        @app.task(name="call", run_in="process")
        def call() -> None: ...


@pytest.mark.parametrize(
    "fn", [5, "call", None.__class__, complex], ids=["int", "str", "builtin", "builtin with names"]
)
def test_an_unsuitable_callable_is_refused_as_a_task(fn: Any) -> None:
    with pytest.raises(UsageError):
        App("memory://").task(fn)


def test_two_functions_cannot_be_one_task() -> None:
    app = App("memory://")

    @app.task(name="call")
    def one() -> None: ...

    with pytest.raises(UsageError, match="registered already"):

        @app.task(name="call")
        def two() -> None: ...


def test_two_apps_may_have_tasks_of_the_same_name() -> None:
    one, two = App("memory://"), App("memory://")

    @one.task(name="shared name")
    def first() -> None: ...

    @two.task(name="shared name")
    def second() -> None: ...

    assert first.name == second.name


async def test_the_error_of_a_task_is_raised_as_it_is_in_its_own_process() -> None:
    app = App("memory://")
    error = LookupError("no bees")

    @app.task(name="call", retry=Retry(attempts=1))
    async def call() -> None:
        raise error

    async with app, app.worker():
        ticket = await call.submit()
        for _ in range(3):
            with pytest.raises(LookupError) as caught:
                await ticket
            assert caught.value is error
        depths = []
        for _ in range(2):
            try:
                await ticket
            except LookupError as raised:
                trace, depth = raised.__traceback__, 0
                while trace is not None:
                    trace, depth = trace.tb_next, depth + 1
                depths.append(depth)
        assert depths[0] == depths[1], "it collects the frames of those who wait"


@seeded
async def test_in_another_process_the_error_of_a_task_has_its_type_and_message(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    here, there = StoreApp(store, runtime), StoreApp(store, runtime)

    @here.task(name="fail", retry=Retry(attempts=1))
    @there.task(name="fail", retry=Retry(attempts=1))
    async def fail() -> None: ...

    @there.task(name="fail2", retry=Retry(attempts=1))
    async def fail_there() -> None:
        raise LookupError("no \ud800 bees")

    @here.task(name="fail2", retry=Retry(attempts=1))
    async def fail_here() -> None: ...

    async with here, there, there.worker():
        ticket = await fail_here.submit()
        with pytest.raises(JobFailed, match=r"LookupError: no . bees"):
            await ticket
        error = ticket.snapshot().error
        assert error is not None
        assert error.type == "LookupError"
        assert "fail_there" in error.traceback
        msgspec.json.encode(error)


@seeded
async def test_the_original_error_is_raised_however_fast_a_job_ends(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    errors = [LookupError(number) for number in range(20)]

    @app.task(name="call", retry=Retry(attempts=1))
    async def call(number: int) -> None:
        raise errors[number]

    async with app, app.worker(20):
        tickets = await asyncio.gather(*(call.submit(number) for number in range(20)))
        found = await asyncio.gather(*tickets, return_exceptions=True)
    assert found == errors


@pytest.mark.parametrize("verb", ["delay", "apply_async", "send", "enqueue"])
def test_verbs_of_other_task_queues_are_refused_with_the_poolhand_verb(verb: str) -> None:
    task: Any = App("memory://").task(name="abs")(abs)
    assert not hasattr(task, verb)
    with pytest.raises(AttributeError, match=rf"no attribute '{verb}'; write task.submit\(…\)"):
        getattr(task, verb)
