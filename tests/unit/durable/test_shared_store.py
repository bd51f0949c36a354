"""Two apps on one file, as in two processes: caps, keys, places and leases are shared."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from poolhand import Retry, bounded, wait
from poolhand.app import App
from poolhand.contract import PoolRow
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.worker.executor import crashed
from poolhand.errors import PoolFull
from poolhand.observe.events import LeaseLost
from poolhand.views import Status
from tests.conditions import STRANGER
from tests.unit.durable.support import Heard, until


class Pair:
    """Two apps on one file with the same pools and the same task."""

    def __init__(self, url: str, **pool: Any) -> None:
        self.heard = Heard()
        self.apps = [App(url, events=self.heard.events) for _ in range(2)]
        self.inside = self.most = 0
        self.ran: list[int] = []
        self.opened = asyncio.Event()
        for app in self.apps:
            app.pool("shared", **pool)
        self.tasks = [app.task(pool="shared", name="work")(self.work) for app in self.apps]

    async def work(self, number: int) -> int:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.ran.append(number)
        try:
            await self.opened.wait()
        finally:
            self.inside -= 1
        return number


async def test_a_pool_cap_applies_across_both_apps(shared_url: str) -> None:
    pair = Pair(shared_url, max_concurrent=2)
    one, two = pair.apps
    async with one, two, one.worker(4), two.worker(4):
        tickets = [await pair.tasks[number % 2].submit(number) for number in range(8)]
        await until(lambda: pair.inside == 2)
        pair.opened.set()
        assert sorted([await ticket for ticket in tickets]) == list(range(8))
    assert pair.most == 2


async def test_a_key_is_one_job_for_both(shared_url: str) -> None:
    pair = Pair(shared_url, max_concurrent=5)
    pair.opened.set()
    one, two = pair.apps
    keyed = [task.with_options(idempotency_key="k") for task in pair.tasks]
    async with one, two, two.worker():
        tickets = await asyncio.gather(*(keyed[n % 2].submit(0) for n in range(20)))
        assert len({ticket.id for ticket in tickets}) == 1
        assert len({await ticket for ticket in tickets}) == 1
    assert len(pair.ran) == 1


async def row_of(connection: StoreConnection) -> PoolRow:
    """Return the only pool of this test."""
    rows = await connection.thread.ask(connection.store.pools)
    (row,) = [one for one in rows if one.spec.name != STRANGER]
    return row


async def test_a_submitter_of_one_waits_for_a_place_that_the_other_frees(shared_url: str) -> None:
    pair = Pair(shared_url, max_concurrent=1, queue="fifo", backpressure=bounded(1))
    one, two = pair.apps
    async with one, two, two.worker(1):
        first = [await pair.tasks[1].submit(0)]
        await until(lambda: pair.inside == 1)
        first.append(await pair.tasks[1].submit(1))
        connection = await one.core.connection()
        waiting = []
        for number in (2, 3):
            waiting.append(asyncio.ensure_future(pair.tasks[0].submit(number)))
            while (await row_of(connection)).blocked_submitters < number - 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
        pair.opened.set()
        later = [await one for one in waiting]
        assert [await ticket for ticket in [*first, *later]] == [0, 1, 2, 3]
    assert pair.ran == [0, 1, 2, 3]


async def test_a_blocked_submitter_that_leaves_is_withdrawn(shared_url: str) -> None:
    pair = Pair(shared_url, max_concurrent=1, backpressure=bounded(1, wait_timeout=0.2))
    one = pair.apps[0]
    async with one:
        await pair.tasks[0].submit(0)
        with pytest.raises(PoolFull, match=r"stayed full for 0\.2"):
            await pair.tasks[0].submit(1)
        connection = await one.core.connection()
        row = await row_of(connection)
        assert (row.queued, row.blocked_submitters) == (1, 0)


async def test_the_other_app_is_notified_of_an_end_without_polling(shared_url: str) -> None:
    pair = Pair(shared_url, max_concurrent=3)
    pair.opened.set()
    one, two = pair.apps
    async with one, two, two.worker(3):
        tickets = await pair.tasks[0].submit_many([(number,) for number in range(3)])
        assert [await ticket for ticket in tickets] == [0, 1, 2]
        jobs = await wait(tickets)
        assert {job.status for job in jobs} == {Status.COMPLETED}


async def test_a_lost_lease_stops_the_job_and_the_other_runs_it(shared_url: str) -> None:
    pair = Pair(shared_url, max_concurrent=1)
    one, two = pair.apps
    async with one, two, one.worker():
        ticket = await pair.tasks[0].submit(7)
        await until(lambda: pair.ran == [7])
        mine, theirs = await one.core.connection(), await two.core.connection()

        async def reap() -> None:
            leases = await theirs.store.leases()
            lease = next(one for one in leases if one.owner.id == mine.heartbeat.owner.id)
            claims = await theirs.store.expire_owner(lease.owner.id, lease.renewal)
            changes = [crashed(claim, two.core.runtime.wall()) for claim in claims]
            assert (await theirs.store.replace(changes)).made == (True,)

        await theirs.thread.ask(reap)
        async with two.worker():
            await until(lambda: pair.ran == [7, 7])
            # At its next renewal the first app sees that the lease is lost, and stops the job.
            await mine.thread.ask(mine.heartbeat.renew)
            await until(lambda: pair.inside == 1)
            pair.opened.set()
            assert await ticket == 7
            job = await ticket.refresh()
            assert (job.attempts, job.crashes) == (2, 1)
    assert [event.job.id for event in pair.heard.of(LeaseLost)] == [ticket.id]


async def test_code_in_a_thread_that_does_not_stop_counts_until_it_ends(url: str) -> None:
    app = App(url)
    app.pool("one", max_concurrent=1)
    let_go, inside = threading.Event(), threading.Event()

    @app.task(name="stubborn", pool="one", timeout=0.1, retry=Retry(attempts=1))
    def stubborn() -> None:
        inside.set()
        let_go.wait(50)
        inside.clear()

    @app.task(name="polite", pool="one")
    async def polite() -> bool:
        return inside.is_set()

    async with app, app.worker(3):
        first = await stubborn.submit()
        second = await polite.submit()
        assert (await wait(first)).status is Status.FAILED
        connection = await app.core.connection()
        row = await row_of(connection)
        assert (row.running, row.queued) == (1, 1), "it counts although it is over"
        let_go.set()
        assert await second is False


async def test_stored_jobs_continue_with_the_next_app(shared_url: str) -> None:
    pair = Pair(shared_url, max_concurrent=2)
    one, two = pair.apps
    async with one, one.worker(drain_timeout=0):
        tickets = [await pair.tasks[0].submit(number) for number in range(4)]
        await until(lambda: pair.inside == 2)
    pair.opened.set()
    async with two, two.worker():
        found = [await two.get(ticket.id) for ticket in tickets]
        assert sorted([await one for one in found if one is not None]) == [0, 1, 2, 3]
        assert {one.snapshot().attempts for one in found if one is not None} == {1}
