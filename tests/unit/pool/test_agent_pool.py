"""Agent pools: one agent per job, made, run and closed once."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from itertools import product
from typing import Any

import pytest

from poolhand import (
    AgentPool,
    Pool,
    Retry,
    UsageError,
    current_job,
    get_pool,
    list_pools,
    pool_lifespan,
    stop_requested,
)
from poolhand.errors import Deadlock, Draining, NoFreeSlot, PoolFull
from poolhand.observe.events import Events, SlotFreed
from poolhand.pool.faces.agent_pool import ENDED_KEPT
from poolhand.runtime import Runtime
from poolhand.settings import Autoscale
from poolhand.testing import SeededRuntime
from tests.unit.pool.support import Heard, seeded, until

COLOUR: ContextVar[str] = ContextVar("COLOUR", default="none")


class Echo:
    """An agent that returns its payload."""

    async def run(self, *, session_id: str, payload: Any) -> Any:
        return f"{session_id}: {payload}"


class Door:
    """Holds agents until it is opened; records which run and which were closed."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.running: list[Any] = []
        self.ran: list[Any] = []
        self.closed: list[Any] = []

    def agent(self) -> _Visitor:
        return _Visitor(self)


class _Visitor:
    def __init__(self, door: Door) -> None:
        self._door = door
        self._payload: Any = None

    async def run(self, *, session_id: str, payload: Any) -> Any:
        self._payload = payload
        self._door.running.append(payload)
        try:
            await self._door.open.wait()
        finally:
            self._door.running.remove(payload)
        self._door.ran.append(payload)
        return payload

    async def aclose(self) -> None:
        self._door.closed.append(self._payload)


# Results of a submit


@seeded
async def test_a_submit_gives_the_result_of_an_agent(runtime: SeededRuntime) -> None:
    async with AgentPool(agent_factory=Echo, runtime=runtime) as pool:
        answer = await pool.submit("s1", {"query": "why"})
        assert answer == {"status": "success", "result": "s1: {'query': 'why'}"}


@seeded
async def test_a_failure_is_returned_with_its_type_and_message(runtime: SeededRuntime) -> None:
    class Faulty:
        async def run(self, *, session_id: str, payload: BaseException) -> None:
            raise payload

    class Odd(Exception):
        pass

    async with AgentPool(agent_factory=Faulty, runtime=runtime) as pool:
        told = {
            ValueError("boom"): "ValueError: boom",
            Odd("strange"): "Odd: strange",
            KeyError(): "KeyError",
            PoolFull("not mine"): "PoolFull: not mine",
        }
        for error, text in told.items():
            assert await pool.submit("s", error) == {"status": "error", "error": text}
        for strange in (SystemExit(3), KeyboardInterrupt(), StopIteration(4)):
            answer = await pool.submit("s", strange)
            assert answer["status"] == "error"
            assert type(strange).__name__ in answer["error"]
        answer = await pool.submit("s", asyncio.CancelledError())
        assert answer["error"].startswith("JobCancelled: ")
        assert pool.snapshot().active == 0


@seeded
async def test_turns_of_a_session_run_in_order_and_sessions_run_concurrently(
    runtime: SeededRuntime,
) -> None:
    running: set[str] = set()
    order: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    most = 0

    class Careful:
        async def run(self, *, session_id: str, payload: int) -> None:
            nonlocal most
            assert session_id not in running
            running.add(session_id)
            most = max(most, len(running))
            order[session_id].append(payload)
            await asyncio.sleep(runtime.random.random())
            running.remove(session_id)

    async with AgentPool(num_workers=3, agent_factory=Careful, runtime=runtime) as pool:
        turns = [(name, number) for number in range(8) for name in order]
        ids = [await pool.submit_nowait(*turn) for turn in turns]
        await asyncio.sleep(30)
        assert {pool.get(one)["status"] for one in ids} == {"completed"}  # type: ignore[index]
    assert order == {name: list(range(8)) for name in order}
    assert most == 3


@seeded
async def test_a_full_pool_lets_a_submit_wait_or_refuses_it(runtime: SeededRuntime) -> None:
    door = Door()
    async with AgentPool(1, 1, door.agent, runtime=runtime) as pool:
        await pool.submit_nowait("s1", 1)
        await pool.submit_nowait("s2", 2)
        with pytest.raises(PoolFull):
            await pool.submit_nowait("s3", 3)
        with pytest.raises(PoolFull):
            await pool.submit("s3", 3, block=False)
        waiting = asyncio.create_task(pool.submit("s4", 4))
        await until(lambda: pool.snapshot().blocked_submitters == 1)
        assert pool.snapshot().total == 2
        door.open.set()
        assert await waiting == {"status": "success", "result": 4}
        assert await pool.submit("s5", 5, block=False) == {"status": "success", "result": 5}
    assert door.ran == [1, 2, 4, 5]


