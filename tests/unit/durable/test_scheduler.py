"""Schedules over a store: each moment runs once, whatever process dies, whatever the clock does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import msgspec
import pytest

from poolhand import App, Session, Ticket, UsageError, bounded, current_job
from poolhand.contract import Filter, LogLine, Put
from poolhand.durable.client.task import Task
from poolhand.durable.scheduled_call import DOCUMENTS, ScheduleRecord
from poolhand.observe.events import JobSubmitted, StoreTrouble, SubmitRefused, SubmitterParked
from poolhand.rules.schedule import EPOCH
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import Gate, Heard, SharedStore, StoreApp, seeded, until

KEY = re.compile(r"schedule:(?P<task>.+?):(?P<text>.+):(?P<moment>\d{4}-.+)")


def key() -> str:
    job = current_job()
    assert job is not None
    return job.idempotency_key or ""


def moment() -> datetime:
    """Return the moment for which the current job runs."""
    found = KEY.fullmatch(key())
    assert found is not None
    return datetime.fromisoformat(found["moment"])


def clock(app: App, ran: list[datetime], seconds: float, missed: str = "once") -> None:
    """Note the moments of an interval."""

    @app.every(seconds, missed=missed)
    @app.task(name="note")
    async def note() -> None:
        ran.append(moment())


def expected(began: datetime, ended: datetime, seconds: int) -> list[datetime]:
    first = int(began.timestamp() // seconds) + 1
    last = int(ended.timestamp() // seconds)
    return [EPOCH + timedelta(seconds=n * seconds) for n in range(first, last + 1)]


@seeded
async def test_each_moment_runs_once_across_all_processes(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    store.lag = lambda: runtime.random.uniform(0, 0.3)
    ran: list[datetime] = []
    apps = [StoreApp(store, runtime) for _ in range(3)]
    for app in apps:
        clock(app, ran, 10)
    async with apps[0], apps[1], apps[2], apps[0].worker(), apps[1].worker(), apps[2].worker():
        began = runtime.wall()
        await asyncio.sleep(105)
        ended = runtime.wall()
    # The first check takes time, too.
    assert ran[-10:] == expected(began, ended, 10)[-10:]
    assert len(ran) in (10, 11)


@seeded
async def test_a_slow_process_never_overwrites_newer_schedule_records(
    runtime: SeededRuntime,
) -> None:
    class Slow(SharedStore):
        lasts: tuple[datetime, ...] = ()

        async def put(
            self, puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
        ) -> tuple[int, ...] | None:
            noted = puts[0].key.startswith(DOCUMENTS)
            if noted:
                await asyncio.sleep(runtime.random.uniform(0, 12))
            written = await super().put(puts, token, log)
            if noted and written:
                record = msgspec.json.decode(puts[0].value or b"", type=ScheduleRecord)
                self.lasts += (record.past.last,)
            return written

    store = Slow(runtime)
    ran: list[datetime] = []
    apps = [StoreApp(store, runtime) for _ in range(3)]
    for app in apps:
        clock(app, ran, 10, "all")
    async with apps[0], apps[1], apps[2], apps[0].worker(), apps[1].worker(), apps[2].worker():
        await asyncio.sleep(300)
    assert len(store.lasts) > 15
    assert list(store.lasts) == sorted(set(store.lasts))
    assert sorted(ran) == expected(min(ran) - timedelta(seconds=1), max(ran), 10)


@seeded
@pytest.mark.parametrize(
    ("name", "seconds", "reports"),
    [("proj.agents.tick", 10, 1), ("other.tick", 10, 0), ("proj.agents.tick", 20, 0)],
)
async def test_a_schedule_that_runs_under_two_names_is_reported(
    runtime: SeededRuntime, name: str, seconds: float, reports: int
) -> None:
    store, heard = SharedStore(runtime), Heard()
    apps = [StoreApp(store, runtime), StoreApp(store, runtime, events=heard.events)]
    for app, known, every in [(apps[0], "agents.tick", 10), (apps[1], name, seconds)]:

        @app.every(every)
        @app.task(name=known)
        async def tick() -> None: ...

    async with apps[0], apps[1], apps[0].worker():
        await asyncio.sleep(15)
        async with apps[1].worker():
            await asyncio.sleep(60)
        found = [one for one in heard.of(StoreTrouble) if "two names" in one.error]
        assert len(found) == reports
        if found:
            names = "proj.agents.tick:every 10 s", "agents.tick:every 10 s"
            assert found[0].what == "schedule of {} and that of {}".format(*names)
    await asyncio.sleep(15)
    # A schedule whose module was renamed is not in use any more.
    async with apps[1], apps[1].worker():
        await asyncio.sleep(15)
    assert len([one for one in heard.of(StoreTrouble) if "two names" in one.error]) == reports


@seeded
async def test_scheduled_jobs_start_on_time(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    late: list[float] = []

    @app.every(7)
    @app.task(name="note")
    async def note() -> None:
        late.append((runtime.wall() - moment()).total_seconds())

    async with app, app.worker():
        await asyncio.sleep(70)
    assert len(late) == 10
    assert max(late) < 0.2


@seeded
async def test_another_process_continues_the_schedules_of_a_dead_one(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    first, second = StoreApp(store, runtime), StoreApp(store, runtime)
    ran: list[datetime] = []
    clock(first, ran, 10)
    clock(second, ran, 10)
    async with second, second.worker():
        await first.core.connection()
        worker = first.worker()
        await worker.start()
        began = runtime.wall()
        await asyncio.sleep(runtime.random.uniform(9, 31))
        first.core.slot.abandon()
        await asyncio.sleep(61)
        ended = runtime.wall()
        worker.hurry(0)
        await worker.drain()
    assert sorted(set(ran))[-6:] == expected(began, ended, 10)[-6:]


@seeded
@pytest.mark.parametrize(
    ("missed", "first"), [("once", [60]), ("skip", []), ("all", [10, 20, 30, 40, 50, 60])]
)
async def test_moments_missed_without_a_worker_run_by_the_missed_policy(
    runtime: SeededRuntime, missed: str, first: list[int]
) -> None:
    store = SharedStore(runtime)
    ran: list[datetime] = []
    began = runtime.wall()
    for pause in (3, 0):
        app = StoreApp(store, runtime)
        clock(app, ran, 3_600, missed)
        async with app, app.worker(slots=1):
            await asyncio.sleep(5)
        assert pause == 0 or ran == []
        await asyncio.sleep(6.2 * 3_600 if pause else 0)
    hours = [int((one - began).total_seconds() // 360) for one in ran]
    assert hours == first


@pytest.mark.slow
@seeded
async def test_too_many_missed_moments_are_reported(runtime: SeededRuntime) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    ran: list[datetime] = []
    clock(app, ran, 10, "all")
    async with app, app.worker():
        await asyncio.sleep(3)
        runtime.wall_offset += 10_100
        await asyncio.sleep(3)
        wanted = expected(runtime.wall() - timedelta(days=1), runtime.wall(), 10)
        assert sorted(ran) == wanted[-1_000:]
    (told,) = [one for one in heard.of(StoreTrouble) if one.what.startswith("schedule of note")]
    assert "more than 1,000 moments were missed" in told.error


@seeded
async def test_a_process_that_dies_between_submit_and_record_submits_nothing_twice(
    runtime: SeededRuntime,
) -> None:
    class Forgetful(SharedStore):
        """Accepts a job, and fails when the moment is recorded."""

        dead = False

        async def put(
            self, puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
        ) -> tuple[int, ...] | None:
            if self.dead and puts[0].key.startswith(DOCUMENTS):
                self.down = True
            return await super().put(puts, token, log)

    store = Forgetful(runtime)
    heard = Heard()
    app = StoreApp(store, runtime, events=heard.events)
    ran: list[datetime] = []
    clock(app, ran, 10)
    async with app, app.worker():
        began = runtime.wall()
        await asyncio.sleep(12)
        store.dead = True
        await asyncio.sleep(10)
        assert store.down
        store.dead = store.down = False
        await asyncio.sleep(30)
        ended = runtime.wall()
        assert ran == expected(began, ended, 10)
    assert len({job.job.id for job in heard.of(JobSubmitted)}) == len(ran)


@seeded
async def test_an_unavailable_store_is_reported_and_retried(runtime: SeededRuntime) -> None:
    store, heard = SharedStore(runtime), Heard()
    app = StoreApp(store, runtime, events=heard.events)
    ran: list[datetime] = []
    clock(app, ran, 10, "all")
    async with app, app.worker():
        began = runtime.wall()
        await asyncio.sleep(5)
        store.down = True
        await asyncio.sleep(40)
        troubles = [one for one in heard.of(StoreTrouble) if one.what == "scheduler"]
        assert len(troubles) == 1
        store.down = False
        await asyncio.sleep(10)
        assert sorted(ran) == expected(began, runtime.wall(), 10)


async def filled(block: Any, gate: Gate) -> list[Ticket[None]]:
    """Fill a pool of one slot and one place."""
    first = await block.submit()
    await until(lambda: gate.entered == 1)
    return [first, await block.submit()]


@seeded
async def test_a_full_pool_is_reported_and_retried_until_it_accepts_the_job(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    app.pool("tight", max_concurrent=1, backpressure=bounded(1, on_full="fail_submitter"))
    ran: list[datetime] = []
    gate = Gate()
    block = app.task(name="block", pool="tight")(gate.pass_through)

    @app.every(60)
    @app.task(name="note", pool="tight")
    async def note() -> None:
        ran.append(moment())

    async with app, app.worker():
        blocks = await filled(block, gate)
        began = runtime.wall()
        await asyncio.sleep(100)
        assert heard.of(SubmitRefused)
        told = [one for one in heard.of(StoreTrouble) if one.what.startswith("schedule of")]
        assert len(told) == 1
        assert "PoolFull" in told[0].error
        gate.opened.set()
        for one in blocks:
            await one
        await asyncio.sleep(15)
        # Late, but before the next one.
        assert ran == expected(began, runtime.wall(), 60)
        assert len(ran) == 1
        await asyncio.sleep(60)
        assert ran == expected(began, runtime.wall(), 60)


@seeded
async def test_a_pool_that_blocks_its_submitters_does_not_block_the_schedules(
    runtime: SeededRuntime,
) -> None:
    heard = Heard()
    app = App("memory://", runtime=runtime, events=heard.events)
    app.pool("tight", max_concurrent=1, backpressure=bounded(1, on_full="block_submitter"))
    ran: list[datetime] = []
    gate = Gate()
    block = app.task(name="block", pool="tight")(gate.pass_through)
    app.every(10)(app.task(pool="tight")(_pass))
    clock(app, ran, 10)
    async with app, app.worker():
        blocks = await filled(block, gate)
        began = runtime.wall()
        await asyncio.sleep(95)
        assert ran == expected(began, runtime.wall(), 10)
        # A parked moment would be lost with this process.
        assert heard.of(SubmitterParked) == []
        gate.opened.set()
        for one in blocks:
            await one


async def _pass() -> None: ...


@pytest.mark.slow
@seeded
async def test_a_clock_set_forward_and_back_loses_and_repeats_nothing(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    ran: list[datetime] = []
    clock(app, ran, 10)
    async with app, app.worker():
        began = runtime.wall()
        await asyncio.sleep(5)
        runtime.wall_offset += 600
        await asyncio.sleep(2)
        assert ran == [expected(began, runtime.wall(), 10)[-1]]
        runtime.wall_offset -= 600
        await asyncio.sleep(600 + 50)
        assert len(ran) == len(set(ran))
        assert sorted(ran) == expected(began, runtime.wall(), 10)
        runtime.wall_offset -= 600
        before = len(ran)
        await asyncio.sleep(580)
        assert len(ran) == before
        await asyncio.sleep(52)
        assert sorted(ran) == expected(began, runtime.wall(), 10)


@seeded
async def test_a_task_may_have_several_schedules(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    keys: list[str] = []

    @app.cron("* * * * *")
    @app.cron("*/2 * * * *", tz="Europe/Berlin")
    @app.every(40)
    @app.task(name="note")
    async def note() -> None:
        keys.append(key())

    async with app, app.worker():
        await asyncio.sleep(125)
    kinds = [KEY.fullmatch(one) for one in keys]
    texts = [found["text"] for found in kinds if found is not None]
    assert sorted(texts) == [
        "* * * * * UTC",
        "* * * * * UTC",
        "*/2 * * * * Europe/Berlin",
        *["every 40 s"] * 3,
    ]


@seeded
async def test_a_schedule_runs_while_there_is_a_worker_and_only_then(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    ran: list[datetime] = []
    clock(app, ran, 10)

    async def jobs() -> int:
        connection = await app.core.connection()
        found = await connection.thread.ask(lambda: connection.store.count(Filter()))
        return sum(found.values())

    async with app:
        await asyncio.sleep(25)
        assert await jobs() == 0
        async with app.worker(), app.worker():
            await asyncio.sleep(22)
        assert await jobs() == len(ran) == 2
        await asyncio.sleep(50)
        assert await jobs() == 2
        async with app.worker():
            await asyncio.sleep(2)
        assert len(ran) == 3


@seeded
async def test_a_schedule_declared_after_the_worker_started_runs(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    ran: list[datetime] = []
    async with app, app.worker():
        await asyncio.sleep(5)
        clock(app, ran, 10)
        began = runtime.wall()
        await asyncio.sleep(30)
        assert ran == expected(began, runtime.wall(), 10)


@seeded
async def test_an_hourly_schedule_sends_no_queries_in_between(
    runtime: SeededRuntime,
) -> None:
    class Counting(SharedStore):
        looks = 0

        async def get_document(self, key: str) -> Any:
            self.looks += key.startswith(DOCUMENTS)
            return await super().get_document(key)

    store = Counting(runtime)
    app = StoreApp(store, runtime)
    clock(app, [], 3_600)
    async with app, app.worker():
        await asyncio.sleep(600)
    assert store.looks == 1


@seeded
async def test_a_scheduled_job_names_the_schedule_as_its_submitter(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)
    clock(app, [], 10)
    async with app, app.worker():
        await asyncio.sleep(15)
        connection = await app.core.connection()
        (found,) = (await connection.thread.ask(lambda: connection.store.find(Filter()))).jobs
        assert found.job.submitted_by == "schedule"
        assert found.job.status is Status.COMPLETED


@pytest.mark.slow
async def test_schedules_run_over_every_store(url: str) -> None:
    app = App(url)
    ran: list[datetime] = []
    done = asyncio.Event()

    @app.every(1)
    @app.task(name="note")
    async def note() -> None:
        ran.append(moment())
        if len(ran) == 2:
            done.set()

    async with app, app.worker():
        async with asyncio.timeout(20):
            await done.wait()
    assert ran[0] < ran[1]
    assert all(one.tzinfo is UTC for one in ran)


def test_a_schedule_decorator_returns_the_task() -> None:
    app = App("memory://")
    task = app.task(name="pass")(_pass)
    assert app.every(5)(app.cron("0 2 * * *")(task)) is task
    plain = app.every(5)(takes_none)
    assert_type(app.every(5)(task), Task[[], Coroutine[Any, Any, None], None])
    assert isinstance(plain, Task)
    assert plain.pool == "default"
    assert plain("now") is None


# Refused where it is declared


def takes_one(name: str) -> None: ...


def takes_none(name: str = "x", *rest: str, **more: str) -> None: ...


@pytest.mark.parametrize("how", [lambda app: app.every(5), lambda app: app.cron("0 2 * * *")])
def test_a_schedule_without_required_arguments_is_refused(how: Callable[[App], Any]) -> None:
    app = App("memory://")
    with pytest.raises(UsageError, match="or give its parameters defaults"):
        how(app)(app.task(takes_one))
    assert how(app)(app.task(takes_none)).name.endswith("takes_none")


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda app: app.cron("0 25 * * *"), "hour .25. is not allowed"),
        (lambda app: app.cron("0 2 * * *", tz="Mars"), "such as 'UTC' or 'Europe/Berlin'"),
        (lambda app: app.cron("0 2 * * *", missed="never"), "must be 'once'"),
        (lambda app: app.every(0.5), "seconds from 1 to"),
        (lambda app: app.every(5, missed="no"), "must be 'once'"),
        (lambda app: app.every(5)(5), "5"),
        (lambda app: app.every(5)(App("memory://").task(_pass)), "one of another app"),
    ],
)
def test_an_invalid_schedule_is_refused_at_declaration(
    declare: Callable[[App], Any], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        declare(App("memory://"))


def test_a_schedule_below_its_task_is_refused_as_it_would_miss_the_options() -> None:
    app = App("memory://")
    scheduled = app.every(5)(_pass)
    told = r"write @app.cron\(…\) and @app.every\(…\) above"
    for maker in (app.task(pool="reports"), app.task(name="other")):
        with pytest.raises(UsageError, match=told):
            maker(scheduled)
    app.task(pool="reports")(_pass)
    with pytest.raises(UsageError, match=told):
        app.worker()


def test_scheduling_an_agent_is_refused() -> None:
    app = App("memory://")

    @app.agent(name="talk")
    async def talk(session: Session) -> None: ...

    with pytest.raises(UsageError, match="schedule a task that submits a turn"):
        app.every(5)(talk)  # type: ignore[call-overload]


def test_a_name_that_leaves_no_room_for_the_key_is_refused() -> None:
    app = App("memory://")
    with pytest.raises(UsageError, match="shorter one"):
        app.every(5)(app.task(name="n" * 990)(_pass))


@pytest.mark.parametrize("options", [{"key_ttl": 60}, {"max_keys": 10}])
async def test_a_pool_whose_key_ttl_is_too_short_is_refused(options: dict[str, Any]) -> None:
    app = App("memory://")
    app.every(5)(app.task(pool="short")(_pass))
    app.pool("short", **options)
    with pytest.raises(UsageError, match="'short' forgets idempotency keys too soon"):
        async with app.worker():
            pass


def test_the_default_time_zone_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLHAND_TIMEZONE", "Asia/Tokyo")
    app = App("memory://")
    app.cron("0 2 * * *")(app.task(_pass))
    assert [one.endswith("0 2 * * * Asia/Tokyo") for one in app._scheduler._timed] == [True]
