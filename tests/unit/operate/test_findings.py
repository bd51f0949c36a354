"""Findings about a store, and their fixes."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from poolhand.contract import Change, Owner
from poolhand.errors import Unavailable
from poolhand.operate.doctor import examine
from poolhand.operate.store_findings import NO_SPACE, Finding, Level
from poolhand.rules import lifecycle
from poolhand.runtime import Runtime, process_started
from poolhand.stores.sqlite.store import MemoryStore
from tests.unit.operate.world import Clock, World

GONE_PID = 2**22 + 1  # above the largest pid of Linux


class Kept(MemoryStore):
    """A memory store that keeps its data when it is closed, as a file does."""

    async def close(self) -> None:
        pass


async def found(store: MemoryStore, runtime: Runtime) -> dict[str, Finding]:
    findings = await examine(store, runtime)
    return {finding.check: finding for finding in findings}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def world(clock: Clock) -> AsyncIterator[World]:
    store = Kept(clock)
    await store.open()
    yield World(store, clock)
    await MemoryStore.close(store)


async def look(world: World) -> dict[str, Finding]:
    assert isinstance(world.store, MemoryStore)
    return await found(world.store, world.runtime)


async def test_a_healthy_store_has_only_good_findings(world: World) -> None:
    await world.add()
    await world.claim()
    findings = await look(world)
    assert list(findings) == ["store", "clock", "leases", "jobs", "schedule", "sessions"]
    assert {finding.level for finding in findings.values()} == {Level.OK}


async def test_jobs_without_a_worker_are_found(world: World) -> None:
    await world.add()
    await world.add(pool="other")
    finding = (await look(world))["jobs"]
    assert (finding.level, finding.text) == (
        Level.WRONG,
        "2 jobs wait and no worker is connected",
    )
    assert finding.fix == "start a worker of the app"


async def test_jobs_in_a_pool_that_no_worker_serves_are_found(world: World) -> None:
    await world.add()
    await world.add(pool="other")
    await world.enroll(replace(world.worker, pools=("chat", "more")))
    finding = (await look(world))["jobs"]
    assert (finding.level, finding.text) == (
        Level.WRONG,
        "1 job waits in pool 'other', which no worker that is connected serves",
    )
    assert "give one pools=['other']" in str(finding.fix)
    await world.enroll(replace(world.worker, id="w-2"))
    assert (await look(world))["jobs"].level is Level.OK


async def test_a_paused_pool_with_jobs_is_reported_with_the_resume_command(
    world: World,
) -> None:
    await world.add()
    await world.enroll()
    await world.operator.pause("chat", "anna")
    finding = (await look(world))["jobs"]
    assert finding.level is Level.WARN
    assert finding.text == "1 job waits in pool 'chat', which is paused"
    assert finding.fix == "`poolhand pools resume chat` lets them run"


async def test_jobs_of_a_paused_pool_need_no_worker(world: World) -> None:
    await world.add()
    await world.operator.pause("chat", "anna")
    assert (await look(world))["jobs"].level is Level.WARN


@pytest.mark.parametrize("gone", ["the process", "the boot"])
async def test_a_dead_owner_that_holds_jobs_is_found(world: World, gone: str) -> None:
    host, boot, _, started = world.runtime.identity()
    if gone == "the process":
        world.worker = Owner("w-1", host, boot, GONE_PID, started)
    else:
        world.worker = Owner("w-1", host, "another boot", os.getpid(), started)
    await world.add()
    await world.claim()
    finding = (await look(world))["leases"]
    assert finding.level is Level.WRONG
    pid = world.worker.pid
    assert finding.text == f"1 dead owner ({host} pid {pid}) still holding 1 job"
    assert finding.fix is not None


async def test_an_owner_whose_pid_was_reused_counts_as_dead(world: World) -> None:
    host, boot, pid, started = world.runtime.identity()
    assert process_started(pid) == started
    world.worker = Owner("w-1", host, boot, pid, started + "0")
    await world.add()
    await world.claim()
    assert (await look(world))["leases"].level is Level.WRONG


async def test_an_owner_that_ended_without_closing_its_app_and_holds_nothing_is_no_finding(
    world: World,
) -> None:
    host, boot, _, started = world.runtime.identity()
    await world.enroll(Owner("gone", host, boot, GONE_PID, started))
    finding = (await look(world))["leases"]
    assert (finding.level, finding.text) == (Level.OK, "0 owners, none of them known to be dead")


async def test_owners_that_are_alive_or_remote_are_fine(world: World) -> None:
    await world.enroll(Owner("far", "another host", "its boot", GONE_PID, "1"))
    await world.add()
    await world.claim()
    finding = (await look(world))["leases"]
    assert (finding.level, finding.text) == (Level.OK, "2 owners, none of them known to be dead")


async def test_a_job_that_waits_with_only_dead_workers_is_found(world: World) -> None:
    await world.enroll(replace(world.worker, id="dead", pid=GONE_PID))
    await world.add()
    assert (await look(world))["jobs"].level is Level.WRONG


async def test_a_clock_that_is_behind_the_store_is_found(world: World, clock: Clock) -> None:
    await world.add()
    await world.claim()
    clock.shift = -3600.0
    finding = (await look(world))["clock"]
    assert finding.level is Level.WRONG
    assert finding.text.startswith("the newest job was submitted 3600 s from now")
    clock.shift = 0.0
    assert (await look(world))["clock"].level is Level.OK


async def test_due_jobs_that_are_not_promoted_are_found(world: World, clock: Clock) -> None:
    await world.add(delay=10.0)
    await world.add(delay=500.0)
    clock.seconds += 65.0
    assert (await look(world))["schedule"].level is Level.OK
    clock.seconds += 10.0
    finding = (await look(world))["schedule"]
    assert (finding.level, finding.text) == (
        Level.WRONG,
        "1 job should have been queued over 60 s ago",
    )


async def test_tasks_that_no_worker_has_are_named(world: World) -> None:
    await world.add()
    (claim,) = await world.claim()
    aside = Change(lifecycle.set_aside(claim.job, "task:billing.charge"), claim.token)
    await world.store.replace([aside])
    findings = await look(world)
    finding = findings["tasks"]
    assert finding.level is Level.WRONG
    # The report must not say beside it that every waiting job has a worker.
    assert "jobs" not in findings
    assert "1 job waits in pool 'chat' for the task 'billing.charge', which no worker" in (
        finding.text
    )
    assert "start a worker whose code registers it" in str(finding.fix)


async def test_keys_that_no_worker_has_are_named(world: World) -> None:
    await world.add()
    (claim,) = await world.claim()
    aside = Change(lifecycle.set_aside(claim.job, "key:2031/billing.charge"), claim.token)
    await world.store.replace([aside])
    finding = (await look(world))["keys"]
    assert finding.level is Level.WARN
    assert finding.text == "1 job waits in pool 'chat' for a worker that has the key '2031'"
    assert "add the key to the key ring of the workers" in str(finding.fix)


class Closed(MemoryStore):
    """A store that does not answer."""

    async def open(self) -> None:
        raise Unavailable("nobody answers; start the server")


async def test_a_store_that_cannot_be_opened_is_one_finding(clock: Clock) -> None:
    (finding,) = await examine(Closed(clock), clock)
    assert (finding.check, finding.level) == ("store", Level.WRONG)
    assert "nobody answers; start the server [PH-STO-001]" in finding.text


class Full(MemoryStore):
    """A store that can be read and not written."""

    async def check(self) -> None:
        raise Unavailable("it takes nothing")


async def test_a_store_that_takes_nothing_is_found(clock: Clock) -> None:
    findings = await found(Full(clock), clock)
    assert findings["store"].level is Level.WRONG
    assert findings["clock"].level is Level.OK


class Filed(MemoryStore):
    """A store with a file whose state the test sets."""

    path = Path("agents.db")
    permissions = 0o600
    numbers = (2, 2)
    broken: tuple[str, ...] = ()
    opened = False

    async def open(self) -> None:
        self.opened = True
        await super().open()

    async def schema(self) -> tuple[int, int]:
        return self.numbers

    async def damage(self) -> list[str]:
        return list(self.broken)


async def test_a_healthy_file_is_the_first_finding(clock: Clock) -> None:
    findings = await found(Filed(clock), clock)
    assert list(findings)[:4] == ["disk", "file", "schema", "permissions"]
    assert findings["schema"].text == "the schema is number 2, the newest"
    assert findings["file"].level is Level.OK


@pytest.mark.parametrize(
    ("numbers", "level", "fix"),
    [
        ((0, 2), Level.WRONG, "check the name, or run `poolhand migrate` to make it one"),
        ((1, 2), Level.WARN, "run `poolhand migrate`, or start the app"),
        ((3, 2), Level.WRONG, "use the newer version of poolhand"),
    ],
    ids=["none", "behind", "ahead"],
)
async def test_another_schema_is_reported_and_not_migrated(
    clock: Clock, numbers: tuple[int, int], level: Level, fix: str
) -> None:
    store = Filed(clock)
    store.numbers = numbers
    finding = (await found(store, clock))["schema"]
    assert (finding.level, finding.fix) == (level, fix)
    assert not store.opened


async def test_a_corrupt_file_is_reported_and_not_changed(clock: Clock) -> None:
    store = Filed(clock)
    store.broken = ("page 3 is torn", "page 4 is torn")
    finding = (await found(store, clock))["file"]
    assert finding.level is Level.WRONG
    assert finding.text == "the file is damaged: page 3 is torn (and 1 more)"
    assert finding.fix is not None
    assert not store.opened


@pytest.mark.parametrize(
    ("free", "level"),
    [(NO_SPACE - 1, Level.WRONG), (NO_SPACE, Level.WARN), (1 << 40, Level.OK)],
    ids=["none", "little", "plenty"],
)
async def test_a_full_disk_is_reported(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, free: int, level: Level
) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 42, 0, free))
    store = Filed(clock)
    assert (await found(store, clock))["disk"].level is level
    assert store.opened
