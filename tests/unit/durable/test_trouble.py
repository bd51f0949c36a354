"""A store that is unavailable for a while: nothing is lost; refusals are reported, and soon."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from poolhand import Retry, wait
from poolhand.contract import Added, Change, ClaimRequest, JobBatch, Refusal, ReplacedJob
from poolhand.durable.client.submit import ACCEPT_WITHIN
from poolhand.errors import Unavailable
from poolhand.observe.events import StoreTrouble
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import Gate, Heard, SharedStore, StoreApp, seeded, until

FOREVER = 10_000.0


@seeded
async def test_outcomes_from_a_store_outage_are_written_when_it_is_over(
    runtime: SeededRuntime,
) -> None:
    store, heard = SharedStore(runtime), Heard()
    app = StoreApp(store, runtime, events=heard.events)
    gate, runs = Gate(), []

    @app.task(name="call", retry=Retry(attempts=1))
    async def call(number: int) -> int:
        runs.append(number)
        await gate.pass_through()
        if number == 3:
            raise ValueError(number)
        return number

    async with app, app.worker(5):
        tickets = await call.submit_many([(number,) for number in range(5)])
        await until(lambda: gate.entered == 5)
        store.down = True
        gate.opened.set()
        await asyncio.sleep(15)
        assert [ticket.status for ticket in tickets] == [Status.RUNNING] * 5
        store.down = False
        jobs = await wait(tickets, timeout=5)
        assert [job.result for job in jobs] == [0, 1, 2, None, 4]
        assert jobs[3].status is Status.FAILED
    assert sorted(runs) == [0, 1, 2, 3, 4], "nothing ran twice"
    told = [event.what for event in heard.of(StoreTrouble)]
    assert told.count("worker") == 1


@seeded
async def test_a_submit_to_an_unavailable_store_is_refused_at_once(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)

    @app.task(name="call")
    async def call() -> int:
        return 1

    async with app:
        assert await app.ready()
        store.down = True
        began = runtime.monotonic()
        with pytest.raises(Unavailable, match="the store is away"):
            await call.submit()
        assert not await app.ready()
        assert runtime.monotonic() - began <= 1
        store.down = False
        assert await app.ready()
        async with app.worker():
            assert await (await call.submit()) == 1


@seeded
async def test_a_submit_to_a_store_that_does_not_answer_is_refused_in_time(
    runtime: SeededRuntime,
) -> None:
    class Silent(SharedStore):
        silent = False

        async def add(self, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]:
            if self.silent:
                await asyncio.sleep(60)
            return await super().add(batches)

    store = Silent(runtime)
    app = StoreApp(store, runtime)

    @app.task(name="call")
    async def call() -> int:
        return 1

    keyed = call.with_options(idempotency_key="k")
    async with app, app.worker():
        store.silent = True
        began = runtime.monotonic()
        with pytest.raises(Unavailable, match="submit it again with the same idempotency key"):
            await keyed.submit()
        assert runtime.monotonic() - began <= 11
        store.silent = False
        assert await (await keyed.submit()) == 1
        # The first submit reaches the store at last, and finds its key in use.
        await asyncio.sleep(100)
        rows = await store.pools()
        assert (rows[0].queued, rows[0].running) == (0, 0)


@seeded
async def test_a_store_that_opens_slowly_counts_as_unavailable(runtime: SeededRuntime) -> None:
    class Slow(SharedStore):
        async def open(self) -> None:
            await asyncio.sleep(30)
            await super().open()

    app = StoreApp(Slow(runtime), runtime)

    @app.task(name="call")
    async def call() -> int:
        return 1

    began = runtime.monotonic()
    with pytest.raises(Unavailable):
        await call.submit()
    assert runtime.monotonic() - began <= ACCEPT_WITHIN + 0.1
    await asyncio.sleep(30)
    async with app, app.worker():
        assert await (await call.submit()) == 1


@seeded
async def test_opening_a_store_is_retried_after_a_failure(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)

    @app.task(name="call")
    async def call() -> int:
        return 1

    store.down = True
    for _ in range(3):
        with pytest.raises(Unavailable, match="away"):
            await call.submit()
        with pytest.raises(Unavailable, match="away"):
            await app.worker().start()
    assert not await app.ready()
    store.down = False
    async with app, app.worker():
        assert await (await call.submit()) == 1


@seeded
async def test_a_wait_continues_through_an_outage(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)

    @app.task(name="call")
    async def call() -> int:
        await asyncio.sleep(5)
        return 1

    async with app, app.worker():
        ticket = await call.submit()
        waiting = asyncio.ensure_future(ticket.result(timeout=900))
        await asyncio.sleep(1)
        for _ in range(5):
            store.down = not store.down
            await asyncio.sleep(3)
        store.down = False
        assert await waiting == 1


@seeded
async def test_one_outcome_that_no_store_can_take_does_not_keep_the_others_back(
    runtime: SeededRuntime,
) -> None:
    class Picky(SharedStore):
        """A store with a fault: it fails for one job."""

        broken = ""

        async def replace(
            self,
            changes: Sequence[Change] = (),
            wanted: ClaimRequest | None = None,
            released: Sequence[int] = (),
        ) -> ReplacedJob:
            for change in changes:
                if change.job.id == self.broken and change.job.status is Status.COMPLETED:
                    raise TypeError("cannot write this")
            return await super().replace(changes, wanted, released)

    store, heard = Picky(runtime), Heard()
    app = StoreApp(store, runtime, events=heard.events)
    gate = Gate()

    @app.task(name="call")
    async def call(number: int) -> int:
        await gate.pass_through()
        return number

    async with app, app.worker(5):
        tickets = await call.submit_many([(number,) for number in range(5)])
        store.broken = tickets[2].id
        await until(lambda: gate.entered == 5)
        gate.opened.set()
        jobs = await wait(tickets, timeout=60)
        assert [job.status for job in jobs].count(Status.COMPLETED) == 4
        assert jobs[2].status is Status.FAILED
        assert jobs[2].error is not None
        assert jobs[2].error.message == "its outcome cannot be stored (TypeError)"
        # The worker still works.
        assert await (await call.submit(9)).result(timeout=5) == 9
    assert [event.what for event in heard.of(StoreTrouble)] == ["worker"]


@seeded
async def test_a_store_bug_does_not_end_the_background_loops(
    runtime: SeededRuntime,
) -> None:
    class Broken(SharedStore):
        fault: BaseException | None = None

        async def _break(self) -> None:
            if self.fault is not None:
                raise self.fault

        async def replace(self, *args: Any) -> Any:
            await self._break()
            return await super().replace(*args)

        async def promote(self, limit: int = 1000) -> Any:
            await self._break()
            return await super().promote(limit)

        async def extend(self, owner: str, tokens: Sequence[int]) -> Any:
            await self._break()
            return await super().extend(owner, tokens)

        async def leases(self) -> Any:
            await self._break()
            return await super().leases()

        async def get(self, ids: Sequence[str], calls: bool = False) -> Any:
            await self._break()
            return await super().get(ids, calls)

    store, heard = Broken(runtime), Heard()
    app = StoreApp(store, runtime, events=heard.events)

    @app.task(name="call")
    async def call() -> int:
        return 1

    async with app, app.worker():
        for fault in (ZeroDivisionError(), asyncio.CancelledError(), KeyError("x")):
            ticket = await call.with_options(delay=2).submit()
            waiting = asyncio.ensure_future(ticket.result(timeout=900))
            await asyncio.sleep(1)
            store.fault = fault
            await asyncio.sleep(12)
            store.fault = None
            assert await waiting == 1
        connection = await app.core.connection()
        assert connection.heartbeat.steady
    told = {event.what for event in heard.of(StoreTrouble)}
    assert {"worker", "leader", "heartbeat", "reaper", "outcomes"} <= told


@seeded
async def test_an_app_closes_although_its_store_is_unavailable(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    gate = Gate()

    @app.task(name="call")
    async def call() -> None:
        await gate.pass_through()

    async with app:
        async with app.worker(drain_timeout=1):
            await call.submit()
            await until(lambda: gate.entered == 1)
            store.down = True
        began = runtime.monotonic()
    assert runtime.monotonic() - began <= 5
    # Its lease was never released; another process finds it dead.
    store.down = False
    other = StoreApp(store, runtime)
    gate.opened.set()
    other.task(name=call.name)(call.fn)
    async with other, other.worker():
        await asyncio.sleep(40)
        rows = await store.pools()
        assert (rows[0].queued, rows[0].running) == (0, 0)
    assert gate.entered == 2


@seeded
async def test_a_slot_whose_code_ended_during_an_outage_is_free_afterwards(
    runtime: SeededRuntime,
) -> None:
    class Halting(SharedStore):
        """A store on which only outcomes cannot be written."""

        halting = False

        async def replace(
            self,
            changes: Sequence[Change] = (),
            wanted: ClaimRequest | None = None,
            released: Sequence[int] = (),
        ) -> ReplacedJob:
            if self.halting and changes:
                raise Unavailable("not now")
            return await super().replace(changes, wanted, released)

    store = Halting(runtime)
    app = StoreApp(store, runtime)
    app.pool("one", max_concurrent=1, max_per_key=1)

    @app.task(name="stubborn", pool="one", timeout=2, retry=Retry(attempts=1))
    async def stubborn() -> None:
        end = runtime.monotonic() + 6
        while runtime.monotonic() < end:
            try:
                await asyncio.sleep(end - runtime.monotonic())
            except asyncio.CancelledError:
                continue

    @app.task(name="polite", pool="one")
    async def polite() -> int:
        return 1

    async with app, app.worker(2):
        first = await stubborn.with_options(key="k").submit()
        await asyncio.sleep(1)
        store.halting = True
        # The job is over, its slot was stuck and is free again before the store records any of it.
        await asyncio.sleep(10)
        store.halting = False
        assert (await wait(first)).status is Status.FAILED
        assert await (await polite.with_options(key="k").submit()).result(timeout=5) == 1
        (row,) = await store.pools()
        assert row.running == 0


@seeded
async def test_a_stuck_slot_that_ends_after_its_worker_left_is_released(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    app.pool("one", max_concurrent=1)

    @app.task(name="stubborn", pool="one", timeout=2, retry=Retry(attempts=1))
    async def stubborn() -> None:
        end = runtime.monotonic() + 30
        while runtime.monotonic() < end:
            try:
                await asyncio.sleep(end - runtime.monotonic())
            except asyncio.CancelledError:
                continue

    async with app:
        async with app.worker(1):
            job = await wait(await stubborn.submit())
            assert job.status is Status.FAILED
        (row,) = await store.pools()
        assert row.running == 1, "its code still runs"
        await asyncio.sleep(30)
        (row,) = await store.pools()
        assert row.running == 0
        assert (await app.core.connection()).workers == []
