"""Tools: every call has a receipt, and a `once` call does not happen twice."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from poolhand import GiveUp, Retry, ToolError, UsageError, step, tool, tool_context, wait
from poolhand.app import App
from poolhand.contract import Put
from poolhand.durable.connection.connection import store_proxy
from poolhand.errors import Conflict, IdempotencyConflict, JobFailed, ToolBusy, ToolOutcomeUnknown
from poolhand.observe.events import Events, JobMarked
from poolhand.pool.ticket import Ticket
from poolhand.views import ToolContext

AGAIN = Retry(attempts=6, first=0.0, jitter=0.0)
LIMIT = 30


class World:
    """The outside world: counts effects, and fails once at each place that the test names."""

    def __init__(self, *failures: str) -> None:
        self.made: list[Any] = []
        self.keys: list[str] = []
        self._failures = list(failures)

    def act(self, what: Any) -> Any:
        self.made.append(what)
        self.keys.append(tool_context().idempotency_key)
        return what

    def check(self, where: str, error: type[BaseException] = ConnectionError) -> None:
        if where in self._failures:
            self._failures.remove(where)
            raise error(where)


async def result(ticket: Ticket[Any]) -> Any:
    async with asyncio.timeout(LIMIT):
        return await ticket


@pytest.mark.parametrize("effect", ["once", "idempotent", "read"])
async def test_a_completed_call_is_not_repeated(url: str, effect: str) -> None:
    app, world = App(url), World("after", "later")

    @tool(effect=effect)
    async def pay(order: str, cents: int) -> dict[str, Any]:
        return {"paid": world.act((order, cents))}

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> list[Any]:
        first = await pay("o-1", cents=500)
        world.check("after")
        second = await pay("o-2", 7)
        world.check("later")
        return [first, second]

    async with app, app.worker():
        paid = await result(await agent.submit())
    assert paid == [{"paid": ["o-1", 500]}, {"paid": ["o-2", 7]}]
    assert world.made == [("o-1", 500), ("o-2", 7)]
    assert len(set(world.keys)) == 2


@pytest.mark.parametrize("effect", ["once", "idempotent", "read"])
async def test_a_tool_works_on_a_store_from_which_documents_were_deleted(
    url: str, effect: str
) -> None:
    app, world = App(url), World("after")

    @tool(effect=effect)
    async def pay(order: str) -> str:
        return str(world.act(order))

    @app.task(name="agent", retry=AGAIN)
    async def agent(order: str) -> str:
        paid = await pay(order)
        world.check("after")
        return paid

    async with app:
        store = store_proxy(app.core)
        for number in range(3):
            await store.put([Put("gone", b"%d" % number)])
        await store.put([Put("gone", None)])
        async with app.worker():
            assert await result(await agent.submit("o-1")) == "o-1"
            assert await result(await agent.submit("o-2")) == "o-2"
    assert world.made == ["o-1", "o-2"]


async def test_equal_calls_made_on_purpose_are_each_made_once(url: str) -> None:
    app, world = App(url), World("after")

    @tool
    async def ring() -> int:
        world.act("ring")
        return len(world.made)

    async def twice() -> list[int]:
        return [await ring(), await ring()]

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> list[int]:
        found = [await ring(), await ring(), *await step("inside", twice)]
        world.check("after")
        return found

    async with app, app.worker():
        assert await result(await agent.submit()) == [1, 2, 3, 4]
        assert len(set(world.keys)) == 4
        # Another job is another run.
        assert await result(await agent.submit()) == [5, 6, 7, 8]


async def test_a_call_id_identifies_a_call_inside_and_outside_of_a_step(url: str) -> None:
    app, world = App(url), World()

    @tool
    async def pay(order: str) -> str:
        return str(world.act(order))

    @app.task(name="agent")
    async def agent() -> list[str]:
        one = pay.with_options(call_id="the one")
        return [await one("o-1"), await step("again", one, "o-1")]

    async with app, app.worker():
        assert await result(await agent.submit()) == ["o-1", "o-1"]
    assert world.made == ["o-1"]


async def test_a_key_of_the_business_holds_over_jobs_and_refuses_other_arguments(url: str) -> None:
    app, world = App(url), World()

    @tool(scope="global", key_fields=["order"])
    async def pay(order: str, cents: int) -> int:
        world.act(order)
        return cents

    @app.task(name="agent", retry=None)
    async def agent(cents: int) -> int:
        return await pay("o-1", cents)

    async with app, app.worker():
        assert await result(await agent.submit(5)) == 5
        assert await result(await agent.submit(5)) == 5
        with pytest.raises((IdempotencyConflict, JobFailed), match="other arguments"):
            await result(await agent.submit(6))
    assert world.made == ["o-1"]


async def test_a_tool_that_raises_is_retried_unless_it_gives_up(url: str) -> None:
    app, world = App(url), World("first", "for good")

    @tool
    async def pay(order: str) -> str:
        world.act(order)
        world.check("first")
        if order == "bad":
            world.check("for good", GiveUp)
        return order

    seen: list[str] = []

    @app.task(name="agent", retry=AGAIN)
    async def agent(order: str) -> str:
        try:
            return await pay(order)
        except (GiveUp, ToolError) as error:
            seen.append(f"{type(error).__name__}: {error.message}")
            raise ConnectionError from None

    async with app, app.worker():
        assert await result(await agent.submit("good")) == "good"
        assert world.made == ["good", "good"]
        assert len(set(world.keys)) == 1
        with pytest.raises((ConnectionError, JobFailed)):
            await result(await agent.submit("bad"))
    assert world.made == ["good", "good", "bad"]
    assert seen[0] == "GiveUp: for good"
    assert "failed before: GiveUp: for good" in seen[1]


async def test_a_call_that_times_out_is_unknown_and_not_repeated(url: str) -> None:
    app, world = App(url), World()

    @tool(timeout=0.05)
    async def pay(order: str) -> None:
        world.act(order)
        await asyncio.sleep(100)

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> None:
        try:
            await pay("o-1")
        except ToolOutcomeUnknown as error:
            world.made.append(error.key.endswith(world.keys[0]))
            raise ConnectionError from error

    async with app, app.worker():
        with pytest.raises((ConnectionError, JobFailed)):
            await result(await agent.submit())
    assert world.made == ["o-1", *[True] * 6]


async def test_a_cancelled_call_runs_to_its_end_and_is_recorded(url: str) -> None:
    world, events = World(), Events()
    app = App(url, events=events)
    begun, asked, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    events.subscribe(lambda event: asked.set() if isinstance(event, JobMarked) else None)

    @tool(scope="global", key_fields=["order"])
    async def pay(order: str) -> str:
        begun.set()
        await goes_on.wait()
        return str(world.act(order))

    @app.task(name="agent")
    async def agent() -> str:
        return await pay("o-1")

    async with app, app.worker():
        ticket = await agent.submit()
        await begun.wait()
        cancelling = asyncio.create_task(ticket.cancel())
        await asked.wait()
        goes_on.set()
        assert await cancelling
        # Its result was never seen, but it is recorded.
        assert await result(await agent.submit()) == "o-1"
    assert world.made == ["o-1"]


async def test_outside_of_a_stored_job_a_tool_is_a_function() -> None:
    @tool
    async def plain(number: int) -> ToolContext:
        """Say who calls."""
        return tool_context()

    assert await plain(3) == ToolContext("")
    assert (plain.__name__, plain.__doc__) == ("plain", "Say who calls.")
    assert ToolContext("key").derived(2) == "key:2"
    with pytest.raises(UsageError, match="for the code of a tool"):
        tool_context()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effect": "twice"}, "effect='twice' is not allowed"),
        ({"scope": "town"}, "scope='town' is not allowed"),
        ({"timeout": 0}, "timeout=0 is not allowed"),
        ({"dedupe_ttl": -1}, "dedupe_ttl=-1 is not allowed"),
        ({"key_fields": ["a"]}, "key_fields go with scope"),
        ({"scope": "global", "key_fields": ["ordr"]}, "no parameter 'ordr'; did you mean 'order'"),
        ({"scope": "global", "key_fields": ["who"]}, "no parameter 'who'; there are a, order"),
        ({"scope": "global", "key_fields": "order"}, r"give a list of parameters: \['order'\]"),
        ({"scope": "global", "key_fields": [1]}, r"key_fields=\[1\] is not allowed"),
        ({"scope": "global", "key_fields": {"order"}}, "is not allowed; give a list"),
        ({"scope": "global", "key_fields": []}, "key_fields is empty: every call would have"),
        ({"verify": 5}, "verify=5 is not allowed; it must be a function"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    async def act(a: int, order: str = "") -> None: ...

    with pytest.raises(UsageError, match=said):
        tool(**options)(act)


@pytest.mark.parametrize("happened", [True, False])
async def test_after_settling_a_call_the_dead_job_continues_where_it_stopped(
    url: str, happened: bool
) -> None:
    app, world = App(url), World()

    @tool(timeout=0.05)
    async def pay(order: str) -> str:
        world.act(order)
        if len(world.made) == 2:
            await asyncio.sleep(100)
        return "paid here"

    @app.task(name="agent", retry=None)
    async def agent() -> list[str]:
        await step("before", world.made.append, "before")
        return [await pay("o-1"), await step("after", lambda: "after")]

    async with app, app.worker():
        job = await wait(await agent.submit())
        assert job.error is not None
        (key,) = re.findall(r"settle_tool\('([^']+)'", job.error.message)
        await app.settle_tool(key, happened=happened, result="paid there")
        with pytest.raises(Conflict, match="that stands"):
            await app.settle_tool(key, happened=True)
        (answer,) = await app.operator().retry([job.id], "anna")
        again = await app.get(answer.text.split()[-1])
        assert again is not None
        assert await result(again) == ["paid there" if happened else "paid here", "after"]
    assert world.made == ["before", "o-1"] if happened else ["before", "o-1", "o-1"]


async def test_settling_an_unknown_key_is_refused(url: str) -> None:
    async with App(url) as app:
        with pytest.raises(UsageError, match="there is no receipt of the key"):
            await app.settle_tool("nothing", happened=True)


async def test_jobs_that_make_the_same_call_at_once_make_it_once(url: str) -> None:
    app, world = App(url), World()
    both = asyncio.Event()

    @tool(scope="global", key_fields=["order"])
    async def pay(order: str) -> str:
        world.act(order)
        await both.wait()
        return "paid"

    begun: list[int] = []

    @app.task(name="agent")
    async def agent(number: int) -> str:
        begun.append(number)
        if len(begun) == 5:
            both.set()
        return await pay("o-1")

    async with app, app.worker():
        tickets = [await agent.submit(number) for number in range(5)]
        assert [await result(one) for one in tickets] == ["paid"] * 5
    assert world.made == ["o-1"]


async def test_a_result_that_cannot_be_stored_is_reported_and_the_call_not_repeated(
    url: str,
) -> None:
    app, world = App(url), World()

    @tool
    async def fetch() -> str:
        world.act("fetch")
        return "x" * 300_000

    seen: list[str] = []

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> None:
        try:
            await fetch()
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    async with app, app.worker():
        await wait(await agent.submit(), LIMIT)
    assert world.made == ["fetch"]
    assert (seen[0], set(seen[1:])) == ("TooLarge", {"ToolError"})


async def test_a_call_that_another_job_is_making_is_waited_for_and_then_refused(url: str) -> None:
    app, world = App(url), World()
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(order: str) -> str:
        world.act(order)
        begun.set()
        await goes_on.wait()
        return "paid"

    patient = tool(name="pay", scope="global", key_fields=["order"])(slow)
    hasty = tool(name="pay", scope="global", key_fields=["order"], timeout=0.3)(slow)

    @app.task(name="agent", retry=None)
    async def agent(waits: bool) -> str:
        return await (patient if waits else hasty)("o-1")

    async with app, app.worker():
        first = await agent.submit(True)
        await begun.wait()
        with pytest.raises((ToolBusy, JobFailed), match="is being made by another job"):
            await result(await agent.submit(False))
        goes_on.set()
        assert await result(first) == "paid"
    assert world.made == ["o-1"]


# Wrong options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"efect": "read"}, "tool: 'efect' is not an option; did you mean 'effect'?"),
        ({"call_id": "x"}, "tool: 'call_id' is not an option"),
        ({"version": "1"}, "version='1' is not allowed; it must be an int"),
        ({"version": 0}, "version=0 is not allowed"),
        ({"name": ""}, "tool name='' is not allowed"),
        ({"name": "a\0b"}, "tool name='a\\x00b' is not allowed"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_by_the_decorator(options: dict[str, Any], text: str) -> None:
    async def charge(order: str) -> str:
        return order

    wrong: Any = tool
    with pytest.raises(UsageError) as caught:
        wrong(**options)(charge)
    assert text in caught.value.message


@pytest.mark.parametrize(("key", "happened"), [(5, True), ("x", "yes"), ("x", None)], ids=str)
async def test_settle_tool_takes_a_key_and_a_bool(key: Any, happened: Any) -> None:
    app = App("memory://")
    async with app:
        with pytest.raises(UsageError, match="and whether it happened, True or False"):
            await app.settle_tool(key, happened=happened)
