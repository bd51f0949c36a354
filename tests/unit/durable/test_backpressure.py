"""Backpressure of a full stored pool: every policy, over all apps of a store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from poolhand import Ticket, bounded, fail_fast, ring_buffer, wait
from poolhand.app import App
from poolhand.contract import Filter
from poolhand.errors import JobRejected, NoFreeSlot, PoolFull
from poolhand.observe.events import (
    JobEnded,
    JobJoined,
    JobSubmitted,
    SubmitRefused,
    SubmitterParked,
)
from poolhand.rules.queue.backpressure import Policy
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import (
    Gate,
    Heard,
    SharedStore,
    StoreApp,
    bury_all,
    seeded,
    stored,
    until,
)


class Pier:
    """An app with one pool, a store to look into, and a task that waits for a gate."""

    def __init__(
        self, runtime: SeededRuntime, policy: Policy | str, slots: int = 1, **options: Any
    ) -> None:
        self.heard = Heard()
        self.store = SharedStore(runtime)
        self.gate = Gate()
        self.runtime = runtime
        self.ran: list[int] = []
        self._policy, self._slots = policy, slots
        self._options = options
        self.app = self.another()
        self.call = self.task_of(self.app)

    def another(self) -> App:
        """Return another app on the same store, as another process has."""
        app = StoreApp(self.store, self.runtime, events=self.heard.events)
        app.pool("pier", max_concurrent=self._slots, backpressure=self._policy, **self._options)
        return app

    def task_of(self, app: App) -> Any:
        async def call(number: int) -> int:
            self.ran.append(number)
            await self.gate.pass_through()
            return number

        return app.task(pool="pier", name="call")(call)

    async def park(self, task: Any, number: int) -> asyncio.Task[Ticket[int]]:
        before = self.parked
        submitting: asyncio.Task[Ticket[int]] = asyncio.ensure_future(task.submit(number))
        await until(lambda: self.parked > before or submitting.done())
        return submitting

    @property
    def parked(self) -> int:
        rows = self.store.query("SELECT parked FROM poolhand_pools WHERE name = 'pier'")
        return int(rows[0][0]) if rows else 0

    async def statuses(self) -> dict[Status, int]:
        return dict(await self.store.count(Filter()))


@seeded
async def test_a_full_pool_with_fail_submitter_refuses(runtime: SeededRuntime) -> None:
    pier = Pier(runtime, bounded(2, on_full="fail_submitter"))
    async with pier.app, pier.app.worker(3):
        first = await pier.call.submit(1)
        await until(lambda: pier.gate.entered == 1)
        tickets = [first, await pier.call.submit(2), await pier.call.submit(3)]
        with pytest.raises(PoolFull, match=r"1 running, 2 waiting, bounded\(2, fail_submitter\)"):
            await pier.call.submit(4)
        pier.gate.opened.set()
        assert [await one for one in tickets] == [1, 2, 3]
    (refused,) = pier.heard.of(SubmitRefused)
    assert (refused.pool, refused.code) == ("pier", PoolFull.code)
    assert await pier.statuses() == {Status.COMPLETED: 3}


@seeded
async def test_a_pool_without_a_queue_refuses_when_no_slot_is_free(
    runtime: SeededRuntime,
) -> None:
    pier = Pier(runtime, fail_fast(), slots=2)
    async with pier.app, pier.app.worker(3):
        tickets = [await pier.call.submit(1), await pier.call.submit(2)]
        with pytest.raises(NoFreeSlot):
            await pier.call.submit(3)
        pier.gate.opened.set()
        await wait(tickets)
        assert await (await pier.call.submit(4)) == 4


@seeded
async def test_the_oldest_waiting_job_is_evicted(runtime: SeededRuntime) -> None:
    pier = Pier(runtime, bounded(1, on_full="drop_oldest"))
    async with pier.app, pier.app.worker(3):
        first = await pier.call.submit(1)
        await until(lambda: pier.gate.entered == 1)
        second, third = await pier.call.submit(2), await pier.call.submit(3)
        with pytest.raises(JobRejected) as caught:
            await second
        assert caught.value.job_id == second.id
        pier.gate.opened.set()
        assert [await first, await third] == [1, 3]
    assert pier.ran == [1, 3]


@seeded
async def test_the_newest_job_is_rejected_with_a_record(runtime: SeededRuntime) -> None:
    pier = Pier(runtime, bounded(1, on_full="drop_newest"))
    async with pier.app, pier.app.worker(3):
        first = await pier.call.submit(1)
        await until(lambda: pier.gate.entered == 1)
        second, third = await pier.call.submit(2), await pier.call.submit(3)
        assert third.status is Status.REJECTED
        with pytest.raises(JobRejected):
            await third
        pier.gate.opened.set()
        assert [await first, await second] == [1, 2]
        assert (await stored(pier.app, third.id)).job.status is Status.REJECTED
    ended = [event.job.id for event in pier.heard.of(JobEnded)]
    assert ended.count(third.id) == 1


@seeded
async def test_a_ring_keeps_the_newest(runtime: SeededRuntime) -> None:
    pier = Pier(runtime, ring_buffer(2))
    async with pier.app, pier.app.worker(3):
        await pier.call.submit(0)
        await until(lambda: pier.gate.entered == 1)
        tickets = [await pier.call.submit(number) for number in range(1, 6)]
        jobs = await wait(tickets[:3])
        assert [job.status for job in jobs] == [Status.REJECTED] * 3
        pier.gate.opened.set()
        assert [await one for one in tickets[3:]] == [4, 5]


@seeded
async def test_blocked_submitters_are_admitted_in_order(runtime: SeededRuntime) -> None:
    pier = Pier(runtime, bounded(1), queue="fifo")
    other = pier.another()
    call = pier.task_of(other)
    async with pier.app, other, pier.app.worker(1):
        await pier.call.submit(0)
        await until(lambda: pier.gate.entered == 1)
        await pier.call.submit(1)
        # Alternating between two processes: the order is that of the store.
        waiting = [
            await pier.park(pier.call if number % 2 else call, number) for number in range(2, 6)
        ]
        assert pier.parked == 4
        assert not any(one.done() for one in waiting)
        pier.gate.opened.set()
        tickets = [await one for one in waiting]
        assert [await one for one in tickets] == [2, 3, 4, 5]
    assert pier.ran == [0, 1, 2, 3, 4, 5]
    assert len(pier.heard.of(SubmitterParked)) == 4
    assert len(pier.heard.of(JobSubmitted)) == 6


@seeded
async def test_a_submitter_that_leaves_gives_up_its_place_in_the_line(
    runtime: SeededRuntime,
) -> None:
    pier = Pier(runtime, bounded(1))
    async with pier.app, pier.app.worker(1):
        await pier.call.submit(0)
        await until(lambda: pier.gate.entered == 1)
        await pier.call.submit(1)
        waiting = [await pier.park(pier.call, number) for number in range(2, 5)]
        waiting[1].cancel()
        await until(lambda: pier.parked == 2)
        pier.gate.opened.set()
        assert await (await waiting[0]) == 2
        assert await (await waiting[2]) == 4
        await asyncio.sleep(5)
    assert pier.ran == [0, 1, 2, 4]


@seeded
async def test_a_submitter_cancelled_before_its_answer_leaves_nothing_blocked(
    runtime: SeededRuntime,
) -> None:
    pier = Pier(runtime, bounded(1))
    async with pier.app, pier.app.worker(1):
        await pier.call.submit(0)
        await until(lambda: pier.gate.entered == 1)
        await pier.call.submit(1)
        for turns in range(25):
            submitting = asyncio.ensure_future(pier.call.submit(100 + turns))
            for _ in range(turns):
                await asyncio.sleep(0)
            submitting.cancel()
            await asyncio.wait([submitting])
            assert submitting.cancelled()
        await asyncio.sleep(2)
        assert pier.parked == 0
        pier.gate.opened.set()
        await asyncio.sleep(5)
    assert pier.ran == [0, 1]


@seeded
async def test_a_submitter_that_waited_long_enough_is_refused_and_leaves_nothing(
    runtime: SeededRuntime,
) -> None:
    pier = Pier(runtime, bounded(1, wait_timeout=7))
    async with pier.app, pier.app.worker(1):
        await pier.call.submit(0)
        await until(lambda: pier.gate.entered == 1)
        await pier.call.submit(1)
        began = runtime.monotonic()
        with pytest.raises(PoolFull, match="stayed full for 7"):
            await pier.call.submit(2)
        assert 7 <= runtime.monotonic() - began <= 7.5
        assert pier.parked == 0
        pier.gate.opened.set()
        await asyncio.sleep(5)
    assert pier.ran == [0, 1]


@seeded
async def test_a_place_freed_at_the_timeout_is_either_taken_or_refused(
    runtime: SeededRuntime,
) -> None:
    pier = Pier(runtime, bounded(1, wait_timeout=5))
    async with pier.app, pier.app.worker(1):
        await pier.call.submit(0)
        await until(lambda: pier.gate.entered == 1)
        await pier.call.submit(1)
        submitting = await pier.park(pier.call, 2)
        # At the very moment when the wait times out.
        runtime.loop.call_later(5, pier.gate.opened.set)
        (found,) = await asyncio.gather(submitting, return_exceptions=True)
        await asyncio.sleep(10)
        if isinstance(found, PoolFull):
            assert pier.ran == [0, 1]
        else:
            assert not isinstance(found, BaseException)
            assert await found == 2
            assert pier.ran == [0, 1, 2]
        assert pier.parked == 0


@seeded
async def test_a_submit_with_the_key_of_a_blocked_submitter_waits_with_it(
    runtime: SeededRuntime,
) -> None:
    pier = Pier(runtime, bounded(1))
    keyed = pier.call.with_options(idempotency_key="k")
    async with pier.app, pier.app.worker(1):
        await pier.call.submit(0)
        await until(lambda: pier.gate.entered == 1)
        await pier.call.submit(1)
        owner = await pier.park(keyed, 2)
        joiner = asyncio.ensure_future(keyed.submit(2))
        await asyncio.sleep(1)
        assert not joiner.done()
        assert pier.parked == 1
        pier.gate.opened.set()
        assert (await owner).id == (await joiner).id
        assert await (await joiner) == 2
    assert pier.ran == [0, 1, 2]
    assert len(pier.heard.of(JobJoined)) == 1


@seeded
async def test_a_joiner_takes_over_when_the_blocked_owner_of_the_key_leaves(
    runtime: SeededRuntime,
) -> None:
    pier = Pier(runtime, bounded(1))
    keyed = pier.call.with_options(idempotency_key="k")
    async with pier.app, pier.app.worker(1):
        await pier.call.submit(0)
        await until(lambda: pier.gate.entered == 1)
        await pier.call.submit(1)
        owner = await pier.park(keyed, 2)
        joiner = asyncio.ensure_future(keyed.submit(2))
        await asyncio.sleep(1)
        owner.cancel()
        await asyncio.sleep(3)
        assert not joiner.done()
        assert pier.parked == 1
        pier.gate.opened.set()
        assert await (await joiner) == 2
    assert pier.ran == [0, 1, 2]


@seeded
async def test_a_joiner_that_leaves_does_not_withdraw_the_owner(
    runtime: SeededRuntime,
) -> None:
    pier = Pier(runtime, bounded(1))
    keyed = pier.call.with_options(idempotency_key="k")
    async with pier.app, pier.app.worker(1):
        await pier.call.submit(0)
        await until(lambda: pier.gate.entered == 1)
        await pier.call.submit(1)
        owner = await pier.park(keyed, 2)
        behind = await pier.park(pier.call, 3)
        joiner = asyncio.ensure_future(keyed.submit(2))
        await asyncio.sleep(1)
        joiner.cancel()
        await asyncio.sleep(3)
        assert pier.parked == 2
        assert not owner.done()
        pier.gate.opened.set()
        assert await (await owner) == 2
        assert await (await behind) == 3
    assert pier.ran == [0, 1, 2, 3], "it kept its place in the line"


@seeded
async def test_a_blocked_submitter_whose_lease_was_lost_blocks_again(
    runtime: SeededRuntime,
) -> None:
    pier = Pier(runtime, bounded(1))
    other = pier.another()
    async with other, other.worker(1), pier.app:
        call = pier.task_of(other)
        await call.submit(0)
        await until(lambda: pier.gate.entered == 1)
        await call.submit(1)
        submitting = await pier.park(pier.call, 2)
        connection = await pier.app.core.connection()
        me = connection.heartbeat.owner.id
        (lease,) = [one for one in await pier.store.leases() if one.owner.id == me]
        await pier.store.expire_owner(me, lease.renewal)
        assert pier.parked == 0
        await asyncio.sleep(10)
        assert not submitting.done()
        assert pier.parked == 1
        pier.gate.opened.set()
        assert await (await submitting) == 2


@seeded
async def test_a_submitter_with_an_expired_lease_is_blocked_not_refused(
    runtime: SeededRuntime,
) -> None:
    pier = Pier(runtime, bounded(1))
    async with pier.app:
        await pier.call.submit(1)
        await bury_all(pier.app)
        submitting = await pier.park(pier.call, 2)
        await asyncio.sleep(1)
        assert not submitting.done()
        submitting.cancel()
        await asyncio.wait([submitting])


@seeded
async def test_a_submit_many_that_does_not_fit_waits_until_all_are_accepted(
    runtime: SeededRuntime,
) -> None:
    pier = Pier(runtime, bounded(2), queue="fifo")
    async with pier.app, pier.app.worker(1):
        pier.gate.opened.set()
        tickets = await pier.call.submit_many([(number,) for number in range(10)])
        assert [await one for one in tickets] == list(range(10))
    assert pier.ran == list(range(10))


@seeded
async def test_a_submit_many_that_times_out_leaves_nothing_to_run(runtime: SeededRuntime) -> None:
    pier = Pier(runtime, bounded(2, wait_timeout=3))
    async with pier.app:
        with pytest.raises(PoolFull):
            await pier.call.submit_many([(number,) for number in range(5)])
        assert await pier.statuses() == {Status.CANCELLED: 2}
        assert pier.parked == 0
        async with pier.app.worker(1):
            await asyncio.sleep(5)
    assert pier.ran == []


@seeded
async def test_a_submit_many_is_refused_as_a_whole(runtime: SeededRuntime) -> None:
    pier = Pier(runtime, bounded(2, on_full="fail_submitter"))
    async with pier.app:
        with pytest.raises(PoolFull):
            await pier.call.submit_many([(number,) for number in range(5)])
        assert await pier.statuses() == {}
        tickets = await pier.call.submit_many([(1,), (2,)])
        assert len(tickets) == 2
