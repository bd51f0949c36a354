"""A pool in a file or on a server: it behaves like a pool in memory and outlives its process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from poolhand import (
    App,
    Pool,
    UsageError,
    bounded,
    fail_fast,
    fencing_token,
    get_pool,
    list_pools,
    ring_buffer,
    wait,
)
from poolhand.contract import PoolRow
from poolhand.durable.local_pool.durable_pool import DurablePool
from poolhand.errors import Draining, JobLost, PoolFull, ResultNotKept, Unavailable
from poolhand.observe.events import StoreTrouble
from poolhand.rules.queue.backpressure import Policy
from poolhand.runtime import Runtime
from poolhand.settings import Autoscale
from poolhand.testing import SeededRuntime, simulate_restart
from poolhand.views import Status
from tests.unit.durable.support import Heard, SharedStore, seeded, until, until_later

app = App("memory://")


@app.task
async def double(number: int) -> int:
    return 2 * number


Place = dict[str, Any]  # the pool options that say where it is kept


def in_file(tmp_path: Path) -> Place:
    return {"scope": "pipeline", "scope_id": "night", "dir": tmp_path}


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A file of its own, or a server that others may share."""
    if request.param == "file":
        return in_file(tmp_path)
    return {"scope": "tenant", "scope_id": "night", "store": request.getfixturevalue("schema")}


def make(place: Place, name: str = "kept", **options: Any) -> Pool:
    return Pool(name, **{**place, **options})


def reader(place: Place) -> App:
    """Return an app on the store of the pool."""
    return App(place.get("store") or f"sqlite:///{place.get('dir')}/night__kept.db")


class Shaky(SharedStore):
    """A store that can be `blind`: every verb works except reading the state of pools."""

    blind = False
    looks = 0

    async def pools(self, names: Sequence[str] | None = None) -> list[PoolRow]:
        if self.blind:
            raise Unavailable("the store is away")
        self.looks += 1
        return await super().pools(names)


async def occupy(pool: Pool, runtime: SeededRuntime) -> None:
    """Submit a job that runs for an hour."""
    began = asyncio.Event()

    async def hold() -> None:
        began.set()
        await asyncio.sleep(3600)

    await pool.submit(hold)
    await began.wait()


def kept_in(store: SharedStore, tmp_path: Path, **options: Any) -> DurablePool:
    """Return a durable pool over a store of the test."""

    class Kept(DurablePool):
        make_store = staticmethod(lambda url, runtime: store)

    return Kept("kept", **{"scope": "pipeline", "scope_id": "night", "dir": tmp_path, **options})


def store_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "poolhand-store"}


@pytest.fixture
async def gate() -> AsyncIterator[asyncio.Event]:
    event = asyncio.Event()
    yield event
    event.set()


async def test_a_durable_pool_runs_closures_and_tasks_like_any_pool(place: Place) -> None:
    async with make(place, max_concurrent=3) as pool:
        assert isinstance(pool, Pool)
        assert await pool.run(lambda: "closure") == "closure"
        assert await pool.run(double, 21) == 42
        assert await pool.map(double, range(5)) == [0, 2, 4, 6, 8]
        assert get_pool("kept") is pool
    assert list_pools() == []


async def test_the_file_of_a_durable_pool_is_named_after_scope_and_pool(tmp_path: Path) -> None:
    async with make(in_file(tmp_path)) as pool:
        await pool.run(double, 1)
    assert (tmp_path / "night__kept.db").exists()


async def test_a_closure_can_return_a_value_that_cannot_be_stored(place: Place) -> None:
    thing = object()
    async with make(place) as pool:
        assert await pool.run(lambda: thing) is thing


async def test_a_job_raises_its_own_error_to_its_callers(place: Place) -> None:
    async with make(place) as pool:
        ticket = await pool.submit(int, "no number")
        with pytest.raises(ValueError, match="no number"):
            await ticket
        (dead,) = pool.dead()
        assert (dead.id, dead.status) == (ticket.id, Status.FAILED)


async def test_a_dead_job_can_run_again_once(place: Place) -> None:
    ways = iter([KeyError("first"), None])

    def once_bad() -> str:
        way = next(ways)
        if way is not None:
            raise way
        return "well"

    async with make(place) as pool:
        ticket = await pool.submit(once_bad)
        await wait(ticket)
        again = await pool.rerun(ticket.snapshot())
        assert await again == "well"
        assert pool.dead() == []
        with pytest.raises(UsageError, match="not a dead letter"):
            await pool.rerun(ticket.id)


