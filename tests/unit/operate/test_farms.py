"""Farms: their views, and requests to them with their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from poolhand import App
from poolhand.contract import LogLine, Owner, Put, Store
from poolhand.errors import Unavailable, UsageError
from poolhand.farm.records import (
    ANSWERS,
    FARMS,
    KEEP,
    REQUESTS,
    TOPIC,
    ControlAnswer,
    ControlKind,
    ControlRequest,
    FarmRecord,
    FarmState,
    Snapshot,
    WorkerRecord,
    WorkerState,
    write,
)
from poolhand.operate import farms
from poolhand.operate.actions import Operator
from poolhand.operate.views import AuditView
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.store import MemoryStore, SqliteStore
from tests.unit.operate.world import START, Clock, World, made

FARM = "box-1a2b3c"
WORKER = f"{FARM}.2"
DONE = ControlAnswer(True, "it is done")

Act = Callable[[Operator], Awaitable[ControlAnswer | None]]
ACTS: dict[str, Act] = {
    "drain_farm": lambda operator: operator.drain_farm(FARM, "anna"),
    "drain_worker": lambda operator: operator.drain_worker(WORKER, "anna"),
    "restart_farm": lambda operator: operator.restart_farm(FARM, "anna"),
    "set_bounds": lambda operator: operator.set_bounds(FARM, 2, 5, "anna"),
    "snapshot": lambda operator: operator.snapshot(WORKER, 7, 20),
}


def a_worker(number: int, pid: int = 200, **more: Any) -> WorkerRecord:
    given: dict[str, Any] = {
        "state": WorkerState.READY,
        "slots": 10,
        "active": 3,
        "stuck": 0,
        "completed": 40,
        "failed": 2,
    }
    given |= {"started_at": START, "heard": 0.4, "memory": 52_000_000, "blocked": 0.0}
    return WorkerRecord(f"{FARM}.{number}", pid, **{**given, **more})


def a_farm(id: str = FARM, *workers: WorkerRecord, **more: Any) -> FarmRecord:
    given: dict[str, Any] = {"host": "box/1", "pid": 100, "app": "shop:app"}
    given |= {"state": FarmState.RUNNING, "started_at": START, "written_at": START}
    given |= {"minimum": 1, "maximum": 10, "prefetch": 10, "external": False, "wanted": 1}
    given |= {"demand": 3, "capacity": 10, "queued": 0, "completed": 40, "failed": 2}
    return FarmRecord(id, **{**given, **more}, workers=workers)


async def write_down(store: Store, *records: FarmRecord) -> None:
    """Write the records of supervisors."""
    await store.put([Put(f"{FARMS}{one.id}", write(one), ttl=KEEP) for one in records])


@asynccontextmanager
async def farming(
    store: Store, answer: ControlAnswer = DONE, farm: str = FARM
) -> AsyncIterator[list[ControlRequest]]:
    """Answer all requests as a supervisor does; return them."""
    found: list[ControlRequest] = []
    heard = asyncio.Event()
    end = store.subscribe(lambda topic: heard.set() if topic == TOPIC else None)

    async def supervise() -> None:
        while True:
            for key in await store.scan(f"{REQUESTS}{farm}/"):
                kept = await store.get_document(key)
                wish = None if kept is None else kept.read(ControlRequest)
                if wish is not None:
                    found.append(wish)
                    await store.put([Put(f"{ANSWERS}{wish.id}", write(answer), ttl=KEEP)])
                await store.put([Put(key, None)])
                store.publish(TOPIC)
            await heard.wait()
            heard.clear()

    task = asyncio.create_task(supervise())
    try:
        yield found
    finally:
        end()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def left_behind(store: Store) -> list[str]:
    return await store.scan(REQUESTS) + await store.scan(ANSWERS)


# Views


async def test_farms_are_listed_by_id_without_undecodable_records(world: World) -> None:
    assert await world.operator.farms() == []
    second, first = a_farm("box-ffffff", a_worker(1)), a_farm("ash-ffffff")
    await write_down(world.store, second, first)
    await world.store.put([Put(f"{FARMS}box-1a2b3c", b'{"id": "box-1a2b3c"}')])
    assert await world.operator.farms() == [first, second]
    assert await world.operator.farm("box-ffffff") == second
    assert await world.operator.farm(FARM) is None


async def test_signals_of_workers_age_with_the_record_and_a_supervisor_falls_silent(
    world: World,
) -> None:
    record = write(a_farm(FARM, a_worker(1, heard=0.5)))
    for age, silent in ((0.0, False), (3.0, False), (9.0, True), (12.0, True)):
        # As if it had been written that long ago.
        await world.store.put([Put(f"{FARMS}{FARM}", record, ttl=KEEP - age)])
        farm = await seen(world)
        assert farm.age == pytest.approx(age, abs=1.0)
        assert farm.workers[0].heard == pytest.approx(farm.age + 0.5)
        assert farm.is_silent is silent


async def seen(world: World) -> FarmRecord:
    farm = await world.operator.farm(FARM)
    assert farm is not None
    return farm


async def test_more_farms_are_seen_than_are_read_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farms, "AT_ONCE", 2)
    made = [a_farm(f"box-00000{number}") for number in range(5)]
    await write_down(world.store, *made)
    assert await world.operator.farms() == made


async def test_workers_without_a_farm_are_listed_beside_those_of_farms(world: World) -> None:
    hired, lone, elsewhere = (
        Owner("hired", "box/1", "b", 200, "1", works=True),
        Owner("lone", "box/1", "b", 201, "1", works=True),
        Owner("elsewhere", "ash/1", "b", 200, "1", works=True),
    )
    submits = replace(lone, id="submits", pid=202, works=False)
    host, boot, *_ = world.runtime.identity()
    gone = Owner("gone", host, boot, 2**22 + 1, "1", works=True)
    for owner in (hired, lone, elsewhere, submits, gone):
        await world.enroll(owner)
    farm = a_farm(FARM, a_worker(1, 200))
    await write_down(world.store, farm)
    view = await world.operator.workers()
    assert view.farms == (farm,)
    assert [(one.id, one.host, one.pid) for one in view.alone] == [
        ("elsewhere", "ash/1", 200),
        ("lone", "box/1", 201),
    ]


# Control


@pytest.mark.parametrize(
    ("act", "wish"),
    [
        ("drain_farm", ControlRequest("", ControlKind.DRAIN, "anna")),
        ("drain_worker", ControlRequest("", ControlKind.DRAIN, "anna", WORKER)),
        ("restart_farm", ControlRequest("", ControlKind.RESTART, "anna")),
        ("set_bounds", ControlRequest("", ControlKind.BOUNDS, "anna", minimum=2, maximum=5)),
        ("snapshot", ControlRequest("", ControlKind.SNAPSHOT, "", WORKER, after=7, limit=20)),
    ],
)
async def test_a_control_request_returns_the_answer_of_the_farm(
    world: World, act: str, wish: ControlRequest
) -> None:
    await write_down(world.store, a_farm(), a_farm("box-1a2b3d"))
    answer = ControlAnswer(True, "fine", Snapshot(FARM, WORKER, (), (), after=27))
    async with (
        farming(world.store, answer) as wishes,
        farming(world.store, DONE, "box-1a2b3d") as of_another,
    ):
        assert await ACTS[act](world.operator) == answer
    assert [replace(one, id="") for one in wishes] == [wish]
    assert of_another == []
    assert await left_behind(world.store) == []


@pytest.mark.parametrize(
    ("act", "kind", "text"),
    [
        ("drain_farm", "farm_drain", f"farm {FARM}"),
        ("drain_worker", "farm_drain", f"worker {WORKER}"),
        ("restart_farm", "farm_restart", f"farm {FARM}"),
        ("set_bounds", "farm_bounds", f"farm {FARM}: at least 2, at most 5 workers"),
    ],
)
async def test_every_action_is_audited_with_its_actor(
    world: World, act: str, kind: str, text: str
) -> None:
    await world.add()
    await write_down(world.store, a_farm())
    async with farming(world.store):
        await ACTS[act](world.operator)
    await world.add()
    lines = await world.operator.audit(0)
    assert [one.number for one in lines] == list(range(1, len(lines) + 1))
    (line,) = [one for one in lines if one.kind.startswith("farm")]
    assert lines[-1].number > line.number
    assert line == AuditView(
        line.number, START, kind, None, None, "anna", text, {**line.record, "by": "anna"}
    )
    assert line.record["schema"] == f"poolhand.{kind}.v1"
    assert await world.operator.last_audit(kind="farm_") == [line]


@pytest.mark.parametrize(
    ("minimum", "maximum", "words"),
    [(3, None, "at least 3"), (None, 4, "at most 4"), (0, 1, "at least 0, at most 1")],
)
async def test_a_bound_that_is_not_given_stays(
    minimum: int | None, maximum: int | None, words: str
) -> None:
    async with made() as world:
        await write_down(world.store, a_farm())
        async with farming(world.store) as wishes:
            await world.operator.set_bounds(FARM, minimum, maximum, "anna")
        assert [(one.minimum, one.maximum) for one in wishes] == [(minimum, maximum)]
        (line,) = await world.operator.last_audit(kind="farm_bounds")
        assert line.text == f"farm {FARM}: {words} workers"


NO_BOUNDS: tuple[Any, ...] = (
    (None, None), (3, 2), (11, None), (None, 1), (None, 0), (-1, 5), (1, 1001), (True, 5),
    ("1", 5), (1.0, 5), (10**30, 10**30),
)  # fmt: skip


async def test_bounds_that_no_farm_can_have_are_refused() -> None:
    async with made() as world:
        await write_down(world.store, a_farm(minimum=2))
        for minimum, maximum in NO_BOUNDS:
            with pytest.raises(UsageError, match="minimum"):
                await world.operator.set_bounds(FARM, minimum, maximum, "anna")
        assert await left_behind(world.store) == []
        assert await world.operator.audit(world.audited_before) == []
        with pytest.raises(UsageError, match="where there are 2 to 10 workers"):
            await world.operator.set_bounds(FARM, None, 1, "anna")


@pytest.mark.parametrize("act", ACTS)
async def test_no_control_request_is_sent_to_an_unknown_farm(world: World, act: str) -> None:
    await write_down(world.store, a_farm("box-000000"))
    assert await ACTS[act](world.operator) is None
    assert await left_behind(world.store) == []
    assert await world.operator.audit(world.audited_before) == []


NO_IDS: tuple[Any, ...] = (
    "", "box", FARM.upper(), f"{FARM}.", f"{FARM}.x", f"../{FARM}", f"a\x1b-{FARM}", None, 7,
)  # fmt: skip


async def test_an_unknown_farm_or_worker_id_is_not_found() -> None:
    async with made() as world:
        operator = world.operator
        for id in NO_IDS:
            await write_down(world.store, a_farm(str(id)))
            if not isinstance(id, str):
                with pytest.raises(UsageError, match="it must be a text"):
                    await operator.farm(id)
                continue
            assert await operator.farm(id) is None
            assert await operator.drain_farm(id, "anna") is None
            assert await operator.drain_worker(id, "anna") is None
            assert await operator.snapshot(id) is None
            assert await operator.set_bounds(id, 1, 2, "anna") is None


async def test_a_worker_id_is_not_a_farm_id_and_vice_versa() -> None:
    async with made() as world:
        await write_down(world.store, a_farm(FARM, a_worker(2)), replace(a_farm(), id=WORKER))
        assert await world.operator.farm(WORKER) is None
        assert await world.operator.drain_farm(WORKER, "anna") is None
        assert await world.operator.restart_farm(WORKER, "anna") is None
        assert await world.operator.set_bounds(WORKER, 1, 2, "anna") is None
        assert await world.operator.drain_worker(FARM, "anna") is None
        assert await left_behind(world.store) == []


async def test_a_control_request_without_an_actor_is_refused() -> None:
    async with made() as world:
        await write_down(world.store, a_farm())
        operator = world.operator
        nobody: Any
        for nobody in ("", " ", "a\0b", None):
            for act in (
                operator.drain_farm(FARM, nobody),
                operator.drain_worker(WORKER, nobody),
                operator.restart_farm(FARM, nobody),
                operator.set_bounds(FARM, 1, 2, nobody),
            ):
                with pytest.raises(UsageError, match="the name of the actor"):
                    await act
        with pytest.raises(UsageError, match="limit=0"):
            await operator.snapshot(FARM, limit=0)


# Problems


async def test_a_farm_that_does_not_answer_is_asked_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farms, "ANSWER_WITHIN", 0.05)
    await write_down(world.store, a_farm())
    with pytest.raises(Unavailable, match=f"farm '{FARM}' did not answer .* workers list"):
        await world.operator.drain_farm(FARM, "anna")
    assert await left_behind(world.store) == []
    (line,) = await world.operator.audit(world.audited_before)
    assert (line.by, line.text) == ("anna", f"farm {FARM}")


class AnsweredLate(MemoryStore):
    """A store in which a farm answers a request at the moment it is withdrawn."""

    async def put(
        self, puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
    ) -> tuple[int, ...] | None:
        for one in puts:
            if one.value is None and one.key.startswith(REQUESTS):
                await super().put([Put(f"{ANSWERS}{one.key.rpartition('/')[2]}", write(DONE))])
        return await super().put(puts, token, log)


async def test_an_answer_at_the_timeout_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farms, "ANSWER_WITHIN", 0.0)
    async with made(AnsweredLate(Clock())) as world:
        await write_down(world.store, a_farm())
        assert await world.operator.restart_farm(FARM, "anna") == DONE
        assert await left_behind(world.store) == []


async def test_an_answer_of_a_newer_farm_is_reported_as_such() -> None:
    async with made() as world:
        await write_down(world.store, a_farm())
        newer: Any = ControlRequest("", ControlKind.DRAIN, "")
        async with farming(world.store, newer):
            with pytest.raises(Unavailable, match="cannot decode; use the version"):
                await world.operator.drain_farm(FARM, "anna")


async def test_a_farm_in_another_process_answers(tmp_path: Path) -> None:
    path, runtime = tmp_path / "jobs.db", Runtime()
    here, there = SqliteStore(path, runtime), SqliteStore(path, runtime)
    await here.open()
    await there.open()
    try:
        await write_down(there, a_farm())
        async with farming(there) as wishes:
            assert await Operator(here, runtime).drain_farm(FARM, "anna") == DONE
        assert len(wishes) == 1
    finally:
        await there.close()
        await here.close()


async def test_the_operator_of_an_app_controls_a_farm(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    there = SqliteStore(tmp_path / "jobs.db", Runtime())
    operator = app.operator()
    async with app:
        assert await operator.farms() == []
        await there.open()
        try:
            await write_down(there, a_farm())
            async with farming(there) as wishes:
                assert await operator.restart_farm(FARM, "anna") == DONE
            assert len(wishes) == 1
            (line,) = await operator.last_audit(kind="farm_restart")
            assert line.by == "anna"
        finally:
            await there.close()