@seeded
async def test_without_a_queue_only_a_free_slot_lets_a_job_in(runtime: SeededRuntime) -> None:
    door = Door()
    async with AgentPool(2, 0, door.agent, runtime=runtime) as pool:
        await pool.submit_nowait("s1", 1)
        await pool.submit_nowait("s2", 2)
        for block in (True, False):
            with pytest.raises(NoFreeSlot):
                await pool.submit("s3", 3, block=block)
        assert pool.health_check()["queue_capacity"] == 0
        door.open.set()


@seeded
async def test_a_submit_that_is_cancelled_leaves_its_job_running(runtime: SeededRuntime) -> None:
    door = Door()
    async with AgentPool(agent_factory=door.agent, runtime=runtime) as pool:
        caller = asyncio.create_task(pool.submit("s", 1))
        await asyncio.sleep(1)
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        door.open.set()
        await asyncio.sleep(1)
        assert (door.ran, door.closed) == ([1], [1])


@seeded
async def test_an_agent_that_waits_for_its_own_session_gets_deadlock(
    runtime: SeededRuntime,
) -> None:
    seen: list[str] = []

    class Asking:
        async def run(self, *, session_id: str, payload: int) -> Any:
            if payload == 0:
                return "answer"
            try:
                return await pool.submit(session_id, 0)
            except Deadlock as error:
                seen.append(error.code)
                raise

    async with AgentPool(agent_factory=Asking, runtime=runtime) as pool:
        answer = await pool.submit("s", 1)
        assert answer["error"].startswith("Deadlock: ")
    assert seen == [Deadlock.code]


# Making, running and closing agents


class Life:
    """Agents of any kind, and what happened to each."""

    def __init__(self) -> None:
        self.made = 0
        self.closes: list[int] = []

    def agent(self, runtime: SeededRuntime, run: str, close: str) -> Any:
        """Return an agent whose methods are async, plain, or plain and return a coroutine."""
        number, self.made = self.made, self.made + 1

        async def work(*, session_id: str, payload: float) -> str:
            if payload < 0:
                raise ValueError(session_id)
            await asyncio.sleep(payload)
            return session_id

        def work_plainly(*, session_id: str, payload: float) -> str:
            if payload < 0:
                raise ValueError(session_id)
            return session_id

        async def end() -> None:
            self.closes.append(number)

        def end_plainly() -> None:
            self.closes.append(number)

        runs = {"async": work, "plain": work_plainly, "coroutine": lambda **words: work(**words)}
        ends = {"async": end, "plain": end_plainly, "coroutine": lambda: end()}
        name, _, kind = close.partition(" ")
        members = {"run": staticmethod(runs[run]), name: staticmethod(ends[kind])}
        if name == "both":
            members |= {"aclose": staticmethod(ends[kind]), "close": staticmethod(ends[kind])}
        return type("Made", (), members)()

    def factory(self, kind: str, *words: Any) -> Callable[[], Any]:
        async def make() -> Any:
            await asyncio.sleep(0)
            return self.agent(*words)

        life = self

        class Making:
            def __new__(cls) -> Any:
                return life.agent(*words)

        kinds: dict[str, Callable[[], Any]] = {
            "async": make,
            "plain": lambda: self.agent(*words),
            "coroutine": lambda: make(),
            "partial": partial(self.agent, *words),
            "class": Making,
        }
        return kinds[kind]


MAKES = ("async", "plain", "coroutine", "partial", "class")
RUNS = ("async", "plain", "coroutine")
CLOSES = tuple(" ".join(one) for one in product(("aclose", "close", "both"), RUNS))


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("run", RUNS)
@seeded
async def test_an_agent_of_any_make_gives_its_result_and_is_closed_once(
    runtime: SeededRuntime, make: str, run: str
) -> None:
    for close in CLOSES:
        life = Life()
        factory = life.factory(make, runtime, run, close)
        async with AgentPool(agent_factory=factory, runtime=runtime) as pool:
            assert await pool.submit("s", 0.01) == {"status": "success", "result": "s"}
            assert life.closes == [0]
            answer = await pool.submit("s", -1)
            assert answer == {"status": "error", "error": "ValueError: s"}
        assert life.closes == [0, 1]


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("run", RUNS)
@seeded
async def test_an_agent_is_closed_once_whenever_its_job_is_stopped(
    runtime: SeededRuntime, make: str, run: str
) -> None:
    """Jobs are cancelled and time out at any moment, while threads run and between steps."""
    life = Life()
    words: dict[str, Any] = {"cancel_grace": 0.02, "runtime": runtime}
    for close, limit in product(CLOSES, (0.04, 0.2)):
        factory = life.factory(make, runtime, run, close)
        async with AgentPool(2, 100, factory, timeout=limit, **words) as pool:
            ids = [await pool.submit_nowait(f"s{number}", 0.03) for number in range(4)]
            await asyncio.sleep(runtime.random.uniform(0, 0.08))
            await pool.cancel(ids[runtime.random.randrange(4)])
            await asyncio.sleep(1)
            assert pool.snapshot().stuck == 0
            found = [pool.get(one) or {} for one in ids]
            assert {one.get("error", "").partition(":")[0] for one in found} <= ENDINGS
    assert sorted(life.closes) == list(range(life.made))


