"""task.run and task.map: submit and wait, for one call and for many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from poolhand import Retry, RetryLater, Session, UsageError, bounded, list_pools
from poolhand.app import App
from poolhand.contract import Filter
from poolhand.durable.client.submit import UNCAPPED_WINDOW, map_window
from poolhand.errors import JobRejected
from poolhand.observe.events import JobSubmitted
from poolhand.rules.queue.backpressure import fail_fast, ring_buffer, unbounded
from poolhand.views import Job, Status
from tests.unit.durable.support import Gate, Heard, until


def doubler(app: App, **options: Any) -> Any:
    @app.task(name="double", retry=None, **options)
    async def double(number: int) -> int:
        if number < 0:
            raise ValueError(f"{number} is negative")
        return number * 2

    return double


async def test_run_returns_the_value_or_raises_the_error_of_the_job(url: str) -> None:
    app = App(url)
    double = doubler(app)
    async with app, app.worker():
        assert await double.run(4) == 8
        assert await double.with_options(priority=2, key="acme").run(5) == 10
        with pytest.raises(ValueError, match="-1 is negative"):
            await double.run(-1)
        with pytest.raises(UsageError, match="double"):
            await double.run("four", 5)


async def test_a_turn_of_a_session_is_run(url: str) -> None:
    app = App(url)

    @app.agent(name="count")
    async def count(session: Session, step: int) -> int:
        session.state["sum"] = session.state.get("sum", 0) + step
        found: int = session.state["sum"]
        return found

    async with app, app.worker():
        assert await count.session("s").run(1) == 1
        assert await count.session("s").run(2) == 3
        assert await count.session("t").map([1, 2, 3]) == [1, 3, 6], "one turn at a time, in order"


async def test_map_returns_values_in_the_order_of_the_items(url: str) -> None:
    app = App(url)
    double = doubler(app)

    async def numbers() -> AsyncIterator[int]:
        for number in range(5):
            yield number

    async with app, app.worker(3):
        assert await double.map(range(20)) == [2 * number for number in range(20)]
        assert await double.map(numbers()) == [0, 2, 4, 6, 8]
        assert await double.with_options(key="k").map([]) == []


async def test_with_return_exceptions_errors_are_among_the_values(url: str) -> None:
    app = App(url)
    double = doubler(app)
    async with app, app.worker():
        found = await double.map([1, -2, 3], return_exceptions=True)
    assert [found[0], found[2]] == [2, 6]
    assert isinstance(found[1], ValueError)


async def test_the_first_failure_ends_a_map_and_cancels_its_jobs(url: str) -> None:
    app = App(url)
    app.pool("capped", max_concurrent=2)
    gate = Gate()
    taken: list[int] = []

    @app.task(name="step", pool="capped", retry=None)
    async def step(number: int) -> None:
        if number == 0:
            await until(lambda: gate.entered == 1)
            raise ValueError("the first one")
        await gate.pass_through()

    def items() -> Any:
        for number in range(1_000):
            taken.append(number)
            yield number

    async with app, app.worker(2):
        with pytest.raises(ValueError, match="the first one"):
            await step.map(items())
        counts = await count(app, "capped")
    assert counts.pop(Status.FAILED) == 1
    assert set(counts) == {Status.CANCELLED}, "the others were cancelled, and are over"
    assert len(taken) < 10


async def test_a_map_that_is_cancelled_cancels_its_jobs(url: str) -> None:
    app = App(url)
    gate = Gate()

    @app.task(name="hold")
    async def hold(number: int) -> None:
        await gate.pass_through()

    async with app, app.worker(5):
        mapping = asyncio.create_task(hold.map([1, 2, 3]))
        await until(lambda: gate.entered == 3)
        mapping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await mapping
        assert await count(app, "default") == {Status.CANCELLED: 3}


async def test_a_window_of_jobs_is_in_the_pool_at_a_time(url: str) -> None:
    app = App(url)
    app.pool("capped", max_concurrent=2, backpressure=bounded(1, on_full="drop_oldest"))
    double = doubler(app, pool="capped")
    async with app, app.worker(2):
        # With more items in the pool than its queue holds, older ones would be dropped.
        assert await double.map(range(30)) == [2 * number for number in range(30)]
        assert await count(app, "capped") == {Status.COMPLETED: 30}


def test_a_pool_without_a_cap_has_a_wide_window() -> None:
    app = App("memory://")
    app.pool("open")
    app.pool("capped", max_concurrent=1)
    found = [app.core.declared.slots(pool) for pool in ("open", "undeclared", "capped")]
    assert found == [None, None, 1]


@pytest.mark.parametrize(
    ("slots", "policy", "window"),
    [
        (None, unbounded(), UNCAPPED_WINDOW),
        (None, bounded(5), UNCAPPED_WINDOW),
        (None, ring_buffer(5), 5),
        (4, unbounded(), 8),
        (4, bounded(1), 5),
        (4, bounded(2, on_full="drop_oldest"), 2),
        (4, fail_fast(), 4),
    ],
)
def test_the_window_is_as_large_as_slots_and_queue(slots: Any, policy: Any, window: int) -> None:
    assert map_window(slots, policy) == window


async def test_an_item_is_submitted_once_though_its_job_is_retried(url: str) -> None:
    app = App(url)
    runs: list[int] = []

    @app.task(name="busy", retry=Retry(attempts=2, first=0, jitter=0))
    async def busy(number: int) -> None:
        runs.append(number)
        raise RetryLater(0)

    async with app, app.worker():
        with pytest.raises(RetryLater):
            await busy.map([7])
        assert await count(app, "default") == {Status.FAILED: 1}
    assert runs == [7, 7]


async def test_a_map_inside_a_job_submits_for_that_job(url: str) -> None:
    app = App(url)
    double = doubler(app)

    @app.task(name="outer")
    async def outer() -> list[int]:
        return list(await double.map([1, 2]))

    async with app, app.worker(4):
        assert await outer.run() == [2, 4]
        inner = await listed(app, "double")
    assert [job.submitted_by.partition("-")[0] for job in inner] == ["worker"] * 2


async def test_a_map_emits_only_job_events_and_registers_no_pool() -> None:
    heard = Heard()
    app = App("memory://", events=heard.events)
    double = doubler(app)
    async with app, app.worker():
        assert await double.map(range(3)) == [0, 2, 4]
    assert len(heard.of(JobSubmitted)) == 3
    assert list_pools() == []


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda double: double.map(5), "double.map: items=5 is not allowed"),
        (lambda double: double.map([1], return_exceptions=1), "return_exceptions=1 is not allowed"),
        (
            lambda double: double.with_options(idempotency_key="k").map([1]),
            "a key stands for one job",
        ),
        (
            lambda double: double.with_options(session="s", on_busy="reject").map([1]),
            "map: on_busy='reject' goes with submit",
        ),
    ],
    ids=["items", "flag", "key", "busy"],
)
async def test_a_map_that_cannot_work_is_refused(call: Any, said: str) -> None:
    async with App("memory://") as app:
        with pytest.raises(UsageError, match=said):
            await call(doubler(app))


async def test_arguments_that_do_not_fit_end_a_map(url: str) -> None:
    app = App(url)
    double = doubler(app)
    async with app, app.worker():
        with pytest.raises(UsageError, match="double"):
            await double.map([1, "two"])
        assert isinstance((await double.map(["two"], return_exceptions=True))[0], UsageError)


async def test_run_raises_the_rejection_of_its_job(url: str) -> None:
    app = App(url)
    app.pool("capped", max_concurrent=1, backpressure=bounded(1, on_full="drop_newest"))
    double = doubler(app, pool="capped")
    async with app:
        await double.submit(1)
        await double.submit(2)
        with pytest.raises(JobRejected):
            await double.run(3)


async def count(app: App, pool: str) -> dict[Status, int]:
    connection = await app.core.connection()
    return dict(await connection.thread.ask(lambda: connection.store.count(Filter(pool=pool))))


async def listed(app: App, name: str) -> list[Job]:
    connection = await app.core.connection()
    page = await connection.thread.ask(lambda: connection.store.find(Filter(name=name)))
    return [one.job for one in page.jobs]
