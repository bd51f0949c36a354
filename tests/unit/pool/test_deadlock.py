"""A job that awaits a job of its own pool which can never start gets Deadlock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from poolhand import Pool, Ticket, bounded, wait
from poolhand.errors import Deadlock
from poolhand.observe.events import DeadlockFound
from poolhand.testing import SeededRuntime, run_seeded
from poolhand.views import Status
from tests.unit.pool.support import Heard, seeded, until


def run_briefly(main: Callable[[SeededRuntime], Awaitable[None]], max_steps: int = 5_000) -> None:
    """Run under several seeds; a hang is found after few steps."""
    for seed in range(5):
        run_seeded(main, seed, max_steps=max_steps)


async def leaf() -> str:
    return "leaf"


# Ways of waiting


@seeded
async def test_a_job_that_waits_for_another_in_the_only_slot_gets_deadlock(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    inner: list[Ticket[str]] = []

    async def outer() -> str:
        inner.append(await pool.submit(leaf))
        return await inner[0]

    async with Pool(runtime=runtime, events=heard.events) as pool:
        began = runtime.monotonic()
        ticket = await pool.submit(outer)
        with pytest.raises(Deadlock, match="can never start") as raised:
            await ticket
        assert runtime.monotonic() == began
        assert raised.value.job_id == ticket.id
        assert ticket.status is Status.FAILED
        assert await inner[0] == "leaf"
    (event,) = heard.of(DeadlockFound)
    assert (event.job_id, event.awaited_id) == (ticket.id, inner[0].id)


@seeded
async def test_a_job_may_catch_the_deadlock_and_go_on(runtime: SeededRuntime) -> None:
    async def outer() -> str:
        try:
            return await pool.run(leaf)
        except Deadlock:
            return await leaf()

    async with Pool(runtime=runtime) as pool:
        assert await pool.run(outer) == "leaf"


@seeded
async def test_waiting_with_gather_or_a_task_group_is_detected(runtime: SeededRuntime) -> None:
    async def by_gather() -> None:
        await asyncio.gather(*(pool.run(leaf) for _ in range(3)))

    async def by_group() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(pool.run(leaf))

    async with Pool(runtime=runtime) as pool:
        with pytest.raises(Deadlock):
            await pool.run(by_gather)
        with pytest.raises(ExceptionGroup) as raised:
            await pool.run(by_group)
        assert raised.group_contains(Deadlock)
        await until(lambda: pool.size() == 0)


def test_waiting_by_wait_is_waiting_too() -> None:
    async def main(runtime: SeededRuntime) -> None:
        async def outer() -> None:
            await wait(await pool.submit(leaf))

        async with Pool(runtime=runtime) as pool:
            ticket = await pool.submit(outer)
            with pytest.raises(Deadlock):
                await ticket.result(timeout=100)

    run_briefly(main)


@seeded
async def test_waiting_for_a_scheduled_job_is_waiting_too(runtime: SeededRuntime) -> None:
    async def outer() -> None:
        await pool.with_options(delay=5).run(leaf)

    async with Pool(runtime=runtime) as pool:
        with pytest.raises(Deadlock):
            await pool.run(outer)


@seeded
async def test_a_job_that_waits_for_itself_gets_deadlock(runtime: SeededRuntime) -> None:
    tickets: list[Ticket[None]] = []

    async def narcissus() -> None:
        await tickets[0]

    async with Pool(max_concurrent=5, runtime=runtime) as pool:
        tickets.append(await pool.submit(narcissus))
        with pytest.raises(Deadlock):
            await tickets[0]


@seeded
async def test_one_of_two_jobs_that_wait_for_each_other_gets_deadlock(
    runtime: SeededRuntime,
) -> None:
    tickets: list[Ticket[str]] = []

    async def partner(other: int) -> str:
        await asyncio.sleep(1)
        try:
            return await tickets[other]
        except Deadlock:
            return "gave way"

    async with Pool(max_concurrent=5, runtime=runtime) as pool:
        tickets.extend([await pool.submit(partner, 1), await pool.submit(partner, 0)])
        assert [await ticket for ticket in tickets] == ["gave way", "gave way"]


def test_a_job_whose_submit_can_never_be_accepted_gets_deadlock() -> None:
    async def main(runtime: SeededRuntime) -> None:
        async def outer() -> None:
            for _ in range(2):
                await pool.submit(leaf)

        async with Pool(backpressure=bounded(1), runtime=runtime) as pool:
            ticket = await pool.submit(outer)
            with pytest.raises(Deadlock):
                await ticket.result(timeout=100)
            assert pool.snapshot().blocked_submitters == 0

    run_briefly(main)


# What the awaited job waits for


@seeded
async def test_jobs_that_hold_all_slots_while_waiting_get_deadlock(runtime: SeededRuntime) -> None:
    async def outer() -> str:
        await asyncio.sleep(1)
        try:
            return await pool.run(leaf)
        except Deadlock:
            return "gave way"

    async with Pool(max_concurrent=3, runtime=runtime) as pool:
        results = await asyncio.gather(*(pool.run(outer) for _ in range(3)))
        # One Deadlock is enough: the freed slot serves the others.
        assert sorted(results) == ["gave way", "leaf", "leaf"]


@seeded
async def test_a_turn_that_waits_for_the_next_turn_of_its_session(runtime: SeededRuntime) -> None:
    async def turn() -> None:
        await pool.with_options(session="chat").run(leaf)

    async with Pool(max_concurrent=5, runtime=runtime) as pool:
        with pytest.raises(Deadlock):
            await pool.with_options(session="chat").run(turn)


@seeded
async def test_a_turn_that_waits_for_its_session_through_another_job_gets_deadlock(
    runtime: SeededRuntime,
) -> None:
    async def middle() -> None:
        await pool.with_options(session="chat").run(leaf)

    async def turn() -> None:
        await pool.run(middle)

    async with Pool(max_concurrent=5, runtime=runtime) as pool:
        with pytest.raises(Deadlock):
            await pool.with_options(session="chat").run(turn)


@seeded
async def test_a_session_of_another_tenant_is_another_session(runtime: SeededRuntime) -> None:
    async def turn() -> str:
        return await pool.with_options(session="chat", tenant="b").run(leaf)

    async with Pool(max_concurrent=5, runtime=runtime) as pool:
        assert await pool.with_options(session="chat", tenant="a").run(turn) == "leaf"


@seeded
async def test_jobs_that_hold_all_permits_of_a_key_while_waiting_get_deadlock(
    runtime: SeededRuntime,
) -> None:
    async def outer() -> str:
        await asyncio.sleep(1)
        try:
            return await pool.with_options(key="acme").run(leaf)
        except Deadlock:
            return "gave way"

    async with Pool(max_concurrent=9, max_per_key=2, runtime=runtime) as pool:
        view = pool.with_options(key="acme")
        assert sorted(await asyncio.gather(view.run(outer), view.run(outer))) == [
            "gave way",
            "leaf",
        ]


@seeded
async def test_a_resize_below_a_waiting_job_raises_deadlock(runtime: SeededRuntime) -> None:
    async def outer() -> str:
        return await pool.with_options(delay=10).run(leaf)

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        ticket = await pool.submit(outer)
        await asyncio.sleep(1)
        assert ticket.status is Status.RUNNING
        await pool.resize(1)
        with pytest.raises(Deadlock):
            await ticket
        assert runtime.monotonic() < 1002


@seeded
async def test_a_stuck_slot_is_not_a_deadlock(runtime: SeededRuntime) -> None:
    gate = asyncio.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    async def outer() -> str:
        return await pool.run(leaf)

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        await pool.with_options(timeout=1).submit(stubborn)
        ticket = await pool.submit(outer)
        assert (await wait(ticket, timeout=100)).status is Status.RUNNING
        gate.set()
        assert await ticket == await leaf()


@seeded
async def test_the_last_job_that_could_make_room_starts_to_wait(runtime: SeededRuntime) -> None:
    async def early() -> str:
        return await pool.run(leaf)

    async def late() -> str:
        await asyncio.sleep(5)
        return await pool.run(leaf)

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        first, second = await pool.submit(early), await pool.submit(late)
        jobs = await wait([first, second], timeout=100)
        assert sorted(job.status.value for job in jobs) == ["completed", "failed"]
        assert runtime.monotonic() < 1006


# Waits that are not a deadlock


@seeded
async def test_a_result_with_a_timeout_is_not_a_deadlock(runtime: SeededRuntime) -> None:
    async def outer() -> str:
        ticket = await pool.submit(leaf)
        with pytest.raises(TimeoutError):
            await ticket.result(timeout=2)
        return "went on"

    async with Pool(runtime=runtime) as pool:
        assert await pool.run(outer) == "went on"


@seeded
async def test_a_free_slot_is_no_deadlock(runtime: SeededRuntime) -> None:
    async def outer(depth: int) -> int:
        return 0 if not depth else 1 + await pool.run(outer, depth - 1)

    async with Pool(max_concurrent=6, runtime=runtime) as pool:
        assert await pool.run(outer, 5) == 5
        with pytest.raises(Deadlock):
            await pool.run(outer, 6)


@seeded
async def test_a_slot_that_will_become_free_is_not_a_deadlock(runtime: SeededRuntime) -> None:
    async def outer() -> str:
        return await pool.run(leaf)

    async with Pool(max_concurrent=2, runtime=runtime) as pool:
        await pool.submit(asyncio.sleep, 60)
        assert await pool.run(outer) == "leaf"


@seeded
async def test_a_caller_outside_of_a_job_may_wait_forever(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        tickets = [await pool.submit(asyncio.sleep, 1, result=number) for number in range(5)]
        assert await asyncio.gather(*tickets) == list(range(5))


@seeded
async def test_a_job_of_another_pool_may_wait(runtime: SeededRuntime) -> None:
    async with Pool("outer", runtime=runtime) as outer, Pool("inner", runtime=runtime) as inner:

        async def job() -> str:
            return await inner.run(leaf)

        assert await outer.run(job) == "leaf"


@seeded
async def test_a_paused_pool_is_not_a_deadlock_until_it_is_resumed(runtime: SeededRuntime) -> None:
    async def outer() -> str:
        await asyncio.sleep(1)
        return await pool.run(leaf)

    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(outer)
        pool.pause()
        await asyncio.sleep(10)
        assert ticket.status is Status.RUNNING
        pool.resume()
        with pytest.raises(Deadlock):
            await ticket


@seeded
async def test_a_task_left_by_a_finished_job_may_wait(runtime: SeededRuntime) -> None:
    tasks: list[asyncio.Task[str]] = []

    async def follow_up() -> str:
        await asyncio.sleep(1)
        return await pool.run(leaf)

    async def job() -> None:
        tasks.append(asyncio.create_task(follow_up()))

    async with Pool(runtime=runtime) as pool:
        await pool.run(job)
        assert await tasks[0] == "leaf"


# Many at once


def nested(depth: int) -> None:
    async def main(runtime: SeededRuntime) -> None:
        async def outer(left: int) -> int:
            return 0 if not left else 1 + await pool.run(outer, left - 1)

        async with Pool(max_concurrent=depth + 2, runtime=runtime) as pool:
            assert await pool.run(outer, depth) == depth

    run_seeded(main, 0)


def test_a_long_line_of_jobs_that_wait_is_no_deadlock() -> None:
    nested(400)


def test_deadlocks_of_many_waiting_jobs_are_all_resolved() -> None:
    async def main(runtime: SeededRuntime) -> None:
        async def outer() -> str:
            await asyncio.sleep(1)
            try:
                return await pool.run(leaf)
            except Deadlock:
                return "gave way"

        async with Pool(max_concurrent=300, runtime=runtime) as pool:
            tickets: list[Ticket[Any]] = [await pool.submit(outer) for _ in range(300)]
            results = [await ticket for ticket in tickets]
            assert results.count("leaf") == 299

    run_seeded(main, 0)
