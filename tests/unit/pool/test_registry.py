"""The live pools of this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from poolhand import Pool, Ticket, UsageError, get_pool, list_pools, wait
from poolhand.errors import Draining
from poolhand.observe import events
from poolhand.testing import SeededRuntime, simulate_restart
from poolhand.views import Status
from tests.unit.pool.support import Heard, Journal, occupied, seeded, until


@seeded
async def test_a_pool_is_found_by_name_and_by_id_while_it_lives(runtime: SeededRuntime) -> None:
    pool = Pool("found", runtime=runtime)
    assert get_pool("found") is None
    async with pool:
        assert get_pool("found") is pool
        assert get_pool(pool.id) is pool
    assert get_pool("found") is None
    assert get_pool(pool.id) is None


def test_looking_up_an_unknown_pool_returns_none() -> None:
    assert get_pool("nobody made this one") is None
    assert get_pool("") is None


@seeded
async def test_pools_are_listed_in_the_order_of_their_creation(runtime: SeededRuntime) -> None:
    assert list_pools() == []
    one, two, three = (Pool(name, runtime=runtime) for name in ("one", "two", "three"))
    await three.start()
    await one.start()
    await two.start()
    assert [pool.name for pool in list_pools()] == ["one", "two", "three"]
    await two.drain()
    assert list_pools() == [one, three]
    await one.drain()
    await three.drain()
    assert list_pools() == []


@seeded
async def test_the_returned_list_is_a_copy(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        list_pools().clear()
        assert list_pools() == [pool]


@seeded
async def test_a_pool_without_a_name_gets_one_of_its_own(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as one, Pool(runtime=runtime) as two:
        assert one.name.strip()
        assert one.name != two.name
        assert one.id != two.id
        assert get_pool(one.name) is one


@seeded
async def test_a_duplicate_live_name_raises_and_names_the_existing_id(
    runtime: SeededRuntime,
) -> None:
    early = Pool("taken", runtime=runtime)
    async with Pool("taken", runtime=runtime) as pool:
        with pytest.raises(UsageError) as caught:
            Pool("taken", runtime=runtime)
        assert "'taken'" in str(caught.value)
        assert pool.id in str(caught.value)
        with pytest.raises(UsageError, match=pool.id):
            await early.start()
        assert list_pools() == [pool]
        assert await pool.run(Journal().note, "unharmed") == "unharmed"


@seeded
async def test_a_name_is_free_again_after_the_drain(runtime: SeededRuntime) -> None:
    async with Pool("again", runtime=runtime) as first:
        pass
    async with Pool("again", runtime=runtime) as second:
        assert second.id != first.id
        assert get_pool("again") is second


@seeded
async def test_a_name_is_taken_until_the_drain_has_ended(runtime: SeededRuntime) -> None:
    pool = await Pool("busy", runtime=runtime).start()
    async with occupied(pool):
        drain = asyncio.create_task(pool.drain(60))
        await asyncio.sleep(1)
        with pytest.raises(UsageError):
            Pool("busy", runtime=runtime)
        assert get_pool("busy") is pool
    await drain
    assert get_pool("busy") is None


@seeded
async def test_starting_twice_is_harmless(runtime: SeededRuntime) -> None:
    heard = Heard()
    pool = Pool(runtime=runtime, events=heard.events)
    assert await pool.start() is pool
    async with occupied(pool):
        assert await pool.start() is pool
        async with asyncio.timeout(1):
            await asyncio.gather(*(pool.start() for _ in range(5)))
        assert pool.size() == 1
        assert list_pools() == [pool]
    await pool.drain()
    assert len(heard.of(events.PoolStarted)) == 1


def test_a_pool_can_be_made_before_any_loop_exists() -> None:
    pool = Pool()

    async def main() -> str:
        async with pool:
            return await pool.run(Journal().note, "x")

    assert asyncio.run(main()) == "x"
    assert list_pools() == []


@seeded
async def test_a_drained_pool_cannot_be_started_again(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        pass
    with pytest.raises(UsageError, match="drained"):
        await pool.start()
    assert list_pools() == []


def test_a_pool_cannot_run_on_two_loops() -> None:
    pool = Pool()
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(pool.start())
        with pytest.raises(UsageError, match="another event loop"):
            second.run(pool.start())
        first.run(pool.drain())


@seeded
async def test_the_repr_of_a_pool_contains_its_name(runtime: SeededRuntime) -> None:
    pool = Pool("seen", runtime=runtime)
    assert repr(pool) == f"<Pool 'seen' {pool.id}>"


def test_a_pool_whose_loop_was_closed_frees_its_name() -> None:
    async def leave_behind() -> None:
        await Pool("orphan").start()

    asyncio.run(leave_behind())
    assert get_pool("orphan") is None
    assert list_pools() == []

    async def again() -> str:
        async with Pool("orphan") as pool:
            return await pool.run(asyncio.sleep, 0, "well")

    assert asyncio.run(again()) == "well"


async def test_every_verb_refuses_to_be_used_from_another_thread() -> None:
    async def from_outside(pool: Pool, ticket: Ticket[None]) -> list[str]:
        verbs = (pool.drain, lambda: pool.resize(2), lambda: pool.rerun("x"), ticket.cancel)
        errors = []
        for verb in verbs:
            with pytest.raises(UsageError) as caught:
                await verb()
            errors.append(str(caught.value))
        for act in (pool.pause, pool.resume, lambda: pool.submit_nowait(asyncio.sleep, 0)):
            with pytest.raises(UsageError) as caught:
                act()
            errors.append(str(caught.value))
        return errors

    async with Pool() as pool:
        gate = asyncio.Event()
        ticket = await pool.submit(gate.wait)
        waiting = await pool.submit(asyncio.sleep, 0)
        errors = await asyncio.to_thread(lambda: asyncio.run(from_outside(pool, waiting)))
        assert all("run_coroutine_threadsafe" in error for error in errors)
        gate.set()
        assert await ticket is True
        await waiting


async def test_a_task_factory_of_the_loop_is_used_and_runs_no_job_inside_a_submit() -> None:
    loop = asyncio.get_running_loop()
    made: list[asyncio.Task[Any]] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **given: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **given)
        made.append(task)
        return task

    loop.set_task_factory(factory)
    try:
        async with Pool("made", max_concurrent=3) as pool:
            tickets = [pool.submit_nowait(asyncio.sleep, 0, number) for number in range(50)]
            assert [await ticket for ticket in tickets] == list(range(50))
    finally:
        loop.set_task_factory(None)
    assert [task.get_name() for task in made].count("made-worker-000") > 1


@pytest.mark.filterwarnings("ignore")
def test_a_pool_whose_loop_was_closed_while_it_ran_is_removed_from_the_registry() -> None:
    loop = asyncio.new_event_loop()

    async def hang(job: object) -> None:
        await asyncio.Event().wait()

    async def fail() -> None:
        raise ValueError

    async def leave_all_behind() -> Pool:
        pool = await Pool("left", on_dead=hang, timeout=60).start()
        await wait(pool.submit_nowait(fail))
        pool.submit_nowait(asyncio.sleep, 60)
        await until(lambda: pool.stats().in_flight == 1)
        return pool

    left = loop.run_until_complete(leave_all_behind())
    loop.close()
    assert list_pools() == []
    assert left.health().pool_size == 0


@seeded
async def test_a_simulated_restart_drops_pools_in_memory_and_all_their_jobs(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    pool = await Pool("session", runtime=runtime).start()
    running = await pool.submit(asyncio.Event().wait)
    waiting = await pool.submit(journal.note, "waited")
    await until(lambda: running.status is Status.RUNNING)
    simulate_restart()
    assert list_pools() == []
    async with Pool("session", runtime=runtime) as again:
        assert again.snapshot().total == 0
        await again.run(journal.note, "again")
    with pytest.raises(Draining):
        await pool.submit(journal.note, "late")
    jobs = await wait([running, waiting])
    assert [job.status for job in jobs] == [Status.CANCELLED, Status.REJECTED]
    assert journal.ran == ["again"]
    simulate_restart()