ENDINGS = {"", "JobCancelled", "JobTimedOut"}


@seeded
async def test_an_agent_that_hangs_is_timed_out_and_closed(runtime: SeededRuntime) -> None:
    door = Door()
    async with AgentPool(1, 10, door.agent, timeout=5, runtime=runtime) as pool:
        answer = await pool.submit("s", 1)
        assert answer["status"] == "error"
        assert answer["error"].startswith("JobTimedOut: ")
        assert (door.ran, door.closed) == ([], [1])


@seeded
async def test_each_attempt_of_a_job_has_an_agent_of_its_own(runtime: SeededRuntime) -> None:
    attempts: list[object] = []

    class Shaky:
        async def run(self, *, session_id: str, payload: Any) -> int:
            attempts.append(self)
            if len(attempts) < 3:
                raise ConnectionError
            return len(attempts)

    retry = Retry(attempts=4)
    async with AgentPool(agent_factory=Shaky, retry=retry, runtime=runtime) as pool:
        assert await pool.submit("s", None) == {"status": "success", "result": 3}
    assert len(set(map(id, attempts))) == 3


@seeded
async def test_a_factory_that_fails_is_reported_and_costs_no_slot(runtime: SeededRuntime) -> None:
    def plain() -> Any:
        raise OSError("no route")

    async def later() -> Any:
        raise OSError("no route")

    class Made:
        def __init__(self) -> None:
            raise OSError("no route")

        async def run(self, *, session_id: str, payload: Any) -> None: ...

    for factory in (plain, later, Made):
        async with AgentPool(1, 1, factory, runtime=runtime) as pool:
            for _ in range(3):
                answer = await pool.submit("s", 1)
                assert answer == {"status": "error", "error": "OSError: no route"}