async def test_waiting_jobs_outlive_the_pool_and_continue(place: Place) -> None:
    async with make(place) as pool:
        ticket = await pool.with_options(delay=3600).submit(double, 4)
        assert ticket.status is Status.SCHEDULED
    async with make(place) as pool:
        assert pool.snapshot().scheduled == 1
        assert pool.id == pool.snapshot().id


async def test_after_a_crash_a_task_is_retried_and_a_closure_fails_with_the_reason(
    place: Place, gate: asyncio.Event
) -> None:
    pool = await make(place, max_concurrent=1).start()
    began = asyncio.Event()

    async def hold() -> None:
        began.set()
        await gate.wait()

    held = await pool.submit(hold)
    await began.wait()
    task = await pool.submit(double, 5)
    closure = await pool.submit(lambda: 1)
    simulate_restart()
    assert get_pool("kept") is None
    async with make(place, max_concurrent=1) as again:
        joined = await again.with_options(idempotency_key="x").run(double, 1)
        assert joined == 2
        ids = [held.id, closure.id]
        letters = {job.id: job for job in again.dead()}
        assert sorted(letters) == sorted(ids)
        for id in ids:
            error = letters[id].error
            assert error is not None
            assert error.type == "poolhand.errors.JobLost"
            assert "not a task" in error.message
        await until(lambda: again.snapshot().completed == 2)
    assert task.id not in ids


async def test_a_lost_closure_raises_job_lost_to_every_caller(place: Place) -> None:
    pool = await make(place, max_concurrent=1).start()
    pool.pause()
    ticket = await pool.with_options(idempotency_key="k").submit(lambda: 1)
    simulate_restart()
    async with make(place, max_concurrent=1) as again:
        again.resume()
        same = await again.with_options(idempotency_key="k").submit(lambda: 2)
        assert same.id == ticket.id
        with pytest.raises(JobLost, match="which is gone"):
            await same


@pytest.mark.parametrize("value", [None, 0, "text", [1, {"a": [None, True, 1.5]}]], ids=str)
async def test_the_result_of_a_closure_is_stored_if_it_is_json(tmp_path: Path, value: Any) -> None:
    place = in_file(tmp_path)
    async with make(place) as pool:
        first = await pool.with_options(idempotency_key="k").submit(lambda: value)
        assert await first == value
    async with make(place) as again:
        same = await again.with_options(idempotency_key="k").submit(lambda: "another")
        assert same.id == first.id
        assert await same == value
        assert same.snapshot().result == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "cannot be written as json"),
        ({1, 2}, "JSON does not give a set back as it was"),
        ({1: 2}, "JSON does not give a dict back as it was"),
        (float("nan"), "is no number in JSON"),
        ("x" * 300_000, "the limit is 262144"),
    ],
    ids=["object", "set", "keys", "nan", "large"],
)
async def test_a_repeated_key_reports_that_the_result_of_a_closure_was_not_stored(
    tmp_path: Path, value: Any, reason: str
) -> None:
    place = in_file(tmp_path)

    async def compute() -> Any:
        return value

    async with make(place) as pool:
        keyed = pool.with_options(idempotency_key="k")
        assert await keyed.run(compute) is value
        # This process still has the value.
        assert await keyed.run(compute) is value
    async with make(place) as again:
        same = await again.with_options(idempotency_key="k").submit(compute)
        assert same.status is Status.COMPLETED
        with pytest.raises(ResultNotKept, match=reason) as caught:
            await same
        assert caught.value.job_id == same.id
        assert "make it a task, or return JSON" in str(caught.value)


async def test_keys_sessions_and_bounds_hold(place: Place, gate: asyncio.Event) -> None:
    policy = bounded(1, on_full="fail_submitter")
    async with make(place, max_concurrent=1, backpressure=policy) as pool:
        began = asyncio.Event()

        async def hold() -> int:
            began.set()
            await gate.wait()
            return 1

        running = await pool.submit(hold)
        await began.wait()
        keyed = pool.with_options(idempotency_key="one")
        waiting = await keyed.submit(double, 1)
        assert (await keyed.submit(double, 1)).id == waiting.id
        with pytest.raises(PoolFull):
            await pool.submit(double, 2)
        gate.set()
        assert [await running, await waiting] == [1, 2]


async def test_submit_nowait_and_autoscale_are_refused_on_a_store(place: Place) -> None:
    async with make(place) as pool:
        with pytest.raises(UsageError, match=r"await pool\.submit"):
            pool.submit_nowait(double, 1)
        with pytest.raises(UsageError, match="does not scale itself"):
            pool.set_autoscale(Autoscale())


