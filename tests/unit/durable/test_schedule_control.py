"""Schedules with arguments: paused, resumed and triggered from any process."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from poolhand import App, PoolhandError, UsageError, fail_fast
from poolhand.contract import Put
from poolhand.durable.client.task import Task
from poolhand.durable.connection.connection import store_proxy
from poolhand.durable.scheduled_call import CALLS, DOCUMENTS, PAUSES, SchedulePause
from poolhand.operate.actions import Operator
from poolhand.settings import Wire
from poolhand.testing import SeededRuntime
from poolhand.wire.envelope import KeyRing
from tests.unit.durable.support import SharedStore, StoreApp, seeded
from tests.unit.pool.support import large

BY = "anna"


def noting(app: App, ran: list[Any], *kept: Any, **named: Any) -> Task[..., Any, Any]:
    """Note the arguments of a ten-second schedule when it runs."""

    @app.every(10, args=kept, kwargs=named)
    @app.task(name="note")
    async def note(*args: Any, **kwargs: Any) -> None:
        ran.append((args, kwargs))

    return note


def bare(app: App) -> Operator:
    """Return the operator of a command, which has only the store."""
    return Operator(store_proxy(app.core), app.core.runtime)


@seeded
async def test_a_scheduled_task_is_called_with_its_arguments(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    ran: list[tuple[str, int]] = []

    @app.task(name="report")
    async def report(tenant: str, depth: int = 1) -> None:
        ran.append((tenant, depth))

    app.every(10, args=("acme",))(report)
    app.every(10, args=["globex"], kwargs={"depth": 3})(report)
    async with app, app.worker():
        await asyncio.sleep(25)
        first, second = await app.operator().schedules()
    assert sorted(ran) == [("acme", 1)] * 2 + [("globex", 3)] * 2
    assert {first.arguments, second.arguments} == {"'acme'", "'globex', depth=3"}
    assert first.id != second.id
    assert first.id.startswith("report:every 10 s#")


def test_equal_arguments_are_the_same_schedule_in_any_form() -> None:
    app = App("memory://")

    @app.task(name="report")
    async def report(tenant: str = "", depth: int = 1) -> None: ...

    app.every(10, args=("acme",))(report)
    app.every(10, kwargs={"tenant": "acme"})(report)
    app.every(10)(report)
    assert len(app._scheduler._timed) == 2
    assert "report:every 10 s" in app._scheduler._timed


@pytest.mark.parametrize(
    ("args", "kwargs", "fault"),
    [
        ((), {}, "missing a required argument: 'tenant'"),
        (("a", 2, 3), {}, "too many positional arguments"),
        (("a",), {"dpeth": 3}, "unexpected keyword argument 'dpeth'"),
        ((5,), {}, "Expected `str`, got `int`"),
        (("a",), {"depth": "deep"}, "Expected `int`, got `str`"),
        ((object(),), {}, "a call of report"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_declaration(
    args: Any, kwargs: Any, fault: str
) -> None:
    app = App("memory://")

    @app.task(name="report")
    async def report(tenant: str, depth: int = 1) -> None: ...

    call = {"args": args, "kwargs": kwargs}
    for maker in (app.cron("@daily", **call), app.every(9, **call)):
        with pytest.raises(PoolhandError, match=fault):
            maker(report)
    assert app._scheduler._timed == {}


def test_a_type_that_is_defined_later_is_checked_when_a_worker_starts() -> None:
    app = App("memory://")

    @app.every(10, args=(5,))
    @app.task(name="later")
    async def later(value: Later) -> None: ...

    class Later(msgspec.Struct):
        name: str

    later.fn.__globals__["Later"] = Later
    try:
        with pytest.raises(UsageError, match="Expected `object`, got `int`"):
            app.worker()
    finally:
        del later.fn.__globals__["Later"]


@seeded
async def test_a_paused_schedule_is_paused_in_all_processes_and_after_a_restart(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    ran: list[Any] = []
    apps = [StoreApp(store, runtime) for _ in range(2)]
    for app in apps:
        noting(app, ran)
    async with apps[0], apps[1], apps[0].worker(), apps[1].worker():
        await asyncio.sleep(25)
        view = await apps[0].operator().pause_schedule("note", BY)
        assert view is not None
        assert (view.paused, view.next) == (True, None)
        before = len(ran)
        await asyncio.sleep(60)
    again = StoreApp(store, runtime)
    noting(again, ran)
    async with again, again.worker():
        await asyncio.sleep(60)
        assert len(ran) == before >= 2
        (seen,) = await again.operator().schedules()
        assert seen.paused


@seeded
async def test_a_pause_is_renewed_while_its_schedule_is_declared_and_no_longer(
    runtime: SeededRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poolhand.durable.scheduler.RENEW_EVERY", timedelta(seconds=30))
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    app.every(timedelta(days=300))(app.task(name="rare")(_pass))
    async with app:
        async with app.worker():
            await asyncio.sleep(3)
            await app.operator().pause_schedule("rare", BY)
            begun = _kept_until(store, PAUSES)
            await asyncio.sleep(100)
            renewed = _kept_until(store, PAUSES)
            assert 60 < renewed - begun <= 103
            assert _kept_until(store, CALLS) == pytest.approx(renewed, abs=1)
        await asyncio.sleep(100)
        assert _kept_until(store, PAUSES) == renewed
        (seen,) = await app.operator().schedules()
        assert seen.paused


@seeded
async def test_a_renewal_does_not_pause_a_schedule_again(
    runtime: SeededRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poolhand.durable.scheduler.RENEW_EVERY", timedelta(seconds=1))
    store = SharedStore(runtime)
    store.lag = lambda: runtime.random.uniform(0, 0.3)
    app = StoreApp(store, runtime)
    noting(app, [])
    async with app, app.worker():
        await asyncio.sleep(3)
        operator = app.operator()
        for _ in range(5):
            await operator.pause_schedule("note", BY)
            await asyncio.sleep(runtime.random.uniform(0.5, 1.5))
            await operator.resume_schedule("note", BY)
            await asyncio.sleep(2)
            (seen,) = await operator.schedules()
            assert not seen.paused


@pytest.mark.parametrize("paused", [True, False])
@seeded
async def test_a_schedule_name_means_the_declared_schedule_not_a_replaced_one(
    runtime: SeededRuntime, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    monkeypatch.setattr("poolhand.operate.schedules.STALE", timedelta(seconds=60))
    store = SharedStore(runtime)
    old, new = StoreApp(store, runtime), StoreApp(store, runtime)
    noting(old, [], "acme")
    noting(new, [], "globex")
    async with old, new:
        async with old.worker():
            await asyncio.sleep(12)
            if paused:
                await old.operator().pause_schedule("note", BY)
        async with new.worker():
            await asyncio.sleep(12)
            operator = new.operator()
            with pytest.raises(UsageError, match="has 2 schedules"):
                await operator.pause_schedule("note", BY)
            await asyncio.sleep(90)
            done = await operator.pause_schedule("note", BY)
            assert done is not None
            assert done.arguments == "'globex'"
        # Without a worker the name may mean any of them.
        await asyncio.sleep(90)
        with pytest.raises(UsageError, match="has 2 schedules"):
            await operator.resume_schedule("note", BY)
        assert await operator.resume_schedule(done.id, BY) is not None


@pytest.mark.slow
@pytest.mark.parametrize("works", [True, False])
@seeded
@large
async def test_a_resumed_schedule_continues_with_its_next_moment(
    runtime: SeededRuntime, works: bool
) -> None:
    store = SharedStore(runtime)
    ran: list[Any] = []
    app = StoreApp(store, runtime)
    noting(app, ran)
    async with app:
        operator = app.operator()
        async with app.worker():
            await asyncio.sleep(3)
            await operator.pause_schedule("note", BY)
            await asyncio.sleep(60 if works else 0)
        await asyncio.sleep(3_600)
        resumed = await operator.resume_schedule("note", BY)
        assert resumed is not None
        assert not resumed.paused
        at = runtime.wall()
        async with app.worker():
            await asyncio.sleep(1)
            (seen,) = await operator.schedules()
            assert seen.next is not None
            if seen.next > at + timedelta(seconds=1):
                assert ran == []
            await asyncio.sleep(10)
        assert len(ran) == 1


@seeded
async def test_pausing_twice_is_one_pause_and_all_actions_are_audited(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    noting(app, [])
    async with app, app.worker():
        await asyncio.sleep(3)
        operator = app.operator()
        for _ in range(2):
            await operator.pause_schedule("note", BY)
        answer = await operator.trigger_schedule("note", "bert")
        await operator.resume_schedule("note:every 10 s", BY)
        assert answer is not None
        lines = await operator.last_audit(kind="schedule_")
        assert [(one.kind, one.by, one.text, one.job) for one in lines] == [
            ("schedule_pause", BY, "note:every 10 s", None),
            ("schedule_trigger", "bert", "note:every 10 s", answer.new_id),
            ("schedule_resume", BY, "note:every 10 s", None),
        ]


@seeded
async def test_a_trigger_submits_one_job_with_the_arguments_each_time(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    ran: list[Any] = []
    noting(app, ran, "acme", depth=3)
    async with app:
        async with app.worker():
            await asyncio.sleep(3)
        ids = list[str]()
        for operator in (app.operator(), bare(app), bare(app)):
            answer = await operator.trigger_schedule("note", BY)
            assert answer is not None
            assert answer.done
            ids.append(str(answer.new_id))
        ran.clear()
        async with app.worker():
            for id in ids:
                ticket = await app.get(id)
                assert ticket is not None
                await ticket
        job = await bare(app).job(ids[-1])
        assert job is not None
        assert (job.name, job.submitted_by, job.idempotency_key) == ("note", BY, None)
    assert len(set(ids)) == 3
    assert ran[:3] == [(("acme",), {"depth": 3})] * 3


@seeded
async def test_a_trigger_refused_by_the_pool_is_reported(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    app.pool("one", max_concurrent=1, backpressure=fail_fast())

    @app.every(3_600)
    @app.task(name="slow", pool="one")
    async def slow() -> None:
        await asyncio.sleep(30)

    async with app, app.worker():
        await asyncio.sleep(3)
        await slow.submit()
        await asyncio.sleep(1)
        answer = await app.operator().trigger_schedule("slow", BY)
        assert answer is not None
        assert not answer.done
        assert "pool 'one' is full (1 running" in answer.text
        assert await app.operator().last_audit(kind="schedule_") == []


@seeded
async def test_a_call_that_is_signed_is_triggered_only_where_the_keys_are(
    runtime: SeededRuntime,
) -> None:
    ring = KeyRing({"k": b"k" * 32}, current="k")
    app = App("memory://", runtime=runtime, wire=Wire(ring=ring))
    ran: list[Any] = []
    noting(app, ran, "acme")
    async with app, app.worker():
        await asyncio.sleep(3)
        (schedule,) = await app.operator().schedules()
        with pytest.raises(UsageError, match="signs its calls, and no keys are here") as raised:
            await bare(app).trigger_schedule("note", BY)
        assert f"trigger_schedule({schedule.id!r}, by=…)" in raised.value.message
        answer = await app.operator().trigger_schedule("note", BY)
        assert answer is not None
        ticket = await app.get(str(answer.new_id))
        assert ticket is not None
        await ticket
    assert ran == [(("acme",), {})]


@seeded
async def test_a_schedule_that_an_older_version_wrote_can_be_seen_and_paused(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    ran: list[Any] = []
    noting(app, ran)
    async with app, app.worker():
        await asyncio.sleep(3)
    document = await store.get_document(f"{DOCUMENTS}note:every 10 s")
    assert document is not None
    old = msgspec.json.decode(document[0])
    del old["arguments"]
    await store.put([Put(f"{CALLS}note:every 10 s", None)])
    await store.put([_put(f"{DOCUMENTS}note:every 10 s", old)])
    operator = Operator(store, runtime)
    (seen,) = await operator.schedules()
    assert (seen.task, seen.arguments, seen.paused) == ("note", "", False)
    with pytest.raises(UsageError, match="no worker of this version of poolhand has run it"):
        await operator.trigger_schedule("note", BY)
    paused = await operator.pause_schedule("note", BY)
    assert paused is not None
    assert paused.paused


@pytest.mark.parametrize("act", ["pause_schedule", "resume_schedule", "trigger_schedule"])
@seeded
async def test_an_ambiguous_schedule_or_a_missing_actor_is_refused(
    runtime: SeededRuntime, act: str
) -> None:
    app = App("memory://", runtime=runtime)
    app.every(10, args=(7,))(noting(app, []))
    async with app, app.worker():
        await asyncio.sleep(3)
        do = getattr(app.operator(), act)
        assert await do("nothing", BY) is None
        with pytest.raises(
            UsageError, match=r"task 'note' has 2 schedules; .*\(no arguments\).*\(7\)"
        ):
            await do("note", BY)
        with pytest.raises(UsageError, match="by="):
            await do("note:every 10 s", "")
        assert await do("note:every 10 s", BY) is not None


@seeded
async def test_a_pause_record_of_a_newer_version_stops_no_schedule(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    app = StoreApp(store, runtime)
    ran: list[Any] = []
    noting(app, ran)
    async with app, app.worker():
        await store.put([_put(f"{PAUSES}note:every 10 s", {"state": "resting"})])
        await asyncio.sleep(12)
        assert len(ran) >= 1
        (seen,) = await app.operator().schedules()
        assert not seen.paused


def _kept_until(store: SharedStore, kind: str) -> float:
    """Return when the only document of a kind is deleted unless it is renewed."""
    ((until,),) = store.query("SELECT until FROM poolhand_documents WHERE key LIKE ?", f"{kind}%")
    return float(until)


async def _pass() -> None: ...


def _put(key: str, value: object) -> Put:
    return Put(key, msgspec.json.encode(value))


def test_a_pause_skips_moments_until_it_ends() -> None:
    at = datetime.fromisoformat("2030-05-01T12:00Z")
    now = at + timedelta(hours=1)
    assert SchedulePause(True, at, BY).until(now) == now
    assert SchedulePause(False, at, BY).until(now) == at


@seeded
async def test_the_last_moment_of_a_schedule_stays_while_it_is_paused(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    noting(app, [])
    async with app, app.worker():
        await asyncio.sleep(12)
        operator = app.operator()
        await operator.pause_schedule("note", BY)
        (before,) = await operator.schedules()
        await asyncio.sleep(60)
        (paused,) = await operator.schedules()
        assert paused.last == before.last
        resumed = await operator.resume_schedule("note", BY)
        assert resumed is not None
        assert resumed.last == before.last
        await asyncio.sleep(12)
        (after,) = await operator.schedules()
        assert after.last > before.last
