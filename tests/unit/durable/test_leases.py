"""Leases that are lost, cannot be renewed, or belong to a dead owner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from poolhand import Retry
from poolhand.app import App
from poolhand.contract import Claim, Extended, Promoted
from poolhand.durable.leases.heartbeat import GIVE_UP_AFTER, LEASE, OWNERS
from poolhand.durable.leases.reaper import LEADER
from poolhand.durable.worker.executor import crashed
from poolhand.errors import JobLost, Unavailable
from poolhand.observe.events import JobEnded, LeaseLost, OwnerReaped, StoreTrouble
from poolhand.rules.lifecycle import Keep
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import (
    Gate,
    Heard,
    SharedStore,
    StoreApp,
    bury_all,
    seeded,
    until,
    until_later,
)
from tests.unit.pool.support import large

FOREVER = 10_000.0


class Farm:
    """Two apps on one store with the same tasks, and which app ran what."""

    def __init__(self, runtime: SeededRuntime, store: SharedStore | None = None) -> None:
        self.runtime = runtime
        self.heard = Heard()
        self.store = store or SharedStore(runtime)
        self.apps: list[StoreApp] = []
        self.ran: list[str] = []
        self.stopped: list[str] = []
        self.tasks = [self._hire("one", runtime), self._hire("two", runtime)]

    def _hire(self, where: str, runtime: SeededRuntime) -> Any:
        app = StoreApp(self.store, runtime, events=self.heard.events)
        self.apps.append(app)

        async def work(seconds: float) -> str:
            self.ran.append(where)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.stopped.append(where)
                raise
            return where

        return app.task(name="work")(work)

    async def kill(self, app: StoreApp) -> None:
        """End an app as a failure of its machine does: nothing more is written."""
        connection = await app.core.connection()
        app.core.slot.abandon()
        await until(lambda: connection.thread.closed)


async def reap(app: App) -> list[Claim]:
    """Expire everything that runs here, as a reaper does that counts the owner as dead."""
    connection = await app.core.connection()
    me = connection.heartbeat.owner.id
    (lease,) = [one for one in await connection.store.leases() if one.owner.id == me]
    claims = await connection.store.expire_owner(me, lease.renewal)
    changes = [crashed(claim, app.core.runtime.wall()) for claim in claims]
    await connection.thread.ask(lambda: connection.store.replace(changes))
    return claims


@seeded
async def test_a_job_whose_lease_was_lost_is_stopped_and_run_by_another_worker(
    runtime: SeededRuntime,
) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    async with one, two, one.worker():
        ticket = await farm.tasks[0].submit(60)
        await until(lambda: farm.ran == ["one"])
        claims = await reap(one)
        assert len(claims) == 1
        async with two.worker():
            await asyncio.sleep(6)
            assert farm.stopped == ["one"], "told at the next renewal"
            (lost,) = farm.heard.of(LeaseLost)
            assert lost.job.id == ticket.id
            assert await ticket in ("one", "two")
    job = ticket.snapshot()
    assert (job.attempts, job.crashes) == (2, 1)


@seeded
async def test_a_result_under_a_lost_lease_is_refused(runtime: SeededRuntime) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    async with one, two, one.worker():
        # The first renewal belongs to the start; wait until it is over.
        await asyncio.sleep(1)
        ticket = await farm.tasks[0].submit(2)
        await until(lambda: farm.ran == ["one"])
        await reap(one)
        # Before the next renewal: it ends by itself, and its result is ignored.
        async with two.worker():
            await asyncio.sleep(3)
            assert await ticket == "two"
        assert farm.stopped == []
    assert len(farm.heard.of(LeaseLost)) == 1
    assert [event.job.id for event in farm.heard.of(JobEnded)] == [ticket.id]


@seeded
async def test_an_expired_owner_continues_under_a_new_id(
    runtime: SeededRuntime,
) -> None:
    farm = Farm(runtime)
    one = farm.apps[0]
    async with one, one.worker():
        connection = await one.core.connection()
        before = connection.heartbeat.owner.id
        await bury_all(one)
        await asyncio.sleep(6)
        assert connection.heartbeat.owner.id != before
        assert [lease.owner.id for lease in await farm.store.leases()] == [
            connection.heartbeat.owner.id
        ]
        assert await (await farm.tasks[0].submit(1)) == "one"


@seeded
async def test_jobs_are_stopped_when_leases_could_not_be_renewed_for_20_seconds(
    runtime: SeededRuntime,
) -> None:
    farm = Farm(runtime)
    one = farm.apps[0]
    async with one, one.worker():
        ticket = await farm.tasks[0].submit(120)
        await until(lambda: farm.ran == ["one"])
        farm.store.down = True
        await asyncio.sleep(GIVE_UP_AFTER - 5.5)
        assert farm.stopped == []
        await asyncio.sleep(6.5)
        assert farm.stopped == ["one"]
        assert len(farm.heard.of(LeaseLost)) == 1
        farm.store.down = False
        # No other worker took it: it was handed back, and runs again here.
        assert await ticket.result(timeout=200) == "one"
    assert farm.ran == ["one", "one"]
    assert ticket.snapshot().attempts == 1


@seeded
async def test_jobs_are_stopped_when_a_renewal_does_not_even_fail(
    runtime: SeededRuntime,
) -> None:
    class Silent(SharedStore):
        silent = False

        async def extend(self, owner: str, tokens: Any) -> Extended:
            if self.silent:
                await asyncio.sleep(FOREVER)
            return await super().extend(owner, tokens)

    store = Silent(runtime)
    farm = Farm(runtime, store)
    one = farm.apps[0]
    async with one, one.worker():
        await farm.tasks[0].submit(120)
        await until(lambda: farm.ran == ["one"])
        store.silent = True
        await asyncio.sleep(GIVE_UP_AFTER + 1)
        assert farm.stopped[:1] == ["one"]


@seeded
async def test_a_job_claimed_by_another_owner_meanwhile_is_not_handed_back(
    runtime: SeededRuntime,
) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    async with two, one, one.worker():
        ticket = await farm.tasks[0].submit(50)
        await until(lambda: farm.ran == ["one"])
        farm.store.down = True
        await asyncio.sleep(GIVE_UP_AFTER + 1)
        farm.store.down = False
        await reap(one)
        assert await ticket.result(timeout=200) == "one"
    assert ticket.snapshot().attempts == 2


@seeded
async def test_the_jobs_of_a_machine_that_vanished_run_again_within_35_seconds(
    runtime: SeededRuntime,
) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    worker = one.worker()
    await worker.start()
    ticket = await farm.tasks[0].submit(FOREVER)
    await until(lambda: farm.ran == ["one"])
    async with two, two.worker(2):
        owner = (await one.core.connection()).heartbeat.owner
        began = runtime.monotonic()
        await farm.kill(one)
        await asyncio.sleep(LEASE - 6)
        assert farm.ran == ["one"], "a lease is good for as long as it says"
        await until_later(lambda: farm.ran == ["one", "two"], runtime)
        assert runtime.monotonic() - began <= 35
        # The job may run before the event is emitted.
        await until_later(lambda: bool(farm.heard.of(OwnerReaped)), runtime)
        (reaped,) = farm.heard.of(OwnerReaped)
        assert (reaped.host, reaped.job_ids) == (owner.host, (ticket.id,))
        found = await two.get(ticket.id)
        assert found is not None
        assert (await found.refresh()).crashes == 1
        assert owner.id not in {lease.owner.id for lease in await farm.store.leases()}
        await found.cancel()
        await worker.drain(0)


@seeded
@large
async def test_an_owner_that_renews_is_not_taken_for_dead(runtime: SeededRuntime) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    async with one, two, one.worker(1):
        ticket = await farm.tasks[0].submit(300)
        assert await ticket == "one"
    assert farm.heard.of(OwnerReaped) == []
    assert farm.ran == ["one"]


@seeded
async def test_a_non_repeatable_job_fails_when_its_machine_is_gone(
    runtime: SeededRuntime,
) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    async with two:
        await one.core.connection()
        worker = one.worker()
        await worker.start()
        ticket = await farm.tasks[0].with_options(on_crash="fail").submit(FOREVER)
        await until(lambda: farm.ran == ["one"])
        await farm.kill(one)
        found = await two.get(ticket.id)
        assert found is not None
        with pytest.raises(JobLost, match="on_crash='fail'"):
            await found
        await worker.drain(0)
    assert farm.ran == ["one"]


@seeded
async def test_a_crash_with_other_running_jobs_is_never_the_last_attempt(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    gate = Gate()

    @app.task(name="work", retry=Retry(attempts=1))
    async def work() -> int:
        await gate.pass_through()
        return 1

    async with app, app.worker():
        ticket = await work.submit()
        await until(lambda: gate.entered == 1)
        await reap(app)
        await asyncio.sleep(8)
        assert gate.entered == 2, "it runs again although it has used up its attempts"
        gate.opened.set()
        assert await ticket == 1
    assert ticket.snapshot().crashes == 1


@seeded
async def test_one_at_a_time_leads_and_another_follows(runtime: SeededRuntime) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    async with two, one:
        await asyncio.sleep(20)
        found = await farm.store.get_document(LEADER)
        assert found is not None
        leader = found[0].decode()
        connections = {app: await app.core.connection() for app in (one, two)}
        owners = {connection.heartbeat.owner.id: app for app, connection in connections.items()}
        first = owners[leader]
        await asyncio.sleep(60)
        found = await farm.store.get_document(LEADER)
        assert found is not None
        assert found[0].decode() == leader, "it goes on leading while it lives"
        await first.close()
        await asyncio.sleep(6)
        found = await farm.store.get_document(LEADER)
        assert found is not None
        other = two if first is one else one
        assert found[0].decode() == connections[other].heartbeat.owner.id


@seeded
async def test_due_jobs_are_promoted_although_the_leader_vanished(runtime: SeededRuntime) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    await one.core.connection()
    await asyncio.sleep(2)
    async with two, two.worker():
        ticket = await farm.tasks[1].with_options(delay=5).submit(0)
        await farm.kill(one)
        assert await ticket.result(timeout=LEASE + 10) == "two"


@seeded
async def test_a_closed_app_holds_no_claims_and_its_owner_is_deleted(
    runtime: SeededRuntime,
) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    async with two:
        async with one, one.worker():
            owner = (await one.core.connection()).heartbeat.owner.id
            assert await (await farm.tasks[0].submit(1)) == "one"
            assert owner in {lease.owner.id for lease in await farm.store.leases()}
        assert owner not in {lease.owner.id for lease in await farm.store.leases()}
        assert owner not in OWNERS
    assert await farm.store.leases() == []


@seeded
async def test_a_failed_renewal_is_reported_once(runtime: SeededRuntime) -> None:
    farm = Farm(runtime)
    one = farm.apps[0]
    async with one:
        for _ in range(2):
            farm.store.down = True
            await asyncio.sleep(30)
            farm.store.down = False
            await asyncio.sleep(10)
    told = [event.what for event in farm.heard.of(StoreTrouble)]
    assert {what: told.count(what) for what in told} == {"heartbeat": 2, "reaper": 2, "leader": 2}


@seeded
async def test_two_reapers_take_the_jobs_of_a_dead_owner_back_once(runtime: SeededRuntime) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    three = StoreApp(farm.store, runtime, events=farm.heard.events)
    await one.core.connection()
    worker = one.worker(5)
    await worker.start()
    async with two, three:
        tickets = await farm.tasks[0].submit_many([(FOREVER,)] * 5)
        await until(lambda: len(farm.ran) == 5)
        await farm.kill(one)
        await asyncio.sleep(LEASE + 8)
        jobs = [(await farm.store.get([one.id]))[0] for one in tickets]
        assert [one.job.crashes for one in jobs if one is not None] == [1] * 5
        assert [one.job.status for one in jobs if one is not None] == [Status.QUEUED] * 5
        reaped = [id for event in farm.heard.of(OwnerReaped) for id in event.job_ids]
        assert sorted(reaped) == sorted(ticket.id for ticket in tickets)
        await worker.drain(0)


@seeded
async def test_no_job_is_started_while_leases_cannot_be_renewed(
    runtime: SeededRuntime,
) -> None:
    class Deaf(SharedStore):
        """A store on which only renewals fail."""

        deaf = False

        async def extend(self, owner: str, tokens: Any) -> Extended:
            if self.deaf:
                raise Unavailable("not now")
            return await super().extend(owner, tokens)

    store = Deaf(runtime)
    farm = Farm(runtime, store)
    one = farm.apps[0]
    async with one, one.worker():
        store.deaf = True
        await asyncio.sleep(GIVE_UP_AFTER + 1)
        ticket = await farm.tasks[0].submit(1)
        await asyncio.sleep(20)
        assert farm.ran == []
        store.deaf = False
        assert await ticket.result(timeout=5) == "one"


@seeded
async def test_a_closed_leader_with_running_code_gives_up_leadership(
    runtime: SeededRuntime,
) -> None:
    farm = Farm(runtime)
    one = farm.apps[0]

    async def stubborn() -> None:
        end = runtime.monotonic() + 100
        while runtime.monotonic() < end:
            try:
                await asyncio.sleep(end - runtime.monotonic())
            except asyncio.CancelledError:
                continue

    call = one.task(name="stubborn")(stubborn)
    async with one, one.worker(drain_timeout=1) as worker:
        await call.submit()
        await until(lambda: worker.running == 1)
        await asyncio.sleep(2)
        assert await farm.store.get_document(LEADER) is not None
    assert await farm.store.get_document(LEADER) is None
    assert [lease.held for lease in await farm.store.leases()] == [1]
    await asyncio.sleep(100)


@seeded
async def test_due_jobs_that_cannot_be_promoted_do_not_make_the_leader_spin(
    runtime: SeededRuntime,
) -> None:
    class Stuck(SharedStore):
        promotes = 0

        async def promote(self, limit: int = 1000) -> Promoted:
            self.promotes += 1
            return Promoted(0, 0, 0.0)

    store = Stuck(runtime)
    async with StoreApp(store, runtime):
        await asyncio.sleep(10)
    assert 100 <= store.promotes <= 1100


@seeded
async def test_on_dead_is_called_by_the_process_that_reaps_a_dead_job(
    runtime: SeededRuntime,
) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    dead: list[str] = []
    two.pool("default", on_dead=lambda job: dead.append(job.id))
    worker = await one.worker(2).start()
    tickets = [
        await farm.tasks[0].with_options(on_crash=what).submit(FOREVER)
        for what in ("fail", "rerun")
    ]
    await until(lambda: farm.ran == ["one", "one"])
    async with two, two.worker(1):
        await farm.kill(one)
        await until_later(lambda: bool(dead), runtime)
        assert dead == [tickets[0].id]
        await asyncio.sleep(1)
        assert [event.job.id for event in farm.heard.of(JobEnded)] == dead
        found = await two.get(tickets[1].id)
        assert found is not None
        await found.cancel()
    await worker.drain(0)


@seeded
async def test_a_store_outage_expires_no_owner(runtime: SeededRuntime) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    async with one, two, one.worker(1):
        ticket = await farm.tasks[0].submit(5)
        await until(lambda: farm.ran == ["one"])
        owners = {lease.owner.id for lease in await farm.store.leases()}
        farm.store.down = True
        await asyncio.sleep(60)
        farm.store.down = False
        # No process could renew; the first one that looks must not count the others as dead.
        assert await ticket.result(timeout=10) == "one"
        await asyncio.sleep(20)
        assert {lease.owner.id for lease in await farm.store.leases()} == owners
    assert farm.heard.of(OwnerReaped) == []
    assert ticket.snapshot().crashes == 0


@seeded
async def test_concurrent_renewals_of_an_expired_owner_create_one_new_owner(
    runtime: SeededRuntime,
) -> None:
    farm = Farm(runtime)
    one, _ = farm.apps
    async with one:
        connection = await one.core.connection()
        await bury_all(one)
        farm.store.lag = lambda: runtime.random.random()
        renew = connection.heartbeat.renew
        await connection.thread.ask(lambda: asyncio.gather(*(renew() for _ in range(5))))
        farm.store.lag = None
        leases = await connection.store.leases()
        living = [lease.owner.id for lease in leases if not lease.expired]
        assert living == [connection.heartbeat.owner.id]


@seeded
async def test_a_job_that_dies_with_its_machine_is_reported_by_an_app_without_a_worker(
    runtime: SeededRuntime,
) -> None:
    farm = Farm(runtime)
    one, two = farm.apps
    async with two, one.worker():
        ticket = await farm.tasks[0].with_options(on_crash="fail").submit(FOREVER)
        await until(lambda: farm.ran == ["one"])
        await farm.kill(one)
        await until_later(lambda: bool(farm.heard.of(OwnerReaped)), runtime)
        await until(lambda: bool(farm.heard.of(JobEnded)))
    (ended,) = farm.heard.of(JobEnded)
    assert (ended.job.id, ended.job.status) == (ticket.id, Status.FAILED)


@seeded
async def test_a_process_counts_as_working_while_it_has_a_worker(runtime: SeededRuntime) -> None:
    farm = Farm(runtime)
    one, _ = farm.apps

    async def works() -> list[bool]:
        return [lease.owner.works for lease in await farm.store.leases()]

    async with one:
        await one.core.connection()
        assert await works() == [False]
        farm.store.down = True
        async with one.worker():
            await asyncio.sleep(3)
            farm.store.down = False
            await asyncio.sleep(3)
            assert await works() == [True]
        await asyncio.sleep(1)
        assert await works() == [False]


@seeded
async def test_a_process_publishes_the_pools_its_workers_serve(runtime: SeededRuntime) -> None:
    farm = Farm(runtime)
    one, _ = farm.apps

    async def served(pool: str) -> bool:
        (lease,) = await farm.store.leases()
        return lease.owner.serves(pool)

    async with one:
        async with one.worker():
            await asyncio.sleep(6)
            assert [await served("default"), await served("later")] == [True, False]
            one.pool("later")
            await asyncio.sleep(6)
            assert await served("later")
            async with one.worker(pools=["more"]):
                await asyncio.sleep(6)
                assert [await served("more"), await served("default")] == [True, True]
        await asyncio.sleep(6)
        assert not await served("default")


@seeded
async def test_while_many_jobs_are_old_the_leader_keeps_pruning(runtime: SeededRuntime) -> None:
    class Old(SharedStore):
        """Has enough old jobs for ten sweeps."""

        sweeps = 0

        async def prune(self, keep: Keep, limit: int = 1000) -> int:
            self.sweeps += 1
            return limit if self.sweeps < 10 else 0

    store = Old(runtime)
    farm = Farm(runtime, store)
    async with farm.apps[0] as app:
        await app.core.connection()
        await asyncio.sleep(3)
        assert store.sweeps == 10
        await asyncio.sleep(30)
        assert store.sweeps == 10
        await asyncio.sleep(40)
        assert store.sweeps == 11