async def test_a_drained_pool_takes_nothing_new(place: Place) -> None:
    pool = await make(place).start()
    await pool.run(double, 1)
    report = await pool.drain()
    assert (report.submitted, report.completed) == (1, 1)
    with pytest.raises(Draining):
        await pool.submit(double, 1)
    with pytest.raises(UsageError, match="create a new one"):
        await pool.start()


async def test_a_drain_hands_back_jobs_that_do_not_end_in_time(
    place: Place, gate: asyncio.Event
) -> None:
    began = asyncio.Event()

    @App("memory://").task(name="slow")
    async def slow() -> str:
        began.set()
        await gate.wait()
        return "done"

    pool = await make(place).start()
    ticket = await pool.submit(slow)
    await began.wait()
    report = await pool.drain(0)
    assert report.completed == 0
    gate.set()
    async with make(place) as again:
        job = await wait(await again.with_options(idempotency_key="after").submit(double, 1))
        assert job.status is Status.COMPLETED
        await until(lambda: again.snapshot().completed == 2)
    assert ticket.id


async def test_jobs_see_their_token_and_the_context_of_their_submitter(place: Place) -> None:
    from contextvars import ContextVar

    who: ContextVar[str] = ContextVar("who", default="nobody")
    async with make(place) as pool:
        who.set("me")
        first = await pool.run(lambda: (who.get(), fencing_token()))
        second = await pool.run(lambda: (who.get(), fencing_token()))
    assert [first[0], second[0]] == ["me", "me"]
    assert first[1] is not None
    assert second[1] is not None
    assert first[1] < second[1]


async def test_a_pool_name_cannot_escape_its_folder(tmp_path: Path) -> None:
    async with make(in_file(tmp_path / "in"), name="../../out", scope_id="a/b") as pool:
        assert await pool.run(double, 1) == 2
    assert os.listdir(tmp_path) == ["in"]


async def test_a_durable_pool_can_be_resized_paused_and_resumed(place: Place) -> None:
    async with make(place, max_concurrent=1) as pool:
        await pool.resize(2)
        barrier = asyncio.Barrier(2)
        assert sorted(await pool.map(lambda n: _meet(barrier, n), range(2))) == [0, 1]
        pool.pause()
        ticket = await pool.submit(double, 1)
        assert pool.snapshot().paused
        pool.resume()
        assert await ticket == 2


async def _meet(barrier: asyncio.Barrier, number: int) -> int:
    await barrier.wait()
    return number


async def test_every_job_is_counted_once_however_fast_it_ends(place: Place) -> None:
    policy = bounded(1, on_full="drop_newest")
    async with make(place, max_concurrent=5, backpressure=policy) as pool:
        tickets = [await pool.submit(double, number) for number in range(40)]
        jobs = await wait(tickets)
        kept = sum(job.status is Status.COMPLETED for job in jobs)
        report = await pool.drain()
    assert (report.submitted, report.completed) == (40, kept)
    assert report.rejected == 40 - kept


async def test_a_drain_leaves_its_audit_record(place: Place) -> None:
    async with make(place) as pool:
        await pool.run(double, 1)
    async with reader(place) as other:
        lines = await other.operator().audit(0, kind="pool_drain")
    names = {"pipeline": "kept", "tenant": "tenant/night/kept"}
    assert [line.pool for line in lines] == [names[place["scope"]]]


async def test_a_job_whose_rerun_is_refused_stays_dead(place: Place, gate: asyncio.Event) -> None:
    policy = bounded(1, on_full="fail_submitter")
    async with make(place, max_concurrent=1, backpressure=policy) as pool:
        dead = await pool.submit(int, "no number")
        await wait(dead)
        began = asyncio.Event()

        async def hold() -> None:
            began.set()
            await gate.wait()

        await pool.submit(hold)
        await began.wait()
        await pool.submit(double, 1)
        with pytest.raises(PoolFull):
            await pool.rerun(dead.id)
        assert [job.id for job in pool.dead()] == [dead.id]
        gate.set()


async def test_two_tasks_with_the_same_name_are_refused_in_one_pool(place: Place) -> None:
    def one() -> str:
        return "one"

    def two() -> str:
        return "two"

    tasks = [App("memory://").task(name="fetch")(fn) for fn in (one, two)]
    async with make(place) as pool:
        assert await pool.run(tasks[0]) == "one"
        with pytest.raises(UsageError, match="give one of the two another name"):
            await pool.submit(tasks[1])
        assert await pool.run(tasks[0]) == "one"
    async with make(place) as pool:
        assert await pool.run(tasks[1]) == "two"


