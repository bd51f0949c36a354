"""What a job sees: context variables of its submitter, its own id, where it runs."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from poolhand import Pool, Retry, UsageError, current_job, stop_requested, wait
from poolhand.testing import SeededRuntime
from tests.unit.pool.support import Journal, occupied, seeded

COLOUR: ContextVar[str] = ContextVar("COLOUR", default="none")


async def colour() -> str:
    return COLOUR.get()


# Context variables


@seeded
async def test_an_async_job_sees_the_context_of_its_submitter(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        COLOUR.set("red")
        async with occupied(pool):
            ticket = await pool.submit(colour)
            COLOUR.set("blue")
        assert await ticket == "red"
        assert await pool.run(colour) == "blue"


async def test_a_thread_job_sees_the_context_of_its_submitter() -> None:
    async with Pool() as pool:
        COLOUR.set("red")
        assert await pool.run(COLOUR.get) == "red"
        assert await pool.run(lambda: COLOUR.get()) == "red"


@pytest.mark.parametrize("run_in", ["loop", "thread"])
@seeded
async def test_a_plain_job_sees_the_context_of_its_submitter(
    runtime: SeededRuntime, run_in: str
) -> None:
    async with Pool(runtime=runtime, run_in=run_in) as pool:
        COLOUR.set("red")
        assert await pool.run(lambda: COLOUR.get()) == "red"


@seeded
async def test_a_coroutine_that_a_plain_function_returns_sees_the_context_too(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        COLOUR.set("red")
        assert await pool.run(lambda: colour()) == "red"


@seeded
async def test_submitters_do_not_see_each_others_context(runtime: SeededRuntime) -> None:
    async def submitter(name: str) -> None:
        COLOUR.set(name)
        await asyncio.sleep(runtime.random.random())
        ticket = await pool.submit(colour)
        await asyncio.sleep(runtime.random.random())
        assert await ticket == name

    async with Pool(runtime=runtime, max_concurrent=3) as pool:
        await asyncio.gather(*(submitter(str(number)) for number in range(20)))


@pytest.mark.parametrize("run_in", [None, "loop", "thread"])
@seeded
async def test_context_set_by_a_job_stays_in_the_job(
    runtime: SeededRuntime, run_in: str | None
) -> None:
    async def paint() -> str:
        COLOUR.set("green")
        return COLOUR.get()

    def paint_plainly() -> str:
        COLOUR.set("green")
        return COLOUR.get()

    job: Any = paint if run_in is None else paint_plainly
    async with Pool(runtime=runtime, run_in=run_in) as pool:
        COLOUR.set("red")
        assert await pool.run(job) == "green"
        assert COLOUR.get() == "red"
        assert await pool.with_options(run_in=None).run(colour) == "red"


@seeded
async def test_a_retry_does_not_see_context_set_by_the_previous_attempt(
    runtime: SeededRuntime,
) -> None:
    seen: list[str] = []

    async def job() -> None:
        seen.append(COLOUR.get())
        COLOUR.set("changed")
        if len(seen) < 3:
            raise LookupError

    async with Pool(runtime=runtime, retry=Retry(attempts=3, first=1)) as pool:
        COLOUR.set("red")
        await pool.run(job)
    assert seen == ["red"] * 3


# A job and its id


def own_id() -> str:
    job = current_job()
    assert job is not None
    return job.id


@seeded
async def test_current_job_returns_the_id_inside_a_job_and_none_outside(
    runtime: SeededRuntime,
) -> None:
    async def job() -> str:
        await asyncio.sleep(1)
        return own_id()

    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        tickets = [await pool.submit(job) for _ in range(5)]
        plain = await pool.submit(own_id)
        assert [await ticket for ticket in tickets] == [ticket.id for ticket in tickets]
        assert await plain == plain.id
        assert current_job() is None
        assert stop_requested() is False


async def test_current_job_returns_the_id_in_a_thread_job() -> None:
    async with Pool() as pool:
        ticket = await pool.submit(own_id)
        assert await ticket == ticket.id


@seeded
async def test_submitted_by_names_the_user_or_the_job_that_submitted(
    runtime: SeededRuntime,
) -> None:
    async def outer() -> str:
        ticket = await inner_pool.submit(Journal().note, "x")
        return ticket.snapshot().submitted_by

    async with (
        Pool("outer", runtime=runtime) as pool,
        Pool("inner", runtime=runtime) as inner_pool,
    ):
        direct = await pool.submit(Journal().note, "x")
        assert direct.snapshot().submitted_by == "user"
        assert await pool.run(outer) == "outer-worker-000"
        assert await pool.with_options(session="talk-7").run(outer) == "talk-7"
        assert (await pool.submit(Journal().note, "x")).snapshot().submitted_by == "user"


# Where it runs


async def test_a_plain_function_runs_in_a_thread_by_default() -> None:
    async with Pool("threads", max_concurrent=2) as pool:
        name = await pool.run(lambda: threading.current_thread().name)
        assert name != threading.current_thread().name
        ident = await pool.run(threading.get_ident)
        assert ident != threading.get_ident()


async def test_plain_functions_run_concurrently_and_do_not_block_the_loop() -> None:
    meet = threading.Barrier(3)
    async with Pool(max_concurrent=3) as pool:
        tickets = [await pool.submit(meet.wait, 30) for _ in range(2)]
        assert await pool.run(Journal().note, "the loop is free") == "the loop is free"
        tickets.append(await pool.submit(meet.wait, 30))
        assert sorted(await asyncio.gather(*tickets)) == [0, 1, 2]


async def test_threads_keep_to_the_slots() -> None:
    release = threading.Event()
    async with Pool(max_concurrent=2) as pool:
        tickets = [await pool.submit(release.wait, 30) for _ in range(5)]
        assert [ticket.status.value for ticket in tickets] == ["running"] * 2 + ["queued"] * 3
        release.set()
        assert [job.result for job in await wait(tickets)] == [True] * 5


async def test_an_async_function_runs_on_the_loop() -> None:
    async def where() -> tuple[int, bool]:
        return threading.get_ident(), asyncio.get_running_loop() is loop

    loop = asyncio.get_running_loop()
    async with Pool() as pool:
        assert await pool.run(where) == (threading.get_ident(), True)
        on_loop = pool.with_options(run_in="loop")
        assert await on_loop.run(where) == (threading.get_ident(), True)


async def test_run_in_loop_runs_a_plain_function_on_the_loop() -> None:
    async with Pool(run_in="loop") as pool:
        assert await pool.run(threading.get_ident) == threading.get_ident()
        view = pool.with_options(run_in="thread")
        assert await view.run(threading.get_ident) != threading.get_ident()


async def test_a_lambda_that_returns_a_coroutine_is_awaited_on_the_loop() -> None:
    async def where(name: str) -> tuple[str, int]:
        await asyncio.sleep(0)
        return name, threading.get_ident()

    async with Pool() as pool:
        ticket = await pool.submit(lambda: where("x"))
        assert await ticket == ("x", threading.get_ident())
        assert await pool.with_options(run_in="loop").run(lambda: where("y")) == (
            "y",
            threading.get_ident(),
        )


class Agent:
    """Callables of every kind."""

    async def __call__(self, number: int) -> int:
        asyncio.get_running_loop()
        return number

    async def method(self, number: int) -> int:
        asyncio.get_running_loop()
        return number

    @classmethod
    async def of_class(cls, number: int) -> int:
        asyncio.get_running_loop()
        return number

    @staticmethod
    async def static(number: int) -> int:
        asyncio.get_running_loop()
        return number


@pytest.mark.parametrize(
    "fn",
    [
        Agent(),
        Agent().method,
        Agent.of_class,
        Agent.static,
        partial(Agent().method),
        partial(partial(Agent())),
    ],
    ids=["object", "method", "classmethod", "staticmethod", "partial", "partial of partial"],
)
@seeded
async def test_async_callables_of_every_kind_run_on_the_loop(
    runtime: SeededRuntime, fn: Any
) -> None:
    async with Pool(runtime=runtime) as pool:
        assert await pool.run(fn, 7) == 7
        assert await pool.run(partial(fn, 8)) == 8


@pytest.mark.parametrize("fn", [int, len, "".join, partial(int, base=2), str.upper])
@seeded
async def test_builtins_classes_and_partials_are_plain_functions(
    runtime: SeededRuntime, fn: Any
) -> None:
    async with Pool(runtime=runtime) as pool:
        assert await pool.run(fn, "10") == fn("10")


# What cannot be submitted


@seeded
async def test_a_coroutine_instead_of_a_function_is_refused_with_the_right_call(
    runtime: SeededRuntime,
) -> None:
    async def review(number: int) -> int:
        return number

    wrong: Any = review(7)
    async with Pool(runtime=runtime) as pool:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UsageError) as caught:
                await pool.submit(wrong)
            del wrong
            gc.collect()
        text = str(caught.value)
        assert "not a coroutine" in text
        assert "review, …)" in text
        assert "review(…))" in text
        assert pool.snapshot().total == 0


async def numbers() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (None, "None cannot be called"),
        (7, "7 cannot be called"),
        ("review", "'review' cannot be called"),
        (numbers, "async generator"),
        (partial(numbers), "async generator"),
    ],
)
@seeded
async def test_an_object_that_cannot_be_called_for_one_value_is_refused(
    runtime: SeededRuntime, wrong: Any, text: str
) -> None:
    async with Pool(runtime=runtime) as pool:
        for submit in (pool.submit, pool.run):
            with pytest.raises(UsageError) as caught:
                await submit(wrong)
            assert text in str(caught.value)
        with pytest.raises(UsageError, match=r"generator|called"):
            pool.submit_nowait(wrong)
        assert pool.snapshot().total == 0


@seeded
async def test_an_async_function_cannot_be_made_to_run_in_a_thread(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        with pytest.raises(UsageError, match="colour is async"):
            await pool.with_options(run_in="thread").submit(colour)
        assert pool.snapshot().total == 0


@seeded
async def test_wrong_arguments_fail_the_job_not_the_submit(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        note: Any = Journal().note
        ticket = await pool.submit(note)
        with pytest.raises(TypeError, match="name"):
            await ticket