@seeded
async def test_an_agent_without_run_is_refused_and_closed(runtime: SeededRuntime) -> None:
    closed: list[object] = []

    class Mute:
        def close(self) -> None:
            closed.append(self)

    class Streaming(Mute):
        async def run(self, *, session_id: str, payload: Any) -> AsyncIterator[int]:
            yield 1

    async with AgentPool(agent_factory=Mute, runtime=runtime) as pool:
        answer = await pool.submit("s", 1)
        assert answer["error"].startswith("UsageError: agent_factory returned a ")
        assert "Mute, which has no method run(session_id=…, payload=…)" in answer["error"]
        assert len(closed) == 1
    async with AgentPool(agent_factory=lambda: Streaming(), runtime=runtime) as pool:
        answer = await pool.submit("s", 1)
        assert "Streaming.run is an async generator" in answer["error"]
        assert len(closed) == 2
    async with AgentPool(agent_factory=lambda: None, runtime=runtime) as pool:
        assert "returned a NoneType" in (await pool.submit("s", 1))["error"]


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("error", [OSError, asyncio.CancelledError, SystemExit, StopIteration])
@seeded
async def test_a_close_that_fails_is_logged_and_changes_nothing(
    runtime: SeededRuntime,
    plain: bool,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Async:
        async def run(self, *, session_id: str, payload: Any) -> Any:
            return 1 // payload

        async def aclose(self) -> None:
            raise error

    class Plain:
        def run(self, *, session_id: str, payload: Any) -> Any:
            return 1 // payload

        def close(self) -> None:
            raise error

    caplog.set_level(logging.ERROR, "poolhand")
    caplog.clear()
    async with AgentPool(agent_factory=Plain if plain else Async, runtime=runtime) as pool:
        assert await pool.submit("s", 1) == {"status": "success", "result": 1}
        answer = await pool.submit("s", 0)
        assert answer["error"].startswith("ZeroDivisionError: ")
    assert [one.name for one in caplog.records] == ["poolhand", "poolhand"]
    assert all("closing a " in one.getMessage() and one.exc_info for one in caplog.records)


@seeded
async def test_a_job_that_is_cancelled_while_its_agent_closes_keeps_its_result(
    runtime: SeededRuntime,
) -> None:
    class Slow(Echo):
        async def aclose(self) -> None:
            await asyncio.sleep(100)

    async with AgentPool(agent_factory=Slow, runtime=runtime) as pool:
        job = await pool.submit_nowait("s", 1)
        await asyncio.sleep(1)
        assert not await pool.cancel(job)
        assert pool.get(job) == {"job_id": job, "status": "completed", "result": "s: 1"}


# Looking jobs up


@seeded
async def test_a_job_is_found_by_its_id_from_its_submit_on(runtime: SeededRuntime) -> None:
    door = Door()
    async with AgentPool(1, 10, door.agent, runtime=runtime) as pool:
        first = await pool.submit_nowait("s1", 1)
        second = await pool.submit_nowait("s2", 2)
        third = await pool.submit_nowait("s3", 3)
        assert pool.get(first) == {"job_id": first, "status": "running"}
        assert pool.get(second) == {"job_id": second, "status": "queued"}
        assert await pool.cancel(third)
        door.open.set()
        await asyncio.sleep(1)
        assert pool.get(first) == {"job_id": first, "status": "completed", "result": 1}
        found = pool.get(third)
        assert found is not None
        assert found["status"] == "cancelled"
        assert found["error"].startswith("JobCancelled: ")
        assert pool.get("unknown") is None
    # The result of a job that was never awaited outlives its pool.
    assert pool.get(second) == {"job_id": second, "status": "completed", "result": 2}


async def test_all_live_jobs_and_the_latest_finished_ones_are_kept() -> None:
    door = Door()

    async def make() -> Any:
        return door.agent()

    more = 50
    async with AgentPool(5, 3 * ENDED_KEPT, make) as pool:
        ids = [
            await pool.submit_nowait(f"s{number}", number) for number in range(ENDED_KEPT + more)
        ]
        assert all(pool.get(one) is not None for one in ids)
        door.open.set()
    over = [pool.get(one) for one in ids]
    assert sum(one is not None for one in over) == ENDED_KEPT
    assert over[:more] == [None] * more
    assert all(one is not None and one["status"] == "completed" for one in over[more:])
    assert (len(pool._live), len(pool._over)) == (0, ENDED_KEPT)


@seeded
async def test_a_waiting_job_that_is_cancelled_never_has_an_agent(runtime: SeededRuntime) -> None:
    door = Door()
    async with AgentPool(1, 10, door.agent, runtime=runtime) as pool:
        running = await pool.submit_nowait("s", 1)
        waiting = await pool.submit_nowait("s", 2)
        await asyncio.sleep(1)
        assert await pool.cancel(waiting)
        assert await pool.cancel(running)
        assert await pool.cancel(running)
        assert not await pool.cancel("unknown")
    assert (door.ran, door.closed) == ([], [1])


# Start and drain


@seeded
async def test_a_drained_pool_can_be_started_again(runtime: SeededRuntime) -> None:
    pool = AgentPool(agent_factory=Echo, name="agents", runtime=runtime)
    with pytest.raises(UsageError, match="not started"):
        await pool.submit("s", 1)
    with pytest.raises(UsageError, match="not started"):
        await pool.drain()
    kept = []
    for life in range(3):
        await pool.start()
        await pool.start()
        assert get_pool("agents") is pool.pool
        assert await pool.submit("s", life) == {"status": "success", "result": f"s: {life}"}
        kept.append(await pool.submit_nowait("s", life))
        report = await pool.drain()
        assert (report.submitted, report.completed) == (2, 2)
        assert await pool.drain() == report
        assert list_pools() == []
        with pytest.raises(Draining):
            await pool.submit("s", 1)
        with pytest.raises(Draining):
            await pool.submit_nowait("s", 1)
    assert [pool.get(one)["result"] for one in kept] == ["s: 0", "s: 1", "s: 2"]  # type: ignore[index]


@seeded
async def test_a_pool_does_not_start_while_it_drains(runtime: SeededRuntime) -> None:
    door = Door()
    pool = await AgentPool(1, 5, door.agent, name="agents", runtime=runtime).start()
    job = await pool.submit_nowait("s", 1)
    draining = asyncio.create_task(pool.drain())
    await asyncio.sleep(1)
    with pytest.raises(UsageError, match="start it again when that is over"):
        await pool.start()
    door.open.set()
    assert (await draining).completed == 1
    async with pool:
        assert pool.get(job) == {"job_id": job, "status": "completed", "result": 1}


@pytest.mark.parametrize("drains", [True, False])
def test_a_pool_can_live_on_one_loop_after_another(drains: bool) -> None:
    pool = AgentPool(agent_factory=Echo)

    async def main() -> Any:
        await pool.start()
        answer = await pool.submit("s", 1)
        if drains:
            await pool.drain()
        return answer

    for _ in range(3):
        assert asyncio.run(main()) == {"status": "success", "result": "s: 1"}


@seeded
async def test_a_drain_cancels_jobs_at_its_deadline(runtime: SeededRuntime) -> None:
    door = Door()
    pool = await AgentPool(1, 1, door.agent, runtime=runtime).start()
    callers = [asyncio.create_task(pool.submit(f"s{number}", number)) for number in range(3)]
    await until(lambda: pool.snapshot().blocked_submitters == 1)
    before = runtime.monotonic()
    report = await pool.drain(timeout=10)
    assert 10 <= runtime.monotonic() - before <= 11
    assert (report.cancelled, report.rejected, report.stuck) == (1, 1, 0)
    answers = await asyncio.gather(*callers, return_exceptions=True)
    told = sorted(one["error"].partition(":")[0] for one in answers if isinstance(one, dict))
    assert told == ["JobCancelled", "JobRejected"]
    assert sum(isinstance(one, Draining) for one in answers) == 1
    assert (door.ran, len(door.closed)) == ([], 1)


# Size and health


@seeded
async def test_a_pool_scales_with_auto_scale(runtime: SeededRuntime) -> None:
    door, heard = Door(), Heard()
    async with AgentPool(2, 100, door.agent, runtime=runtime, events=heard.events) as pool:
        await pool.auto_scale(max_workers=5)
        for number in range(50):
            await pool.submit_nowait(f"s{number}", number)
        await asyncio.sleep(200)
        assert len(door.running) == 5
        assert pool.health_check()["pool_size"] == 5
        await asyncio.create_task(pool.auto_scale(max_workers=7, check_interval=1))
        await asyncio.sleep(200)
        assert len(door.running) == 7
        door.open.set()
        await asyncio.sleep(600)
        assert pool.health_check()["pool_size"] == 2


@seeded
async def test_a_pool_does_not_scale_after_a_drain(runtime: SeededRuntime) -> None:
    door = Door()
    pool = AgentPool(2, 100, door.agent, runtime=runtime)
    with pytest.raises(UsageError, match="not started"):
        await pool.auto_scale()
    async with pool:
        await pool.auto_scale()
    async with pool:
        for number in range(50):
            await pool.submit_nowait(f"s{number}", number)
        await asyncio.sleep(200)
        assert len(door.running) == 2
        door.open.set()


@seeded
async def test_the_health_of_a_pool_can_be_sent_as_json(runtime: SeededRuntime) -> None:
    door = Door()
    pool = AgentPool(2, 10, door.agent, runtime=runtime)
    assert pool.health_check()["pool_size"] == 0
    async with pool:
        job = await pool.submit_nowait("s", 1)
        await pool.submit_nowait("s", 2)
        health = pool.health_check()
        assert json.loads(json.dumps(health)) == health
        figures = ("pool_size", "queue_size", "queue_capacity", "utilization", "stale_workers")
        assert [health[name] for name in figures] == [2, 1, 10, 0.5, []]
        assert [one["job"] for one in health["workers"].values()] == [job, None]
        door.open.set()


# Bad values


def test_all_bad_options_are_reported_at_once_and_nothing_is_left() -> None:
    def stream() -> Iterator[Echo]:
        yield Echo()

    bad: dict[str, Any] = {"num_workers": 0, "max_queue_size": -1, "agent_factory": stream}
    bad |= {"timeout": -2, "name": " ", "retry": 5, "backpressure": "fail_fast", "colour": "blue"}
    with pytest.raises(UsageError) as told:
        AgentPool(**bad)
    faults = ("num_workers=0", "max_queue_size=-1", "agent_factory=<", "timeout=-2", "name=' '")
    assert [one for one in (*faults, "retry=5 is not") if one not in str(told.value)] == []
    assert "'backpressure' is not an option of an agent pool; use max_queue_size=…" in str(
        told.value
    )
    assert "'colour' is not an option" in str(told.value)
    with pytest.raises(UsageError, match="agent_factory=None"):
        AgentPool()
    assert list_pools() == []


@seeded
async def test_a_bad_submit_leaves_no_job(runtime: SeededRuntime) -> None:
    wrong: Any
    async with AgentPool(agent_factory=Echo, runtime=runtime) as pool:
        for wrong in ("", "  ", None, 5, b"s"):
            with pytest.raises(UsageError, match="session_id="):
                await pool.submit_nowait(wrong, 1)
            with pytest.raises(UsageError, match=r"session_id=.*; block=3"):
                await pool.submit(wrong, 1, block=3)  # type: ignore[arg-type]
        assert pool.snapshot().total == 0


@seeded
async def test_bad_scaling_options_are_reported_by_their_own_names(runtime: SeededRuntime) -> None:
    async with AgentPool(agent_factory=Echo, runtime=runtime) as pool:
        with pytest.raises(UsageError) as told:
            await pool.auto_scale(0, 1, 2.0, -1.0, 0)
        words = ("min_workers=0", "scale_up_threshold=2.0", "scale_down_threshold=-1.0")
        assert all(word in str(told.value) for word in (*words, "check_interval=0"))
        with pytest.raises(UsageError, match=r"max_workers=1 .*at least min_workers=2"):
            await pool.auto_scale(max_workers=1)


# Blocking agents, in real threads


class Gate:
    """Blocking agents that wait in their threads until the gate is opened."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.open = threading.Event()
        self.inside: set[int] = set()
        self.most = 0
        self.closed: list[int] = []
        self._lock = threading.Lock()

    def agent(self) -> _Blocking:
        return _Blocking(self)

    def enter(self, number: int) -> None:
        with self._lock:
            self.inside.add(number)
            self.most = max(self.most, len(self.inside))
        self.began.release()
        self.open.wait(30)
        with self._lock:
            self.inside.remove(number)


class _Blocking:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._number = -1

    def run(self, *, session_id: str, payload: int) -> tuple[int, bool]:
        self._number = payload
        self._gate.enter(payload)
        return payload, stop_requested()

    def close(self) -> None:
        self._gate.closed.append(self._number)


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    """A gate that is opened at the end, so that no thread outlives its test."""
    one = Gate()
    yield one
    one.open.set()


async def begun(gate: Gate, times: int = 1) -> None:
    for _ in range(times):
        assert await asyncio.to_thread(gate.began.acquire, timeout=30)


def freed(pool_events: Events) -> asyncio.Event:
    """An event that is set when a stuck slot is free again."""
    one = asyncio.Event()
    pool_events.subscribe(lambda event: one.set() if isinstance(event, SlotFreed) else None)
    return one


async def test_a_blocking_agent_blocks_neither_the_loop_nor_other_agents(gate: Gate) -> None:
    async with AgentPool(3, 10, gate.agent) as pool:
        callers = [asyncio.create_task(pool.submit(f"s{n}", n)) for n in range(6)]
        await begun(gate, 3)
        assert pool.snapshot().active == 3
        gate.open.set()
        answers = await asyncio.gather(*callers)
        assert answers == [{"status": "success", "result": (n, False)} for n in range(6)]
    assert gate.most == 3
    assert sorted(gate.closed) == list(range(6))


@pytest.mark.parametrize("kind", ["class", "partial", "function"])
async def test_a_blocking_agent_is_made_run_and_closed_in_one_thread(kind: str) -> None:
    threads: list[int] = []

    class Bound:
        def __init__(self) -> None:
            threads.append(threading.get_ident())

        def run(self, *, session_id: str, payload: Any) -> None:
            threads.append(threading.get_ident())
            if payload:
                raise OSError

        def close(self) -> None:
            threads.append(threading.get_ident())

    makes: dict[str, Callable[[], Any]] = {"class": Bound, "partial": partial(Bound)}
    async with AgentPool(agent_factory=makes.get(kind, lambda: Bound())) as pool:
        for fails in (False, True):
            await pool.submit("s", fails)
            assert len(threads) == 3
            assert len(set(threads)) == 1
            assert threading.get_ident() not in threads
            threads.clear()


async def test_an_async_agent_lives_on_the_loop() -> None:
    class Living:
        def __init__(self) -> None:
            self.loop = asyncio.get_running_loop()

        async def run(self, *, session_id: str, payload: Any) -> bool:
            return self.loop is asyncio.get_running_loop()

        def close(self) -> None:
            closed_on.append(asyncio.get_running_loop())

    closed_on: list[object] = []
    async with AgentPool(agent_factory=Living) as pool:
        assert await pool.submit("s", 1) == {"status": "success", "result": True}
    assert closed_on == [asyncio.get_running_loop()]


async def test_a_factory_that_takes_its_time_does_not_block_the_loop() -> None:
    began, go_on = threading.Event(), threading.Event()

    def connect() -> Echo:
        began.set()
        go_on.wait(30)
        return Echo()

    async with AgentPool(agent_factory=connect) as pool:
        caller = asyncio.create_task(pool.submit("s", 1))
        await asyncio.to_thread(began.wait, 30)
        go_on.set()
        assert await caller == {"status": "success", "result": "s: 1"}


async def test_a_blocking_agent_sees_the_context_of_its_submitter() -> None:
    class Looking:
        def run(self, *, session_id: str, payload: Any) -> tuple[str, str | None]:
            job = current_job()
            seen = COLOUR.get()
            COLOUR.set("spoiled")
            return seen, None if job is None else job.session

    COLOUR.set("blue")
    async with AgentPool(agent_factory=Looking) as pool:
        for _ in range(2):
            assert (await pool.submit("s", 1))["result"] == ("blue", "s")
    assert COLOUR.get() == "blue"


async def test_a_thread_that_runs_past_its_timeout_keeps_its_slot_until_it_ends(gate: Gate) -> None:
    events = Events()
    free = freed(events)
    async with AgentPool(1, 10, gate.agent, timeout=0.01, events=events) as pool:
        while not pool.snapshot().stuck:
            # On a busy machine its timeout may be over before its thread has begun.
            first = await pool.submit("s1", 1)
            assert first["error"].startswith("JobTimedOut: ")
        await begun(gate)
        assert pool.snapshot().stuck == 1
        second = asyncio.create_task(pool.submit("s2", 2))
        await asyncio.sleep(0)
        assert (gate.inside, 1 in gate.closed, pool.snapshot().queued) == ({1}, False, 1)
        closed_before = len(gate.closed)
        gate.open.set()
        await second
        assert free.is_set()
    assert gate.most == 1
    assert gate.closed[closed_before] == 1
    assert gate.closed.count(1) == 1


@pytest.mark.parametrize("factory", ["plain", "async"])
async def test_a_blocking_agent_that_is_cancelled_is_waited_for_and_closed(
    gate: Gate, factory: str
) -> None:
    async def make() -> Any:
        return gate.agent()

    maker = make if factory == "async" else gate.agent
    async with AgentPool(1, 10, maker, cancel_grace=30) as pool:
        job = await pool.submit_nowait("s", 1)
        await begun(gate)
        cancelling = asyncio.create_task(pool.cancel(job))
        await asyncio.sleep(0)
        assert pool.get(job) == {"job_id": job, "status": "running"}
        gate.open.set()
        # A thread that finishes although it was asked to stop has completed, as in any pool.
        assert not await cancelling
        found = pool.get(job)
        assert found is not None
        assert found["status"] == "completed"
    assert gate.closed == [1]


async def test_a_blocking_agent_asked_softly_may_still_give_its_result() -> None:
    class Obedient:
        def run(self, *, session_id: str, payload: Any) -> str:
            never = threading.Event()
            while not stop_requested():
                never.wait(0.001)
            return "so far"

    async with AgentPool(agent_factory=Obedient, soft_timeout=0.01) as pool:
        assert await pool.submit("s", 1) == {"status": "success", "result": "so far"}


async def test_an_agent_whose_job_was_cancelled_while_it_was_made_does_not_run() -> None:
    began, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    class Late:
        def run(self, *, session_id: str, payload: Any) -> None:
            seen.append("ran")

        def close(self) -> None:
            seen.append("closed")

    def connect() -> Late:
        began.set()
        go_on.wait(30)
        return Late()

    async with AgentPool(agent_factory=connect, cancel_grace=30) as pool:
        job = await pool.submit_nowait("s", 1)
        await asyncio.to_thread(began.wait, 30)
        cancelling = asyncio.create_task(pool.cancel(job))
        await asyncio.sleep(0)
        go_on.set()
        assert await cancelling
    assert seen == ["closed"]


async def test_a_job_for_which_no_thread_can_be_had_fails_and_its_agent_is_closed() -> None:
    class Poor(Runtime):
        def in_thread(self, call: Callable[[], None], name: str) -> None:
            raise RuntimeError("can't start new thread")

    closed: list[object] = []

    class Plain:
        def run(self, *, session_id: str, payload: Any) -> None: ...

        async def aclose(self) -> None:
            closed.append(self)

    async def make() -> Plain:
        return Plain()

    for factory, closes in ((Plain, 0), (make, 1)):
        async with AgentPool(agent_factory=factory, runtime=Poor()) as pool:
            answer = await pool.submit("s", 1)
            assert answer == {"status": "error", "error": "RuntimeError: can't start new thread"}
            assert len(closed) == closes


@pytest.mark.parametrize("drains", [True, False])
def test_a_loop_can_end_although_a_thread_does_not(drains: bool) -> None:
    gate = Gate()

    async def main() -> int:
        pool = await AgentPool(1, 10, gate.agent).start()
        await pool.submit_nowait("s", 1)
        await begun(gate)
        return (await pool.drain(0)).stuck if drains else 1

    try:
        assert asyncio.run(main()) == 1
        assert gate.inside == {1}
    finally:
        gate.open.set()


# The lifespan of an application


@seeded
async def test_a_lifespan_starts_a_pool_and_drains_it(runtime: SeededRuntime) -> None:
    door = Door()
    pool = AgentPool(2, 100, door.agent, runtime=runtime)
    lifespan = pool_lifespan(pool)
    for _ in range(2):
        async with lifespan(None):
            for number in range(50):
                await pool.submit_nowait(f"s{number}", number)
            await asyncio.sleep(100)
            # It scales itself by default.
            assert len(door.running) > 5
            before = runtime.monotonic()
        assert 30 <= runtime.monotonic() - before <= 31
        assert pool.snapshot().draining
        assert list_pools() == []


@pytest.mark.parametrize("agents", [True, False])
@seeded
async def test_a_lifespan_passes_its_scaling_options(runtime: SeededRuntime, agents: bool) -> None:
    door = Door()

    async def load(pool: Any, size: int, **options: Any) -> None:
        async with pool_lifespan(pool, drain_timeout=0, **options)(None):
            beneath = pool.pool if agents else pool
            for _ in range(90):
                beneath.submit_nowait(door.open.wait)
            await asyncio.sleep(100)
            assert beneath.health().pool_size == size

    def made(**options: Any) -> Any:
        if agents:
            return AgentPool(2, 100, Echo, runtime=runtime)
        return Pool(max_concurrent=2, runtime=runtime, **options)

    await load(made(), 2, autoscale=None)
    await load(made(), 4, autoscale=Autoscale(max=4))
    await load(made(autoscale=Autoscale(max=4)), 2, autoscale=None)
    if not agents:
        await load(made(), 2)
        await load(made(autoscale=Autoscale(max=3)), 3)


@seeded
async def test_a_lifespan_drains_also_when_the_application_fails(runtime: SeededRuntime) -> None:
    pool = AgentPool(agent_factory=Echo, runtime=runtime)
    jobs: list[str] = []

    async def serve() -> None:
        async with pool_lifespan(pool)(None):
            jobs.append(await pool.submit_nowait("s", 1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await serve()
    assert [pool.get(one)["result"] for one in jobs] == ["s: 1"]  # type: ignore[index]
    assert list_pools() == []


@seeded
async def test_a_lifespan_cancelled_twice_ends_at_once(runtime: SeededRuntime) -> None:
    door = Door()
    pool = AgentPool(agent_factory=door.agent, runtime=runtime)

    async def serve() -> None:
        async with pool_lifespan(pool)(None):
            await pool.submit_nowait("s", 1)
            await asyncio.sleep(1)

    serving = asyncio.create_task(serve())
    await asyncio.sleep(2)
    assert pool.snapshot().draining
    serving.cancel()
    before = runtime.monotonic()
    await asyncio.wait([serving])
    assert serving.cancelled()
    assert runtime.monotonic() - before <= 1
    assert (door.closed, list_pools()) == ([1], [])


def test_all_bad_lifespan_options_are_reported_at_once() -> None:
    wrong: Any = "pool"
    with pytest.raises(UsageError, match=r"pool='pool'.*drain_timeout=-1.*autoscale=5"):
        pool_lifespan(wrong, drain_timeout=-1, autoscale=5)  # type: ignore[arg-type]


async def test_jobs_are_named_after_their_agent_factory() -> None:
    class Researcher:
        async def run(self, *, session_id: str, payload: Any) -> str:
            job = current_job()
            return "" if job is None else job.name

    async with AgentPool(agent_factory=Researcher) as pool:
        assert await pool.submit("s", 1) == {"status": "success", "result": "Researcher"}


@pytest.mark.parametrize(("workers", "bounds"), [(1, (1, 50)), (10, (2, 50)), (80, (2, 80))])
async def test_a_lifespan_keeps_the_given_size_within_its_bounds(
    workers: int, bounds: tuple[int, int]
) -> None:
    pool = AgentPool(workers, agent_factory=Echo)
    async with pool_lifespan(pool)(None):
        scaler = pool.pool._scaler
        assert scaler is not None
        assert (scaler.settings.min, scaler.settings.max) == bounds
        assert pool.health_check()["pool_size"] == workers


@seeded
async def test_a_close_that_hangs_neither_undoes_nor_repeats_a_successful_run(
    runtime: SeededRuntime,
) -> None:
    runs: list[Any] = []

    class Paid:
        async def run(self, *, session_id: str, payload: Any) -> str:
            runs.append(payload)
            return "paid"

        async def aclose(self) -> None:
            await asyncio.Event().wait()

    async with AgentPool(
        1, 10, Paid, timeout=2, retry=Retry(attempts=3, first=1), runtime=runtime
    ) as pool:
        assert await pool.submit("s", 1) == {"status": "success", "result": "paid"}
        assert runs == [1]


@seeded
async def test_a_job_id_is_a_text(runtime: SeededRuntime) -> None:
    async with AgentPool(agent_factory=Echo, runtime=runtime) as pool:
        bad: Any = []
        with pytest.raises(UsageError, match="job_id"):
            pool.get(bad)