async def test_a_map_with_a_key_is_refused_as_in_memory(place: Place) -> None:
    async with make(place) as pool:
        keyed = pool.with_options(idempotency_key="k")
        with pytest.raises(UsageError, match=r"'kept', map: idempotency_key='k' is not allowed"):
            await keyed.map(double, [1, 2])
        with pytest.raises(UsageError, match=r"'kept', map: items=3 is not allowed"):
            await pool.map(double, 3)  # type: ignore[call-overload]
        assert pool.snapshot().total == 0


async def test_the_first_failure_of_a_map_cancels_its_other_jobs(
    place: Place, gate: asyncio.Event
) -> None:
    began: list[int] = []
    taken: list[int] = []

    async def one(number: int) -> None:
        began.append(number)
        if number == 0:
            raise KeyError(number)
        await gate.wait()

    def items() -> Iterator[int]:
        for number in (1, 0, *range(2, 1000)):
            taken.append(number)
            yield number

    async with make(place, max_concurrent=2) as pool:
        with pytest.raises(KeyError):
            await pool.map(one, items())
        assert ((await pool.refresh()).active, 0 in began) == (0, True)
        report = await pool.drain()
    assert (report.failed, report.completed) == (1, 0)
    assert report.cancelled == report.submitted - 1
    assert len(taken) < 100


@pytest.mark.parametrize(
    "policy",
    [bounded(1, on_full="fail_submitter"), ring_buffer(2), fail_fast(), bounded(1)],
    ids=str,
)
async def test_a_map_is_not_limited_by_the_backpressure_policy(
    place: Place, policy: Policy
) -> None:
    async with make(place, max_concurrent=2, backpressure=policy) as pool:
        assert await pool.map(double, range(20)) == [2 * number for number in range(20)]


async def test_the_jobs_of_a_map_are_submitted_by_its_caller(place: Place) -> None:
    async with make(place) as pool:
        await pool.map(double, [1])
        async with reader(place) as other:
            (line,) = await other.operator().audit(0, kind="pool_submit")
    assert line.by == "user"


@seeded
async def test_a_resize_that_fails_leaves_the_pool_as_it_was(
    runtime: SeededRuntime, tmp_path: Path
) -> None:
    store = SharedStore(runtime)
    async with kept_in(store, tmp_path, runtime=runtime, max_concurrent=1) as pool:
        store.down = True
        with pytest.raises(Unavailable):
            await pool.resize(3)
        store.down = False
        assert pool.snapshot().max_concurrent == 1
        assert await pool.run(double, 2) == 4
        await pool.resize(2)
        assert pool.snapshot().max_concurrent == 2
        (row,) = await store.pools()
        assert row.slots == 2


@seeded
async def test_a_drain_ends_the_worker_and_frees_the_name_during_a_store_outage(
    runtime: SeededRuntime, tmp_path: Path
) -> None:
    store = SharedStore(runtime)
    pool = await kept_in(store, tmp_path, runtime=runtime).start()
    await pool.run(double, 1)
    store.down = True
    with pytest.raises(Unavailable):
        await pool.resize(3)
    report = await pool.drain(1)
    assert report.completed == 1
    assert get_pool("kept") is None
    assert await pool.drain(1) == report


@seeded
async def test_a_drain_that_broke_off_does_not_keep_the_next_one_from_its_report(
    runtime: SeededRuntime, tmp_path: Path
) -> None:
    pool = await kept_in(SharedStore(runtime), tmp_path, runtime=runtime).start()
    await occupy(pool, runtime)
    first = asyncio.ensure_future(pool.drain(1800))
    await asyncio.sleep(1)
    (task,) = (one for one in asyncio.all_tasks() if one.get_name() == "kept-drain")
    task.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    assert get_pool("kept") is None
    assert (await pool.drain(0)).submitted == 1


@seeded
async def test_a_paused_pool_is_drained_at_once_when_nothing_runs(
    runtime: SeededRuntime, tmp_path: Path
) -> None:
    store = SharedStore(runtime)
    pool = await kept_in(store, tmp_path, runtime=runtime).start()
    pool.pause()
    while not (await store.pools())[0].paused:  # noqa: ASYNC110 - it is written on the store thread
        await asyncio.sleep(0)
    await pool.submit(double, 1)
    report = await pool.drain(3600)
    assert report.seconds < 60
    assert (report.submitted, report.completed) == (1, 0)


