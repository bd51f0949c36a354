"""Tickets of stored jobs: waiting for them, looking at them, finding them again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from datetime import timedelta

import pytest

from poolhand import Retry, UsageError, wait
from poolhand.app import App
from poolhand.contract import Stored
from poolhand.errors import JobLost, Unavailable
from poolhand.rules.lifecycle import Keep
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import Gate, SharedStore, StoreApp, seeded, until


@seeded
async def test_a_wait_that_times_out_leaves_the_job_running(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    gate = Gate()

    @app.task(name="call")
    async def call() -> int:
        await gate.pass_through()
        return 1

    async with app, app.worker():
        ticket = await call.submit()
        began = runtime.monotonic()
        with pytest.raises(TimeoutError, match="is not over after 3 s: it runs: attempt 1"):
            await ticket.result(timeout=3)
        assert runtime.monotonic() - began == pytest.approx(3)
        job = await wait(ticket, timeout=2)
        assert job.status in (Status.RUNNING, Status.QUEUED)
        assert runtime.monotonic() - began == pytest.approx(5)
        gate.opened.set()
        assert await ticket.result(timeout=3) == 1


async def test_a_wait_that_times_out_explains_why_the_job_waits(url: str) -> None:
    app = App(url)

    @app.task(name="call")
    async def call() -> int:
        return 1

    async with app:
        ticket = await call.submit()
        later = await call.with_options(delay=60).submit()
        with pytest.raises(TimeoutError) as caught:
            await ticket.result(timeout=timedelta(seconds=0.02))
        unserved = await ticket.explain()
        assert str(caught.value) == f"job {ticket.id} is not over after 0.02 s: {unserved}"
        assert unserved.reason == "no_worker"
        with pytest.raises(TimeoutError, match="is not over after 0 s: it waits for its time in"):
            await later.result(timeout=0)


@seeded
async def test_a_wait_times_out_even_while_the_store_is_unavailable(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)

    @app.task(name="call")
    async def call() -> None: ...

    async with app:
        ticket = await call.submit()
        store.down = True
        began = runtime.monotonic()
        with pytest.raises(
            TimeoutError, match="is not over after 2 s; its store did not explain why in time"
        ):
            await ticket.result(timeout=2)
        store.down, store.lag = False, lambda: 20.0
        with pytest.raises(TimeoutError, match="its store did not explain why"):
            await ticket.result(timeout=2)
        store.lag = None
        assert runtime.monotonic() - began == pytest.approx(2 + 2 + 1)


@seeded
async def test_a_job_that_ends_with_the_wait_still_gives_its_value(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    here, there = StoreApp(store, runtime), StoreApp(store, runtime)

    async def call() -> int:
        return 7

    submits, _ = here.task(name="call")(call), there.task(name="call")(call)
    async with here, there, there.worker():
        ticket = await submits.submit()
        await asyncio.sleep(0.5)
        # The job is over, and this app has not been notified.
        assert not ticket.snapshot().status.terminal
        assert await ticket.result(timeout=0) == 7


@pytest.mark.parametrize("timeout", [-1, "1", True, float("nan"), timedelta(seconds=-1)], ids=str)
async def test_a_timeout_must_be_seconds(timeout: float) -> None:
    app = App("memory://")

    @app.task(name="call")
    async def call() -> None: ...

    async with app:
        ticket = await call.submit()
        with pytest.raises(UsageError, match="it must be seconds"):
            await ticket.result(timeout=timeout)


@seeded
async def test_wait_returns_jobs_in_order(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call", retry=Retry(attempts=1))
    async def call(number: int) -> int:
        await asyncio.sleep(10 - number)
        if number == 2:
            raise ValueError
        return number

    async with app, app.worker(5):
        jobs = await wait(await call.submit_many([(number,) for number in range(5)]))
    assert [job.result for job in jobs] == [0, 1, None, 3, 4]
    assert jobs[2].status is Status.FAILED


@seeded
async def test_a_snapshot_sends_no_query_and_a_refresh_reads_the_store(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    gate = Gate()

    @app.task(name="call")
    async def call() -> str:
        await gate.pass_through()
        return "done"

    async with app, app.worker():
        ticket = await call.submit()
        assert not ticket.status.terminal
        await until(lambda: gate.entered == 1)
        assert ticket.snapshot().status is Status.RUNNING
        job = await ticket.refresh()
        assert {job.status, ticket.status} == {Status.RUNNING}
        assert job.attempts == 1
        gate.opened.set()
        await asyncio.sleep(2)
        job = await ticket.refresh()
        assert (job.status, job.result) == (Status.COMPLETED, "done")
        assert ticket.snapshot() == job


@seeded
async def test_a_stale_read_never_undoes_the_end_of_a_job(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call() -> int:
        return 1

    async with app, app.worker(8):
        for _ in range(20):
            ticket = await call.submit()
            looks = [asyncio.create_task(ticket.refresh()) for _ in range(3)]
            assert await ticket == 1
            assert ticket.status is Status.COMPLETED
            await asyncio.wait(looks)
            assert ticket.status is Status.COMPLETED


@seeded
async def test_a_job_is_found_again_by_its_id(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    here, there = StoreApp(store, runtime), StoreApp(store, runtime)

    @here.task(name="found again")
    async def call() -> int:
        return 7

    async with here, there, here.worker():
        ticket = await call.submit()
        assert await ticket == 7
        found = await here.get(ticket.id)
        assert found is not None
        assert await found == 7
        assert await here.get("no such job") is None
        unknown = await there.get(ticket.id)
        assert unknown is not None
        assert unknown.status is Status.COMPLETED
        assert await unknown == 7, "as JSON has it: the task is no task of that app"


@seeded
async def test_a_job_finished_long_ago_is_pruned(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime, keep=Keep(results=300.0))

    @app.task(name="call")
    async def call() -> int:
        return 7

    async with app, app.worker():
        ticket = await call.submit()
        assert await ticket == 7
        await asyncio.sleep(290)
        assert await app.get(ticket.id) is not None
        await asyncio.sleep(100)
        assert await app.get(ticket.id) is None
        assert await ticket == 7, "what is known here stays"


@seeded
async def test_waiting_for_a_pruned_job_raises_at_once(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    gate = Gate()

    @app.task(name="call")
    async def call() -> None:
        await gate.pass_through()

    async with app, app.worker():
        ticket = await call.submit()
        await until(lambda: gate.entered == 1)
        waiting = asyncio.ensure_future(ticket.result(timeout=60))
        await asyncio.sleep(2)
        # As in a store that was emptied by hand.
        store.query("DELETE FROM poolhand_jobs WHERE id = ?", ticket.id)
        with pytest.raises(JobLost, match="is no longer kept"):
            await waiting


@seeded
async def test_explain_returns_the_reason_a_job_waits(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call() -> None: ...

    async with app:
        later = await call.with_options(delay=60).submit()
        explanation = await later.explain()
        assert explanation.reason
        assert (await later.explain()).text == str(explanation)
        ready = await call.submit()
        assert (await ready.explain()).reason != explanation.reason


@seeded
async def test_waiting_callers_get_an_error_when_the_app_is_closed(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call() -> None: ...

    connection = await app.core.connection()
    ticket = await call.submit()
    waiting = [
        asyncio.ensure_future(ticket.result(timeout=900)),
        asyncio.ensure_future(wait(ticket)),
    ]
    await until(lambda: len(connection.outcomes.watch._waiting.get(ticket.id, ())) == 2)
    await app.close()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in found] == [Unavailable] * 2


async def test_waiting_threads_get_an_error_when_the_app_is_closed(url: str) -> None:
    app = App(url)

    @app.task(name="call")
    async def call() -> None: ...

    async def wait_there() -> BaseException | None:
        return (await asyncio.gather(ticket, return_exceptions=True))[0]

    ticket = await call.submit()
    threads = [asyncio.create_task(asyncio.to_thread(asyncio.run, wait_there())) for _ in range(3)]
    connection = await app.core.connection()
    while len(connection.outcomes.watch._waiting.get(ticket.id, ())) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await app.close()
    found = await asyncio.gather(*threads)
    assert [type(one) for one in found] == [Unavailable] * 3


@seeded
async def test_a_ticket_works_when_its_app_is_opened_again(runtime: SeededRuntime) -> None:
    app = StoreApp(SharedStore(runtime), runtime)

    @app.task(name="call")
    async def call() -> int:
        return 3

    async with app:
        ticket = await call.with_options(run_at=runtime.wall() + timedelta(seconds=20)).submit()
    async with app, app.worker():
        assert await ticket == 3


@seeded
async def test_jobs_without_a_ticket_are_not_kept_in_memory(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call() -> int:
        return 3

    async with app, app.worker(3):
        tickets = await call.submit_many([()] * 50)
        await wait(tickets)
        connection = await app.core.connection()
        assert len(connection.outcomes._seen) == 50
        assert len(connection.outcomes.watch._waiting) == 0
        del tickets
        gc.collect()
        assert len(connection.outcomes._seen) == 0


@seeded
async def test_callers_that_stopped_waiting_are_removed(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.task(name="call")
    async def call() -> None: ...

    async with app:
        ticket = await call.submit()
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await ticket.result(timeout=0.5)
        await asyncio.sleep(3)
        connection = await app.core.connection()
        assert connection.outcomes.watch._waiting == {}


@seeded
async def test_a_store_that_answers_slowly_is_asked_again_within_a_second(
    runtime: SeededRuntime,
) -> None:
    class Slow(SharedStore):
        """Takes long to find jobs."""

        async def get(self, ids: Sequence[str], calls: bool = False) -> list[Stored | None]:
            found = await super().get(ids, calls)
            await _take(runtime, 10)
            return found

    store = Slow(runtime)
    near, far = StoreApp(store, runtime), StoreApp(store, runtime)
    gate = Gate()

    async def call() -> None:
        await gate.pass_through()

    submits = far.task(name="call")(call)
    near.task(name="call")(call)
    async with near, far, near.worker():
        waiting = asyncio.create_task((await submits.submit()).result())
        await asyncio.sleep(5)
        gate.opened.set()
        await asyncio.sleep(10 + 1 + 10)
        assert waiting.done()


async def _take(runtime: SeededRuntime, seconds: float) -> None:
    await asyncio.sleep(seconds)
