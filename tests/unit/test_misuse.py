"""Wrong calls of the public API are answered with the right call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import pytest

import poolhand
from poolhand import (
    AgentRequest,
    App,
    Pool,
    Retry,
    Session,
    Ticket,
    UsageError,
    agent_fanout,
    bounded,
    bounded_map,
    fair_round_robin,
    fifo,
    log_events,
    priority,
    ring_buffer,
    wait,
)
from poolhand.agents.agent import Agent
from poolhand.agents.tools.tool import Tool
from poolhand.durable.client.task import TaskSubmitter
from poolhand.durable.client.ticket import SyncTicket
from poolhand.durable.worker.worker import Worker
from poolhand.misuse import SUBMIT_OPTIONS, OptionsStruct, explain_misuse
from poolhand.operate.actions import Operator
from poolhand.pool.options import ALLOWED
from poolhand.pool.submitter import Submitter
from poolhand.settings import (
    AllowPickle,
    Autoscale,
    FarmSettings,
    Keep,
    KeyRing,
    Limits,
    suggest_workers,
)
from poolhand.views import Filter

APP = App("memory://")
POOL: Any = Pool("misused")


@APP.task
def double(number: int) -> int:
    return 2 * number


@APP.agent
async def chat(session: Session, text: str) -> str:
    return f"{session.id}: {text}"


def called(fn: Any, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: fn(*args, **kwargs)


async def outcome_of(call: Callable[[], Any]) -> Any:
    found = call()
    return await found if inspect.isawaitable(found) else found


async def message_of(call: Callable[[], Any]) -> str:
    with pytest.raises(UsageError) as caught:
        await outcome_of(call)
    assert caught.value.__suppress_context__
    return caught.value.message


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        (called(Retry, atempts=3), "atempts", "attempts"),
        (called(Retry, max_retries=3), "max_retries", "attempts"),
        (called(Keep, result=5), "result", "results"),
        (called(Limits, paylod=5), "paylod", "payload"),
        (called(Filter, stats=()), "stats", "statuses"),
        (called(FarmSettings, min_worker=2), "min_worker", "min_workers"),
        (called(Autoscale, 1, 5, intervall=3), "intervall", "interval"),
        (called(AgentRequest, double.fn, timout=1), "timout", "timeout"),
        (called(KeyRing, {}, curent="a"), "curent", "current"),
        (called(Session, "s", tennant="x"), "tennant", "tenant"),
        (called(APP.worker, pool="x"), "pool", "pools"),
        (called(APP.worker, concurrency=5), "concurrency", "slots"),
        (called(APP.run_worker, slot=5), "slot", "slots"),
        (called(APP.farm, "a:app", setings=None), "setings", "settings"),
        (called(APP.cron, "@daily", timezone="UTC"), "timezone", "tz"),
        (called(APP.every, 5, mised="all"), "mised", "missed"),
        (called(APP.find_task, "x", poool="y"), "poool", "pool"),
        (called(APP.operator().jobs, lmit=3), "lmit", "limit"),
        (called(chat.session, "s", tennant="x"), "tennant", "tenant"),
        (called(double.map, [1], return_exception=True), "return_exception", "return_exceptions"),
        (
            called(POOL.map, abs, [1], return_exception=True),
            "return_exception",
            "return_exceptions",
        ),
        (called(POOL.drain, timout=5), "timout", "timeout"),
        (called(wait, [], timout=5), "timout", "timeout"),
        (called(agent_fanout, [], max_paralel=3), "max_paralel", "max_parallel"),
        (called(bounded, 5, on_ful="x"), "on_ful", "on_full"),
        (called(priority, ageing=5), "ageing", "aging"),
        (called(fair_round_robin, weight={}), "weight", "weights"),
    ],
)
async def test_a_misspelt_option_gets_a_suggestion(
    call: Callable[[], Any], given: str, meant: str
) -> None:
    assert f"{given!r} is not an option; did you mean {meant!r}?" in await message_of(call)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            called(Retry, 3, 1, 2, 3, 0.5, (), 9),
            "Retry: too many positional arguments; write Retry(attempts=4, first=5.0, factor=2.0, "
            "cap=600.0, jitter=0.5, give_up_on=())",
        ),
        (called(Keep, 5), "Keep: too many positional arguments; write Keep(*, results=604800.0, "),
        (called(ring_buffer), "ring_buffer: missing a required argument: 'max_depth'; write"),
        (called(POOL.resize), "'max_concurrent'; write resize(max_concurrent)"),
        (called(Pool, "x", 5), "Pool: too many positional arguments; write Pool(name=None, *, "),
        (
            called(APP.pool),
            "pool: missing a required argument: 'name'; write pool(name, **options)",
        ),
        (called(APP.operator().cancel, ["id"]), "'by'; write cancel(ids, by)"),
        (called(chat.session), "session: missing a required argument: 'id'; write session(id, *, "),
        (called(double.with_options, 5), "write with_options(*, priority=…, key=…"),
        (called(suggest_workers, 5, 5), "write suggest_workers(*, rate, seconds, limits=())"),
        (called(bounded_map, abs, [1], 3), "write bounded_map(fn, items, *, limit, "),
        (
            called(AllowPickle, modules="x"),
            "AllowPickle: 'modules' is not an option; there are none",
        ),
        (
            called(log_events, level="info"),
            "'level' is not an option; there are logger, json, events",
        ),
        (called(Pool.resize), "resize is a method: call it on an object, not on its class"),
    ],
)
async def test_a_call_that_does_not_fit_shows_the_call_that_does(
    call: Callable[[], Any], text: str
) -> None:
    assert text in await message_of(call)


def test_a_strategy_is_given_as_queue() -> None:
    with pytest.raises(UsageError, match=r"'strategy' is not an option .*did you mean 'queue'"):
        Pool(strategy=fifo())  # type: ignore[call-arg]


def test_all_wrong_names_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        called(Retry, atempts=3, frist=1)()
    assert "'attempts'?; 'frist' is not an option; did you mean 'first'?" in caught.value.message


@pytest.mark.parametrize("name", ["x" * 5_000, "a\0b", "🐝", ""])
def test_a_strange_name_is_refused_in_a_short_text(name: str) -> None:
    with pytest.raises(UsageError, match="is not an option; there are attempts, first") as caught:
        called(Retry, **{name: 1})()
    assert len(caught.value.message) < 350


# The mechanism


@explain_misuse
def divide(number: float, by: float = 2.0) -> float:
    """Divide."""
    return number / by


@explain_misuse
async def divide_later(number: float, by: float = 2.0) -> float:
    return number / by


@explain_misuse
class Machine:
    async def __aenter__(self) -> Machine:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    def bare(self) -> None: ...

    def start(self, speed: int) -> int:
        return speed + 1

    def _hidden(self, speed: int) -> int:
        return speed


async def test_a_type_error_from_inside_the_function_is_left_unchanged() -> None:
    text: Any = "six"
    with pytest.raises(TypeError, match="unsupported operand"):
        divide(text)
    with pytest.raises(TypeError, match="unsupported operand"):
        await divide_later(text)
    with pytest.raises(TypeError, match="can only concatenate"):
        Machine().start(text)


def test_a_wrapped_function_keeps_its_name_doc_and_signature() -> None:
    assert (divide.__name__, divide.__doc__) == ("divide", "Divide.")
    assert str(inspect.signature(divide)) == "(number: 'float', by: 'float' = 2.0) -> 'float'"
    assert inspect.iscoroutinefunction(divide_later)
    assert not inspect.iscoroutinefunction(divide)
    assert str(inspect.signature(Retry)).startswith("(attempts: int = 4")


def test_methods_without_options_are_not_wrapped() -> None:
    methods: dict[str, Any] = dict(vars(Machine))
    wrapped = {name for name, one in methods.items() if hasattr(one, "__wrapped__")}
    assert wrapped == {"start"}


def test_a_plain_with_is_refused_and_names_async_with() -> None:
    machine: Any = Machine()
    with (
        pytest.raises(UsageError, match="Machine is entered by `async with`, not by `with`"),
        machine,
    ):
        pass


@pytest.mark.parametrize("kind", [App, Pool, poolhand.AgentPool, Worker])
def test_every_async_context_manager_refuses_a_plain_with(kind: Any) -> None:
    with pytest.raises(UsageError, match="`async with`, not by `with`"):
        kind.__enter__(object.__new__(kind))


@pytest.mark.parametrize(
    "kind", [AgentRequest, AllowPickle, Autoscale, FarmSettings, Filter, Keep, Limits, Retry]
)
def test_every_record_that_users_make_explains_its_options(kind: type) -> None:
    assert issubclass(kind, OptionsStruct)


@pytest.mark.parametrize(
    "kind",
    [
        Agent,
        App,
        Operator,
        Pool,
        poolhand.AgentPool,
        Worker,
        TaskSubmitter,
        Submitter,
        SyncTicket,
        Ticket,
        Tool,
    ],
)
def test_every_method_with_options_explains_them(kind: type) -> None:
    for name, method in vars(kind).items():
        if name.startswith("_") or not isinstance(method, FunctionType):
            continue
        kinds = {one.kind for one in inspect.signature(method).parameters.values()}
        forwards = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds
        has_options = len(inspect.signature(method).parameters) > 1 and not forwards
        assert hasattr(method, "__wrapped__") or not has_options, name


@pytest.mark.parametrize("name", [one for one in poolhand.__all__ if one[0].islower()])
async def test_every_public_function_refuses_an_unknown_option(name: str) -> None:
    fn = getattr(poolhand, name)
    takes = inspect.signature(fn).parameters if inspect.isfunction(fn) else {}
    if not takes or any(one.kind is one.VAR_KEYWORD for one in takes.values()):
        return
    if name in ("emit", "subscribe"):  # one argument, given by its place
        return
    assert "'surely_unknown' is not an option" in await message_of(called(fn, surely_unknown=1))


# Ranges


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("value", [INF, -INF, NAN, 10**19, -1])
@pytest.mark.parametrize(
    "call",
    [
        lambda value: Retry(attempts=value),
        lambda value: Retry(first=value),
        lambda value: Retry(factor=value),
        lambda value: Retry(cap=value),
        lambda value: Retry(jitter=value),
        lambda value: Limits(payload=value),
        lambda value: Limits(compress_above=value),
        lambda value: Autoscale(interval=value),
        lambda value: Autoscale(max=value),
        lambda value: App("memory://", keep=Keep(dead=value)),
        lambda value: App("memory://", keep=Keep(max_dead=value)),
        lambda value: bounded(value),
        lambda value: bounded(5, wait_timeout=value),
        lambda value: priority(aging=value),
        lambda value: fair_round_robin("key", weights={"a": value}),
        lambda value: suggest_workers(rate=value, seconds=1),
        lambda value: Pool("x", timeout=value),
        lambda value: Pool("x", key_ttl=value),
        lambda value: Pool("x", max_per_key=value),
        lambda value: Pool("x", history=value),
        lambda value: POOL.with_options(timeout=value),
        lambda value: POOL.with_options(delay=value),
        lambda value: POOL.with_options(expires=value),
        lambda value: APP.worker(slots=value),
        lambda value: APP.worker(drain_timeout=value),
        lambda value: APP.every(value),
        lambda value: APP.task(timeout=value)(double.fn),
        lambda value: APP.agent(ttl=value, name="other")(chat._call),
        lambda value: APP.agent(schema=value, name="other")(chat._call),
        lambda value: poolhand.tool(timeout=value)(chat.fn),
    ],
)
def test_a_value_out_of_range_names_both_ends(call: Callable[[Any], Any], value: float) -> None:
    with pytest.raises(UsageError) as caught:
        call(value)
    allowed = caught.value.message.partition("not allowed; ")[2]
    assert any(word in allowed for word in ("at least", "above", "or more", "from"))
    assert any(word in allowed for word in ("at most", "to 1", "to 31,622,400"))


@pytest.mark.parametrize("capture", ["yes", 1, None])
def test_capture_must_be_true_or_false(capture: Any) -> None:
    with pytest.raises(
        UsageError, match=f"capture={capture!r} is not allowed; it must be True or False"
    ):
        APP.worker(capture=capture)


def test_a_single_pool_name_must_be_given_as_a_list() -> None:
    with pytest.raises(UsageError, match=r"names of pools: pools=\['research'\], or None for all"):
        APP.worker(pools="research")


def test_get_pool_refuses_a_name_that_is_not_a_text() -> None:
    number: Any = 5
    with pytest.raises(UsageError, match=r"get_pool: name_or_id=5 is not allowed"):
        poolhand.get_pool(number)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("session", "write agent.session('s-1')"),
        ("send_task", "write await app.submit('name of the task', …)"),
        ("run", "or app.run_worker() in a script"),
    ],
)
def test_a_missing_app_attribute_is_reported_with_its_new_place(name: str, hint: str) -> None:
    assert not hasattr(APP, name)
    with pytest.raises(AttributeError) as caught:
        getattr(APP, name)
    text = str(caught.value)
    assert text.startswith(f"'App' object has no attribute {name!r}; ")
    assert text.endswith(hint)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (called(KeyRing, {"a": b"x" * 32}, current="a", accept_unsigned="yes"), "True or False"),
        (called(KeyRing, {"a": b"x" * 32}, current="a", accept_unbound=1), "accept_unbound=1"),
        (called(log_events, json="yes"), "json='yes' is not allowed; it must be True or False"),
        (called(log_events, events=5), "events=5 is not allowed; it must be Events(), or None"),
        (called(poolhand.trace_events, events=5), "events=5 is not allowed; it must be Events()"),
        (called(Pool, nmae="x"), "'nmae' is not an option of a pool; did you mean 'name'?"),
        (
            called(poolhand.AgentPool, 2, 5, object, num_worker=3),
            "AgentPool: 'num_worker' is not an option of an agent pool; did you mean "
            "'num_workers'?",
        ),
    ],
)
async def test_a_wrong_option_is_refused_with_the_allowed_values(
    call: Callable[[], Any], text: str
) -> None:
    assert text in await message_of_value(call)


async def message_of_value(call: Callable[[], Any]) -> str:
    with pytest.raises(UsageError) as caught:
        await outcome_of(call)
    return caught.value.message


SO = "options of a job are given so: with_options"


async def review(number: int) -> int:
    return number


async def timed(number: int, timeout: float = 0) -> float:
    return timeout


async def open_to_all(number: int, **more: int) -> int:
    return len(more)


@pytest.mark.parametrize(
    "kept", [{}, {"scope": "pipeline", "scope_id": "x", "store": "memory://"}], ids=["here", "kept"]
)
async def test_a_pool_option_passed_as_an_argument_gets_a_hint(
    kept: dict[str, Any],
) -> None:
    async with Pool("reviews", **kept) as pool:
        run: Any = pool.run
        with pytest.raises(UsageError) as caught:
            await run(review, 1, timeout=3, priority=2)
        assert caught.value.message == (
            f"review has no parameter 'timeout', 'priority'; {SO}(priority=…, timeout=…).submit(…)"
        )
        with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
            await run(review, 1, depth=3)
        assert await pool.run(timed, 1, timeout=3) == 3
        assert await pool.run(open_to_all, 1, timeout=3) == 1
        many: Any = pool.map
        with pytest.raises(
            UsageError, match=r"'timeout' is not an option.*\(timeout=…\)\.map\(…\)"
        ):
            await many(review, [1], timeout=3)


async def test_a_task_option_passed_as_an_argument_gets_a_hint() -> None:
    app = App("memory://")
    task: Any = app.task(name="review")(review)
    named = app.task(name="timed")(timed)
    async with app, app.worker():
        for call in (task.submit, task.run, partial(app.submit, "review")):
            with pytest.raises(UsageError) as caught:
                await call(1, priority=2)
            assert f"argument 'priority'; {SO}(priority=…).submit(…)" in str(caught.value)
        assert await named.run(1, timeout=3) == 3
        with pytest.raises(UsageError) as caught:
            await app.submit(task, 1)
        assert "not the task itself; write await review.submit(…)" in str(caught.value)
        with pytest.raises(UsageError, match="not a function; register it with"):
            await app.submit(review, 1)  # type: ignore[arg-type]


def test_every_submit_option_is_in_the_list_of_options() -> None:
    assert set(ALLOWED) == SUBMIT_OPTIONS


@pytest.mark.parametrize(
    "kept", [{}, {"scope": "pipeline", "scope_id": "x", "store": "memory://"}], ids=["here", "kept"]
)
async def test_a_drained_pool_explains_where_to_submit(kept: dict[str, Any]) -> None:
    async with Pool("reviews", **kept) as pool:
        pass
    with pytest.raises(poolhand.errors.Draining) as caught:
        await pool.run(review, 1)
    assert caught.value.message == (
        "pool 'reviews' is draining or has ended, and accepts no new jobs; submit inside of its "
        "`async with`, or create a new pool"
    )


async def test_a_misspelt_attribute_names_the_one_that_is_meant() -> None:
    task = App("memory://").task(name="work")(print)
    async with Pool() as pool:
        ticket = await pool.submit(int, "1")
        owners: list[tuple[object, str, str]] = [
            (task, "sumbit", "did you mean 'submit'?"),
            (pool, "sumbit", "did you mean 'submit'?"),
            (pool, "close", "await pool.drain(seconds)"),
            (pool, "shutdown", "await pool.drain(seconds)"),
            (ticket, "done", "ticket.snapshot().status"),
            (ticket, "cancle", "did you mean 'cancel'?"),
        ]
        for owner, name, meant in owners:
            with pytest.raises(AttributeError, match=re.escape(meant)):
                getattr(owner, name)
            assert not hasattr(owner, "_zzz")
        await ticket