@pytest.mark.parametrize("blind", [False, True], ids=["seeing", "blind"])
@seeded
async def test_a_drain_can_be_shortened_at_any_stage(
    runtime: SeededRuntime, tmp_path: Path, blind: bool
) -> None:
    store = Shaky(runtime)
    pool = await kept_in(store, tmp_path, runtime=runtime).start()
    await occupy(pool, runtime)
    store.blind = blind
    first = asyncio.ensure_future(pool.drain(1800))
    await asyncio.sleep(5)
    assert not first.done()
    report = await pool.drain(0)
    assert report.seconds < 60
    assert await first == report


@seeded
async def test_every_failure_to_read_the_store_is_reported(
    runtime: SeededRuntime, tmp_path: Path
) -> None:
    store, heard = Shaky(runtime), Heard()

    def told() -> int:
        return len([event for event in heard.of(StoreTrouble) if event.what == "facts"])

    async with kept_in(store, tmp_path, runtime=runtime, events=heard.events):
        for number in (1, 2):
            store.blind = True
            await until_later(lambda number=number: told() == number, runtime)  # type: ignore[misc]
            store.blind, looks = False, store.looks
            await until_later(lambda looks=looks: store.looks > looks + 2, runtime)  # type: ignore[misc]
    assert told() == 2


async def test_the_second_pool_started_under_one_name_is_refused_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    before = store_threads()
    pools = [make(in_file(tmp_path), scope_id=scope) for scope in ("day", "night", "night")]
    starts = [pools[0].start(), pools[1].start(), pools[0].start()]
    first, *others = await asyncio.gather(*starts, return_exceptions=True)
    assert first is pools[0]
    for other in others:
        assert isinstance(other, UsageError)
        assert "already live" in str(other)
    assert len(store_threads() - before) == 1
    assert await pools[0].run(double, 1) == 2
    await pools[0].drain()
    async with pools[2] as last:
        assert await last.run(double, 1) == 2
    await until(lambda: store_threads() <= before)


async def test_a_start_that_fails_or_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    before = store_threads()
    store = Shaky(Runtime())
    pool = kept_in(store, tmp_path)
    store.blind = True
    with pytest.raises(Unavailable):
        await pool.start()
    assert get_pool("kept") is None
    await until(lambda: store_threads() <= before)
    store.blind = False
    for turns in range(8):
        start = asyncio.ensure_future(pool.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        start.cancel()
        await asyncio.wait([start])
        if not start.cancelled():
            # The pool had already started when the cancellation arrived.
            start.result()
            await pool.drain()
            pool = kept_in(store, tmp_path)
        assert get_pool("kept") is None
    await until(lambda: store_threads() <= before)
    async with pool:
        assert await pool.run(double, 1) == 2
    await until(lambda: store_threads() <= before)


async def test_a_ticket_of_a_drained_pool_returns_its_known_state_and_opens_nothing(
    place: Place,
) -> None:
    before = store_threads()
    async with make(place) as pool:
        done = await pool.submit(double, 1)
        await wait(done)
        waiting = await pool.with_options(delay=3600).submit(double, 2)
    assert await done == 2
    assert (await done.refresh()).status is Status.COMPLETED
    assert not await done.cancel()
    for ask in (waiting.refresh, waiting.result, waiting.explain, waiting.cancel):
        with pytest.raises(Unavailable, match="make the pool again"):
            await ask()
    await until(lambda: store_threads() <= before)


async def test_a_pool_that_remembers_no_dead_jobs_loads_none(place: Place) -> None:
    async with make(place) as pool:
        await wait(await pool.submit(int, "no number"))
        assert len(pool.dead()) == 1
    async with make(place, history=0) as pool:
        assert pool.dead() == []
        await until(lambda: pool.snapshot().failed == 1)


async def test_the_error_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pool = Pool("kept", scope="pipeline", scope_id="night", dir=tmp_path / "file" / "in")
    with pytest.raises(Unavailable, match="cannot be created"):
        await pool.start()
    assert "kept" not in {one.name for one in list_pools()}


async def test_a_released_pool_raises_unavailable_on_every_call(place: Place) -> None:
    pool = await make(place).start()
    simulate_restart()
    with pytest.raises(Unavailable, match="make the pool again"):
        await pool.submit(double, 1)
    with pytest.raises(Unavailable, match="make the pool again"):
        pool.pause()
    with pytest.raises(Unavailable, match="make the pool again"):
        await pool.resize(2)
