"""Steps: done once, however often their job is run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from poolhand import Pool, Retry, Snooze, UsageError, step
from poolhand.app import App
from poolhand.errors import JobFailed, TooLarge
from poolhand.pool.ticket import Ticket

AGAIN = Retry(attempts=5, first=0.0, jitter=0.0)
LIMIT = 30


@dataclass
class Page:
    url: str
    size: int


class Calls:
    """Counts real calls, and fails once at each place that the test names."""

    def __init__(self, *failures: str) -> None:
        self.made: list[str] = []
        self._failures = set(failures)

    def act(self, name: str) -> str:
        self.made.append(name)
        return name.upper()

    def check(self, where: str) -> None:
        if where in self._failures:
            self._failures.remove(where)
            raise ConnectionError(where)


async def result(ticket: Ticket[Any]) -> Any:
    async with asyncio.timeout(LIMIT):
        return await ticket


async def test_a_finished_step_is_not_repeated(url: str) -> None:
    app, calls = App(url), Calls("one", "two", "three")

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> list[str]:
        found = []
        for name in ("one", "two", "three"):
            found.append(await step(name, calls.act, name))
            calls.check(name)
        return found

    async with app, app.worker():
        assert await result(await agent.submit()) == ["ONE", "TWO", "THREE"]
    assert calls.made == ["one", "two", "three"]


async def test_a_step_that_raises_is_not_recorded(url: str) -> None:
    app, calls = App(url), Calls("inside")

    def fetch() -> int:
        calls.act("fetch")
        calls.check("inside")
        return 7

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> int:
        return await step("fetch", fetch)

    async with app, app.worker():
        assert await result(await agent.submit()) == 7
    assert calls.made == ["fetch", "fetch"]


async def test_a_snoozed_job_continues_where_it_stopped(url: str) -> None:
    app, calls = App(url), Calls()
    snoozed: list[int] = []

    @app.task(name="agent")
    async def agent() -> str:
        found = await step("first", calls.act, "first")
        if not snoozed:
            snoozed.append(1)
            raise Snooze(0.1)
        return found + await step("second", calls.act, "second")

    async with app, app.worker():
        assert await result(await agent.submit()) == "FIRSTSECOND"
    assert calls.made == ["first", "second"]


async def test_results_have_their_annotated_type_on_the_first_run_too(url: str) -> None:
    app, calls, seen = App(url), Calls("after"), list[Any]()

    async def fetch(where: str) -> Page:
        return Page(where, 3)

    async def untyped(where: str):  # type: ignore[no-untyped-def]
        return Page(where, 4)

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> None:
        seen.append((await step("typed", fetch, "a"), await step("untyped", untyped, where="b")))
        calls.check("after")

    async with app, app.worker():
        await result(await agent.submit())
    assert seen == [(Page("a", 3), {"url": "b", "size": 4})] * 2


async def test_equal_steps_are_all_done(url: str) -> None:
    app, calls = App(url), Calls("after")

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> list[str]:
        found = [await step("same", calls.act, "x") for _ in range(3)]
        calls.check("after")
        return found

    async with app, app.worker():
        assert await result(await agent.submit()) == ["X"] * 3
    assert calls.made == ["x"] * 3


async def test_steps_may_be_concurrent_and_nested(url: str) -> None:
    app, calls = App(url), Calls("c1", "c2", "together", "after")

    async def outer(name: str) -> str:
        first = await step("inner", calls.act, f"{name}1")
        calls.check(f"{name}1")
        second = await step("inner", calls.act, f"{name}2")
        calls.check(f"{name}2")
        return first + second

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> list[str]:
        found = await asyncio.gather(*[step("outer", outer, name) for name in "ab"])
        calls.check("together")
        last = await step("outer", outer, "c")
        calls.check("after")
        return [*found, last]

    async with app, app.worker():
        assert await result(await agent.submit()) == ["A1A2", "B1B2", "C1C2"]
    assert sorted(calls.made) == ["a1", "a2", "b1", "b2", "c1", "c2"]


async def test_changed_code_starts_a_branch_and_logs_it(url: str) -> None:
    app, calls = App(url), Calls("first", "second")
    plans = [["a", "b", "c"], ["a", "x", "c"], ["a", "x", "c"]]

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> list[str]:
        found = [await step(name, calls.act, name) for name in plans.pop(0)]
        calls.check("first")
        calls.check("second")
        return found

    async with app, app.worker():
        ticket = await agent.submit()
        assert await result(ticket) == ["A", "X", "C"]
        told = [event async for event in ticket.events() if event.kind == "log"]
    assert calls.made == ["a", "b", "c", "x", "c"]
    assert [(one.attempt, one.data["text"]) for one in told] == [
        (
            2,
            "step 2 was 'b', is 'x': from here on nothing is taken from earlier attempts",
        )
    ]


async def test_other_data_for_a_step_begins_a_branch_too(url: str) -> None:
    app, calls = App(url), Calls("after")
    given = ["old", "new"]

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> str:
        found = await step("act", calls.act, given.pop(0))
        calls.check("after")
        return found

    async with app, app.worker():
        assert await result(await agent.submit()) == "NEW"
    assert calls.made == ["old", "new"]


async def test_a_step_that_cannot_be_stored_fails(url: str) -> None:
    app = App(url)

    @app.task(name="agent", retry=None)
    async def agent(which: str) -> None:
        wrong: dict[str, Callable[[], Any]] = {
            "argument": lambda: step("act", repr, object()),
            "result": lambda: step("act", object),
            "size": lambda: step("act", lambda: "x" * 300_000),
            "name": lambda: step("", repr, 1),
        }
        kind = TooLarge if which == "size" else UsageError
        with pytest.raises(kind):
            await wrong[which]()

    async with app, app.worker():
        for which in ("argument", "result", "size", "name"):
            await result(await agent.submit(which))


async def test_outside_of_a_stored_job_a_step_is_a_call() -> None:
    calls = Calls()
    assert await step("plain", calls.act, "a") == "A"
    async with Pool("memory") as pool:
        assert await (await pool.submit(step, "plain", calls.act, "b")) == "B"
    assert calls.made == ["a", "b"]


async def test_a_step_that_fails_for_good_fails_its_job(url: str) -> None:
    app = App(url)

    def fail() -> None:
        raise ValueError("no way")

    @app.task(name="agent", retry=None)
    async def agent() -> None:
        await step("fail", fail)

    async with app, app.worker():
        with pytest.raises((ValueError, JobFailed), match="no way"):
            await result(await agent.submit())


# Wrong shapes


def fetch(url: str = "a") -> str:
    return url


async def fetch_later(url: str = "a") -> str:
    return url


WRONG_SHAPES = [
    ((fetch, 1), 'step takes a name first: step("fetch", fetch, …)'),
    ((), "step: missing a required argument: 'name'; write step(name, fn, *args, **kwargs)"),
    (("x",), "step: missing a required argument: 'fn'; write step(name, fn, *args, **kwargs)"),
    (("x", 5), 'the function comes second, then its arguments: step("x", fetch, url)'),
    (("x", None), "step('x', None) is not allowed; the function comes second"),
    (("", fetch), 'a step has a name: step("fetch", fetch, url), a non-blank text'),
    ((5, fetch), "step(5, …) is not allowed; a step has a name"),
    (("a\0b", fetch), "a step has a name"),
]


@pytest.mark.parametrize(("args", "text"), WRONG_SHAPES)
async def test_a_wrong_step_call_is_refused_with_the_right_one(
    args: tuple[Any, ...], text: str
) -> None:
    wrong: Any = step
    with pytest.raises(UsageError) as caught:
        await wrong(*args)
    assert text in caught.value.message


async def test_a_coroutine_in_place_of_a_function_is_closed_and_refused() -> None:
    coroutine: Any = fetch_later()
    with pytest.raises(
        UsageError, match=r'step\("x", fetch_later, …\), not step\("x", fetch_later'
    ):
        await step("x", coroutine)


async def test_a_wrong_step_call_in_a_job_raises_the_same_error() -> None:
    app = App("memory://")
    wrong: Any = step

    @app.task(name="wrong", retry=None)
    async def wrong_step() -> None:
        await wrong(fetch, "a")

    async with app, app.worker():
        with pytest.raises(UsageError, match="step takes a name first"):
            await wrong_step.with_options(retry=Retry(attempts=1)).run()
