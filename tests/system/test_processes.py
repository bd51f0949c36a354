"""Jobs in child processes that are killed, die, or outlive their job and their parent."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from poolhand import GiveUp, Pool, Retry, RetryLater, Ticket, list_pools, wait
from poolhand.errors import JobCancelled, JobFailed, JobLost, JobTimedOut
from poolhand.observe.events import Event, Events, JobEnded, JobMarked, WorkerVanished
from poolhand.pool.submitter import Submitter
from poolhand.runtime import Runtime
from poolhand.views import Status
from tests.system import jobs

REPOSITORY = Path(__file__).parents[2]
LIMIT = 40  # seconds after which a wait gives up
SOON = 0.5  # seconds in which a job begins if its child is ready
MEGABYTES = 20 * 2**20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs to see processes end"),
]


async def readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(fd, note)
    try:
        async with asyncio.timeout(LIMIT):
            await future
    finally:
        loop.remove_reader(fd)


async def gone(*pids: int) -> None:
    """Wait until processes have ended."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            await readable(fd)
        finally:
            os.close(fd)


class Wire:
    """Two FIFOs between a test and its jobs: jobs report, and wait until they are released."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self._rest = b""
        # Open at both ends, so that neither side waits for the other to open it.
        self._news, self._leave = (_fifo(folder / name) for name in ("news", "leave"))

    async def reports(self) -> list[int]:
        """Wait for the next report; return its pids, that of the reporter first."""
        while b"\n" not in self._rest:
            await readable(self._news)
            self._rest += os.read(self._news, 4096)
        line, _, self._rest = self._rest.partition(b"\n")
        return [int(word) for word in line.split()]

    async def pid(self) -> int:
        return (await self.reports())[0]

    def let_go(self, count: int = 1) -> None:
        """Release so many jobs."""
        os.write(self._leave, b"." * count)

    def close(self) -> None:
        os.close(self._news)
        os.close(self._leave)


def _fifo(path: Path) -> int:
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


class Ears:
    """Records events and lets a test wait for one."""

    def __init__(self) -> None:
        self.events = Events()
        self.heard: list[Event] = []
        self._news = asyncio.Event()
        self.events.subscribe(self._note)

    def _note(self, event: Event) -> None:
        self.heard.append(event)
        self._news.set()

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.heard if type(event) is kind]

    async def next(self, kind: type[Event]) -> Any:
        async with asyncio.timeout(LIMIT):
            while not self.of(kind):
                self._news.clear()
                await self._news.wait()
        return self.of(kind)[-1]


def alive() -> int:
    return len(multiprocessing.active_children())


async def until(condition: Callable[[], bool]) -> None:
    """Look every few milliseconds: what is waited for happens in other processes."""
    async with asyncio.timeout(LIMIT):
        while not condition():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.005):
                    await asyncio.Event().wait()


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    one = Wire(tmp_path)
    yield one
    one.close()


@pytest.fixture(autouse=True)
def main(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The main script, which each child imports: not pytest, which takes a while."""
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    return script


@pytest.fixture(autouse=True)
def no_child_outlives_its_test() -> Iterator[None]:
    yield
    pause = threading.Event()
    for _ in range(100 * LIMIT):
        if not alive():
            return
        pause.wait(0.01)
    pytest.fail(f"left behind: {multiprocessing.active_children()}")


# Values and errors


async def test_plain_functions_run_in_a_process_with_their_arguments_async_ones_do_not() -> None:
    async def on_loop() -> int:
        return os.getpid()

    async with Pool(run_in="process") as pool:
        assert await pool.run(jobs.echo, 1, [2], three={3: b"4"}) == (
            (1, [2]),
            {"three": {3: b"4"}},
        )
        assert await pool.run(os.getpid) != os.getpid()
        assert await pool.run(on_loop) == os.getpid()
        assert await pool.with_options(run_in="thread").run(os.getpid) == os.getpid()
        assert await pool.run("".join, ["a", "b"]) == "ab"


async def test_jobs_one_after_the_other_run_in_the_same_child() -> None:
    async with Pool(max_concurrent=4, run_in="process") as pool:
        assert len({await pool.run(os.getpid) for _ in range(20)}) == 1
        assert alive() == 1


async def test_huge_arguments_and_results_arrive_whole() -> None:
    async with Pool(run_in="process") as pool:
        sent = random.Random(5).randbytes(MEGABYTES)
        (received,), _ = await pool.run(jobs.echo, sent)
        assert received == sent


async def test_a_process_job_can_read_its_own_context() -> None:
    async with Pool("seen", run_in="process") as pool:
        view = pool.with_options(key="acme", session="s")
        ticket = await view.submit(jobs.look)
        job, stop = await ticket
        assert job is not None
        assert (job.id, job.pool, job.key, job.session) == (ticket.id, "seen", "acme", "s")
        assert (job.status, job.attempts, job.name, stop) == (Status.RUNNING, 1, "look", False)


async def test_a_job_does_not_see_context_set_by_the_previous_one() -> None:
    async with Pool(run_in="process") as pool:
        assert await pool.run(jobs.colour, "red") == "none"
        assert await pool.run(jobs.colour, "blue") == "none"


async def test_an_error_reaches_the_caller_as_it_was_raised() -> None:
    async with Pool(run_in="process") as pool:
        ticket = await pool.submit(jobs.fail_with_quota)
        with pytest.raises(jobs.Quota, match=r"^spent$") as caught:
            await ticket
        assert caught.value.left == 7
        where = str(caught.value.__cause__)
        assert "in fail_with_quota" in where
        assert 'raise Quota("spent", left=7)' in where
        assert "_carry_out" not in where
        fault = ticket.snapshot().error
        assert fault is not None
        assert (fault.type, fault.message) == ("tests.system.jobs.Quota", "spent")
        assert 'raise Quota("spent", left=7)' in fault.traceback


async def test_an_unpicklable_result_or_error_fails_its_job_and_not_its_child() -> None:
    expected = {
        jobs.fail_locally: "fail_locally.<locals>.Local: nobody else knows me",
        jobs.fail_in_two_parts: "tests.system.jobs.TwoParts: 7 out of paper",
        jobs.return_lambda: "it returned a function, which cannot be sent from its process",
        jobs.return_shy: "cannot be unpickled outside its process (LookupError: not here)",
    }
    async with Pool(run_in="process") as pool:
        child = await pool.run(os.getpid)
        for job, text in expected.items():
            ticket: Ticket[Any] = await pool.submit(job)
            with pytest.raises(JobFailed) as caught:
                await ticket
            assert text in str(caught.value)
            assert ticket.id in str(caught.value)
            fault = ticket.snapshot().error
            assert fault is not None
            assert ("jobs.py" in fault.traceback) == job.__name__.startswith("fail")
        assert await pool.run(os.getpid) == child


def only_here() -> None:
    """Its module is removed below."""


async def test_a_call_that_its_child_cannot_unpickle_fails_with_instructions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("made_in_this_process")
    module.__dict__["only_here"] = only_here
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(only_here, "__module__", module.__name__)
    async with Pool(run_in="process") as pool:
        with pytest.raises(JobFailed, match=r"No module named 'made_in_this_process'\); use a"):
            await pool.run(only_here)
        assert await pool.run(int) == 0


async def fate(submitter: Submitter, error: BaseException) -> tuple[object, ...]:
    """Return the outcome of a job that raises this error, without what differs in each run."""
    ticket = await submitter.submit(jobs.fail, error)
    job = await wait(ticket)
    told = None if job.error is None else (job.error.type, job.error.message.replace(job.id, "ID"))
    raised: BaseException | None = None
    try:
        await ticket
    except BaseException as other:
        raised = other
    assert raised is not None
    cause = raised.__cause__ if isinstance(raised, JobFailed) else None
    return job.status, job.attempts, told, type(raised), type(cause), getattr(cause, "args", None)


async def test_directives_raised_in_a_process_mean_the_same_as_in_a_thread() -> None:
    errors: list[BaseException] = [
        LookupError("nothing", 3),
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration("end"),
        GeneratorExit(),
        asyncio.CancelledError(),
        GiveUp("no use"),
        RetryLater(0.0),
        TimeoutError("mine"),
    ]
    async with Pool(run_in="process", retry=Retry(attempts=2, first=0)) as pool:
        child = await pool.run(os.getpid)
        in_thread = pool.with_options(run_in="thread")
        for error in errors:
            assert await fate(pool, error) == await fate(in_thread, error), repr(error)
        assert await pool.run(os.getpid) == child


async def test_a_process_job_may_request_a_retry(tmp_path: Path) -> None:
    async with Pool(run_in="process") as pool:
        later = await pool.submit(jobs.fail_once, str(tmp_path / "later"), RetryLater(0.0))
        snooze = await pool.submit(jobs.snooze_once, str(tmp_path / "snooze"))
        assert (await later, await snooze) == (2, 2)
        assert (later.snapshot().attempts, snooze.snapshot().attempts) == (2, 1)


async def test_a_process_job_is_not_retried_after_an_error_that_cannot_be_rebuilt() -> None:
    retry = Retry(attempts=3, first=0, give_up_on=(jobs.Picky,))
    async with Pool(run_in="process", retry=retry) as pool:
        ticket = await pool.submit(jobs.be_picky)
        with pytest.raises(
            JobFailed, match=r"failed in its process: tests\.system\.jobs\.Picky: 1"
        ):
            await ticket
        assert ticket.snapshot().attempts == 1


# Death


async def test_a_killed_child_fails_only_its_own_job(wire: Wire) -> None:
    ears = Ears()
    gate = asyncio.Event()
    async with Pool(max_concurrent=4, run_in="process", events=ears.events) as pool:
        on_loop = await pool.submit(gate.wait)
        tickets = [await pool.submit(jobs.hold, wire.path) for _ in range(3)]
        pids = [await wire.pid() for _ in tickets]
        os.kill(pids[0], signal.SIGKILL)
        vanished = await ears.next(WorkerVanished)
        victim = next(ticket for ticket in tickets if ticket.id == vanished.job.id)
        with pytest.raises(JobLost, match=f"its process {pids[0]} was killed by SIGKILL "):
            await victim
        wire.let_go(2)
        gate.set()
        assert await on_loop
        others = [await ticket for ticket in tickets if ticket is not victim]
        assert sorted(others) == sorted(pids[1:])
        assert len(ears.of(WorkerVanished)) == 1
        fault = victim.snapshot().error
        assert fault is not None
        assert vanished.why == fault.message
        assert vanished.slot in pool.snapshot().workers
        seen = pool.snapshot()
        assert (seen.active, seen.stuck, seen.failed, seen.completed) == (0, 0, 1, 3)
        again = [await pool.submit(jobs.hold, wire.path) for _ in range(4)]
        assert len({await wire.pid() for _ in again}) == 4
        wire.let_go(4)
        assert {job.status for job in await wait(again)} == {Status.COMPLETED}


async def test_a_job_that_lost_its_child_is_retried_by_its_policy(tmp_path: Path) -> None:
    ears = Ears()
    retry = Retry(attempts=2, first=0)
    async with Pool(run_in="process", retry=retry, events=ears.events) as pool:
        ticket = await pool.submit(jobs.die_once, str(tmp_path / "calls"))
        assert await ticket == 2
        assert ticket.snapshot().attempts == 2
        assert len(ears.of(WorkerVanished)) == 1


async def test_a_job_that_ends_its_own_process_is_lost_and_the_error_names_the_exit() -> None:
    expected: list[tuple[Callable[[int], None], int, str]] = [
        (jobs.exit_now, 0, "ended with exit code 0"),
        (jobs.exit_now, 9, "ended with exit code 9"),
        (jobs.send_self, signal.SIGSEGV, "was killed by SIGSEGV"),
        (jobs.send_self, signal.SIGTERM, "was killed by SIGTERM"),
    ]
    async with Pool(max_concurrent=2, run_in="process") as pool:
        for job, number, text in expected:
            with pytest.raises(JobLost, match=rf"{text} \[PH-JOB-007\]$"):
                await pool.run(job, number)
        assert await pool.run(int) == 0
        assert pool.snapshot().active == 0


async def test_a_started_job_is_not_run_again_unless_its_policy_says_so(
    tmp_path: Path,
) -> None:
    calls = str(tmp_path / "calls")
    async with Pool(run_in="process") as pool:
        child = await pool.run(os.getpid)
        with pytest.raises(JobLost, match=f"its process {child} was killed by SIGKILL "):
            await pool.run(jobs.die_once, calls)
        assert await pool.run(jobs.count, calls) == 2


async def test_a_child_that_dies_between_two_jobs_harms_neither() -> None:
    ears = Ears()
    async with Pool(run_in="process", events=ears.events) as pool:
        dead: set[int] = set()
        for patient in (True, False, False):
            child = await pool.run(os.getpid)
            assert child not in dead
            dead.add(child)
            os.kill(child, signal.SIGKILL)
            if patient:
                await gone(child)
        assert await pool.run(os.getpid) not in dead
        assert ears.of(WorkerVanished) == []
        assert alive() == 1


async def test_a_dead_child_leaves_no_open_file_behind_though_its_errors_are_kept() -> None:
    async with Pool(run_in="process") as pool:
        counts: list[int] = []
        for _ in range(3):
            child = await pool.run(os.getpid)
            for job in (jobs.fail_with_quota, jobs.return_shy):
                await wait(await pool.submit(job))
            counts.append(len(os.listdir("/proc/self/fd")))
            await wait(await pool.submit(jobs.exit_now, 1))
            await gone(child)
        assert len(pool.dead()) == 9
        assert counts == counts[:1] * 3


async def test_a_process_that_the_job_left_behind_does_not_hide_its_death(wire: Wire) -> None:
    async with Pool(run_in="process") as pool:
        ticket = await pool.submit(jobs.leave_fork_behind, wire.path)
        _, fork = await wire.reports()
        with pytest.raises(JobLost, match=r"ended with exit code 3 \[PH-JOB-007\]$"):
            await ticket
        await gone(fork)
        assert await pool.run(int) == 0


# Time


async def test_a_hard_timeout_kills_the_child_and_the_next_job_gets_a_fresh_one(wire: Wire) -> None:
    async with Pool(run_in="process") as pool:
        child = await pool.run(os.getpid)
        ticket = await pool.with_options(timeout=SOON).submit(jobs.be_stubborn, wire.path)
        assert await wire.pid() == child
        with pytest.raises(JobTimedOut):
            await ticket
        assert ticket.snapshot().marks == ("hard_timeout",)
        await gone(child)
        assert await pool.run(os.getpid) != child
        seen = pool.snapshot()
        assert (seen.active, seen.stuck, seen.failed) == (0, 0, 1)


async def test_a_job_can_see_its_soft_timeout(wire: Wire) -> None:
    async with Pool(run_in="process") as pool:
        child = await pool.run(os.getpid)
        ticket = await pool.with_options(soft_timeout=SOON).submit(jobs.be_polite, wire.path)
        assert await ticket == "stopped by itself"
        assert ticket.snapshot().marks == ("soft_timeout",)
        _, stop = await pool.run(jobs.look)
        assert not stop
        assert await pool.run(os.getpid) == child


async def test_a_cancelled_job_that_stops_keeps_its_child(wire: Wire) -> None:
    async with Pool(run_in="process", cancel_grace=LIMIT) as pool:
        ticket = await pool.submit(jobs.be_polite, wire.path)
        child = await wire.pid()
        await ticket.cancel()
        assert await ticket == "stopped by itself"
        assert await pool.run(os.getpid) == child


async def test_a_cancelled_job_that_does_not_stop_is_killed_with_its_subprocesses(
    wire: Wire,
) -> None:
    async with Pool(run_in="process", cancel_grace=0.02) as pool:
        ticket = await pool.submit(jobs.be_stubborn_with_company, wire.path)
        pids = await wire.reports()
        assert await ticket.cancel()
        with pytest.raises(JobCancelled):
            await ticket
        await gone(*pids)
        assert await pool.run(os.getpid) not in pids
        seen = pool.snapshot()
        assert (seen.active, seen.stuck, seen.cancelled) == (0, 0, 1)


async def test_a_process_job_may_have_a_pool_whose_children_die_with_it(wire: Wire) -> None:
    async with Pool(run_in="process", cancel_grace=0) as pool:
        ticket = await pool.submit(jobs.nest, wire.path)
        grandchild = await wire.pid()
        assert await ticket.cancel()
        await gone(grandchild)


@pytest.fixture
def slow_start(main: ModuleType, wire: Wire, tmp_path: Path) -> None:
    """Children report that they start, and continue when they are released."""
    script = tmp_path / "script.py"
    script.write_text(f"from tests.system import jobs\njobs.hold({wire.path!r})\n")
    main.__file__ = str(script)


@pytest.mark.usefixtures("slow_start")
async def test_a_job_can_be_killed_while_its_child_starts(wire: Wire, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    async with Pool(run_in="process", cancel_grace=0) as pool:
        with pytest.raises(JobTimedOut):
            await pool.with_options(timeout=0.001).run(jobs.count, str(calls))
        ticket = await pool.submit(jobs.count, str(calls))
        child = await wire.pid()
        assert await ticket.cancel()
        await gone(child)
        assert not calls.exists()
        wire.let_go()
        assert await pool.run(jobs.count, str(calls)) == 1
        assert pool.snapshot().stuck == 0


@pytest.mark.usefixtures("slow_start")
async def test_a_job_cancelled_while_its_child_starts_never_runs_and_the_child_serves_the_next(
    wire: Wire, tmp_path: Path
) -> None:
    ears = Ears()
    calls = tmp_path / "calls"
    async with Pool(run_in="process", cancel_grace=LIMIT, events=ears.events) as pool:
        ticket = await pool.submit(jobs.count, str(calls))
        child = await wire.pid()
        cancelling = asyncio.create_task(ticket.cancel())
        await ears.next(JobMarked)
        wire.let_go()
        assert await cancelling
        assert not calls.exists()
        assert await pool.run(os.getpid) == child


@pytest.mark.usefixtures("slow_start")
async def test_a_stop_request_while_the_child_starts_is_seen_by_the_job(wire: Wire) -> None:
    ears = Ears()
    async with Pool(run_in="process", soft_timeout=SOON, events=ears.events) as pool:
        ticket = await pool.submit(jobs.look)
        await ears.next(JobMarked)
        wire.let_go()
        (_, stop) = await ticket
        assert stop


class SlowRuntime(Runtime):
    """A runtime that starts no process before it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def spawn(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> BaseProcess:
        self.go.wait(LIMIT)
        return super().spawn(target, args, name)


async def test_a_stop_request_before_there_is_a_child_is_seen_by_the_job() -> None:
    ears = Ears()
    runtime = SlowRuntime()
    async with Pool(runtime=runtime, run_in="process", events=ears.events) as pool:
        ticket = await pool.with_options(soft_timeout=SOON).submit(jobs.look)
        await ears.next(JobMarked)
        runtime.go.set()
        _, stop = await ticket
        assert stop
        _, stop = await pool.run(jobs.look)
        assert not stop


async def test_a_job_killed_before_there_is_a_child_never_runs(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    runtime = SlowRuntime()
    async with Pool(runtime=runtime, run_in="process", cancel_grace=0) as pool:
        ticket = await pool.submit(jobs.count, str(calls))
        assert await ticket.cancel()
        runtime.go.set()
        assert await pool.run(int) == 0
        assert not calls.exists()
        assert alive() == 1


# Number of children, and their end


async def test_there_are_never_more_children_than_slots(wire: Wire) -> None:
    async with Pool(max_concurrent=4, run_in="process") as pool:
        tickets = [await pool.submit(jobs.hold, wire.path) for _ in range(4)]
        assert len({await wire.pid() for _ in tickets}) == alive() == 4
        wire.let_go(2)
        await until(lambda: pool.stats().completed == 2)
        await pool.resize(2)
        await until(lambda: alive() == 2)
        wire.let_go(2)
        assert {job.status for job in await wait(tickets)} == {Status.COMPLETED}
        tickets = [await pool.submit(jobs.hold, wire.path) for _ in range(6)]
        assert await wire.pid() != await wire.pid()
        wire.let_go(6)
        assert len({await ticket for ticket in tickets}) == alive() == 2


async def test_children_of_surplus_slots_exit_when_their_jobs_finish(wire: Wire) -> None:
    async with Pool(max_concurrent=3, run_in="process") as pool:
        tickets = [await pool.submit(jobs.hold, wire.path) for _ in range(3)]
        pids = {await wire.pid() for _ in tickets}
        await pool.resize(1)
        for left in (2, 1):
            assert alive() == left + 1
            wire.let_go()
            await until(lambda: alive() == left)  # noqa: B023 - over before the next one
        wire.let_go()
        assert {await ticket for ticket in tickets} == pids
        assert await pool.run(os.getpid) in pids
        assert alive() == 1


async def test_a_drain_lets_jobs_finish_and_leaves_no_child(wire: Wire) -> None:
    pool = await Pool(max_concurrent=2, run_in="process").start()
    tickets = [await pool.submit(jobs.hold, wire.path) for _ in range(3)]
    pids = {await wire.pid(), await wire.pid()}
    drained = asyncio.create_task(pool.drain(LIMIT))
    wire.let_go(3)
    report = await drained
    assert (report.completed, report.stuck) == (3, 0)
    assert {await ticket for ticket in tickets} <= pids
    await gone(*pids)


async def test_a_drain_kills_jobs_that_do_not_stop(wire: Wire) -> None:
    pool = await Pool(max_concurrent=2, run_in="process").start()
    tickets = [
        await pool.submit(jobs.be_stubborn, wire.path),
        await pool.submit(jobs.hold_interpreter, wire.path),
        await pool.submit(jobs.be_stubborn, wire.path),
    ]
    pids = [await wire.pid(), await wire.pid()]
    report = await pool.drain(0)
    assert (report.cancelled, report.rejected, report.completed) == (2, 1, 0)
    assert [ticket.status.terminal for ticket in tickets] == [True] * 3
    await gone(*pids)


async def test_dead_letters_keys_and_sessions_work_for_jobs_in_processes(tmp_path: Path) -> None:
    async with Pool(max_concurrent=2, run_in="process") as pool:
        with pytest.raises(JobLost):
            await pool.run(jobs.die_once, str(tmp_path / "dead"))
        (dead,) = pool.dead()
        assert await (await pool.rerun(dead)) == 2
        assert pool.dead() == []

        once = pool.with_options(idempotency_key="once")
        same = [await once.submit(jobs.count, str(tmp_path / "once")) for _ in range(5)]
        assert [await ticket for ticket in same] == [1] * 5
        assert len({ticket.id for ticket in same}) == 1

        turns = pool.with_options(session="talk")
        turn = [await turns.submit(jobs.count, str(tmp_path / "talk")) for _ in range(10)]
        assert [await ticket for ticket in turn] == list(range(1, 11))


# Everything at once


class Reaper:
    """Kills a child now and then, and checks the pool at each event."""

    def __init__(self, every: int) -> None:
        self.events = Events()
        self.events.subscribe(self._see)
        self.ended: Counter[str] = Counter()
        self.kills = 0
        self.faults: list[str] = []
        self.pool: Pool | None = None
        self._every = every
        self._random = random.Random(11)

    def _see(self, event: Event) -> None:
        if self.pool is None:
            return
        seen = self.pool.snapshot()
        living = multiprocessing.active_children()
        if seen.active + seen.stuck > 4 or len(living) > 4:
            self.faults.append(f"{seen.active} + {seen.stuck} running, {len(living)} children")
        if isinstance(event, JobEnded):
            self.ended[event.job.id] += 1
            if self.ended.total() % self._every == 0 and living:
                self.kills += 1
                os.kill(self._random.choice(living).pid or 0, signal.SIGKILL)


async def test_a_mixed_pool_loses_nothing_while_its_children_are_killed() -> None:
    def in_thread() -> str:
        return threading.current_thread().name

    async def on_loop() -> None:
        await asyncio.sleep(0.001)

    reaper = Reaper(every=8)
    async with Pool(max_concurrent=4, events=reaper.events) as pool:
        reaper.pool = pool
        in_process = pool.with_options(run_in="process")
        stubborn = pool.with_options(run_in="process", timeout=0.01)
        tickets: list[Ticket[Any]] = []
        killed: list[Ticket[Any]] = []
        for number in range(200):
            if number % 4 == 0:
                tickets.append(await pool.submit(on_loop))
            elif number % 4 == 1:
                tickets.append(await pool.submit(in_thread))
            elif number % 40 == 2:
                killed.append(await stubborn.submit(signal.pause))
            else:
                killed.append(await in_process.submit(jobs.echo, number))
        done = await wait([*tickets, *killed])
        assert {job.status for job in done[:100]} == {Status.COMPLETED}
        for job in done[100:]:
            fault = job.error and job.error.type.rpartition(".")[2]
            assert (job.status, fault) in [
                (Status.COMPLETED, None),
                (Status.FAILED, "JobLost"),
                (Status.FAILED, "JobTimedOut"),
            ]
        assert set(reaper.ended.values()) == {1}
        assert len(reaper.ended) == 200
        assert reaper.kills >= 20
        assert reaper.faults == []
        meeting = asyncio.Barrier(4)
        await wait([await pool.submit(meeting.wait) for _ in range(4)])
        seen = pool.snapshot()
        assert (seen.active, seen.stuck, seen.total) == (0, 0, 204)
        assert seen.completed + seen.failed == 204


# Whole programs


@contextmanager
def program(folder: Path, text: str, wire: Wire | None = None) -> Iterator[subprocess.Popen[str]]:
    """A running script in its own process group, which is always ended."""
    script = folder / "program.py"
    start = "import asyncio, multiprocessing, os, signal, sys\n"
    start += "from poolhand import Pool\nfrom tests.system import jobs\n"
    start += f"WIRE = {wire and wire.path!r}\n"
    script.write_text(start + dedent(text))
    with subprocess.Popen(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    await gone(process.pid)
    # Processes that the program left behind hold its pipes open.
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


async def test_children_die_with_their_parent_whatever_they_are_doing(
    tmp_path: Path, wire: Wire
) -> None:
    text = """
        async def main():
            async with Pool(max_concurrent=4, run_in="process") as pool:
                await pool.submit(jobs.be_stubborn, WIRE)
                await pool.submit(jobs.hold_interpreter, WIRE)
                await pool.submit(jobs.be_stubborn_with_company, WIRE)
                await pool.submit(jobs.report, WIRE)
                await asyncio.Event().wait()

        if __name__ == "__main__":
            asyncio.run(main())
        """
    with program(tmp_path, text, wire) as parent:
        pids = [pid for _ in range(4) for pid in await wire.reports()]
        assert len(set(pids)) == 5
        parent.kill()
        await gone(*pids)
        assert await end_of(parent) == (-signal.SIGKILL, "", "")


async def test_a_fork_of_the_parent_neither_ends_its_children_nor_keeps_them_alive(
    tmp_path: Path, wire: Wire
) -> None:
    text = """
        import atexit

        async def main():
            async with Pool(max_concurrent=2, run_in="process") as pool:
                await pool.submit(jobs.be_stubborn, WIRE)
                await pool.run(jobs.report, WIRE)
                if not os.fork():
                    sys.stderr.close()
                    atexit._run_exitfuncs()
                    jobs.report(WIRE, os.getppid())
                    signal.pause()
                await asyncio.to_thread(open(WIRE + "/leave", "rb").read, 1)
                await pool.run(jobs.report, WIRE)
                await asyncio.Event().wait()

        if __name__ == "__main__":
            asyncio.run(main())
        """
    with program(tmp_path, text, wire) as parent:
        reports = [await wire.reports() for _ in range(3)]
        (fork,) = [pid for pid, *others in reports if others]
        pids = {pid for pid, *others in reports if not others}
        try:
            wire.let_go()
            assert await wire.pid() in pids
            parent.kill()
            await gone(*pids)
        finally:
            os.kill(fork, signal.SIGKILL)


ENDINGS = {
    "return": 0,
    "sys.exit(5)": 5,
    "raise LookupError('oh')": 1,
    "os._exit(6)": 6,
}


@pytest.mark.parametrize(
    "ending",
    [
        "return",
        "os._exit(6)",
        pytest.param("sys.exit(5)", marks=pytest.mark.full),
        pytest.param("raise LookupError('oh')", marks=pytest.mark.full),
    ],
)
async def test_a_program_that_ends_without_a_drain_ends_and_leaves_no_child(
    tmp_path: Path, wire: Wire, ending: str
) -> None:
    text = f"""
        async def main():
            pool = await Pool(max_concurrent=3, run_in="process").start()
            await pool.run(jobs.report, WIRE)
            await pool.submit(jobs.be_stubborn, WIRE)
            await pool.submit(jobs.be_stubborn, WIRE)
            await asyncio.to_thread(open(WIRE + "/leave", "rb").read, 1)
            await pool.submit(jobs.echo)
            {ending}

        if __name__ == "__main__":
            asyncio.run(main())
        """
    with program(tmp_path, text, wire) as parent:
        pids = {await wire.pid() for _ in range(3)}
        wire.let_go()
        code, _, err = await end_of(parent)
        await gone(*pids)
    assert code == ENDINGS[ending]
    assert ("LookupError: oh" in err) == ("oh" in ending)


async def test_ctrl_c_does_not_reach_the_children(tmp_path: Path, wire: Wire) -> None:
    text = """
        if __name__ == "__mp_main__":
            jobs.hold(WIRE)

        async def main():
            pool = await Pool(max_concurrent=2, run_in="process").start()
            tickets = [await pool.submit(jobs.hold, WIRE) for _ in range(2)]
            try:
                await asyncio.Event().wait()
            finally:
                jobs.report(WIRE)
                await pool.drain()
                print(*(ticket.status.value for ticket in tickets))

        if __name__ == "__main__":
            try:
                asyncio.run(main())
            except KeyboardInterrupt:
                sys.exit(3)
        """
    with program(tmp_path, text, wire) as parent:
        starting = {await wire.pid(), await wire.pid()}
        wire.let_go()
        assert await wire.pid() in starting
        os.killpg(parent.pid, signal.SIGINT)
        assert await wire.pid() == parent.pid
        wire.let_go(3)
        assert await end_of(parent) == (3, "completed completed\n", "")


async def test_a_script_without_a_main_guard_gets_an_error_and_no_fork_bomb(tmp_path: Path) -> None:
    text = """
        jobs.count("starts")

        async def main():
            async with Pool(run_in="process") as pool:
                await pool.run(jobs.echo)

        asyncio.run(main())
        """
    with program(tmp_path, text) as parent:
        code, _, err = await end_of(parent)
    assert code == 1
    last = err.splitlines()[-1]
    assert "JobLost" in last
    assert "exit code 1 before it was ready: each process that is started for a job imports" in last
    assert "if __name__ == '__main__':" in last
    assert (tmp_path / "starts").read_text() == ".."


async def test_a_pool_may_run_in_a_process_of_multiprocessing(tmp_path: Path, wire: Wire) -> None:
    text = """
        async def main():
            pool = await Pool(max_concurrent=2, run_in="process").start()
            await pool.submit(jobs.be_stubborn, WIRE)
            await pool.run(jobs.report, WIRE)
            await asyncio.to_thread(open(WIRE + "/leave", "rb").read, 1)

        def target():
            asyncio.run(main())

        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=target)
            process.start()
            process.join()
            sys.exit(process.exitcode)
        """
    with program(tmp_path, text, wire) as parent:
        pids = [await wire.pid(), await wire.pid()]
        wire.let_go()
        assert await end_of(parent) == (0, "", "")
        await gone(*pids)


# What a job does to its child


async def test_a_fork_inside_a_job_sends_no_answer() -> None:
    async with Pool(run_in="process") as pool:
        assert await pool.run(jobs.fork_and_return, "acme") == "acme"
        assert await pool.run(jobs.fork_and_raise) == "the parent"
        for number in range(5):
            assert await pool.run(str, number) == str(number)


@pytest.mark.parametrize("job", [jobs.raise_sealed, jobs.raise_odd])
async def test_an_error_with_unusual_attributes_still_reaches_the_caller(
    job: Callable[[], None],
) -> None:
    async with Pool(run_in="process") as pool:
        child = await pool.run(os.getpid)
        with pytest.raises((jobs.Sealed, jobs.Odd), match="kept"):
            await pool.run(job)
        assert await pool.run(os.getpid) == child


async def test_processes_left_by_a_job_end_with_its_child() -> None:
    async with Pool(run_in="process") as pool:
        left = await pool.run(jobs.leave_running)
    await until(lambda: is_gone(left))


async def test_a_job_that_reraises_job_lost_is_not_reported_as_lost_itself() -> None:
    ears = Ears()
    async with (
        Pool("inner", run_in="process", events=ears.events) as inner,
        Pool("outer", events=ears.events) as outer,
    ):
        with pytest.raises(JobLost):
            await outer.run(inner.run, os._exit, 3)
    assert [event.pool for event in ears.of(WorkerVanished)] == ["inner"]


def test_pools_left_without_a_drain_leave_no_process_behind() -> None:
    pids = [asyncio.run(undrained()) for _ in range(4)]
    assert list_pools() == []
    asyncio.run(until_gone(pids))


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


async def undrained() -> int:
    pool = await Pool(run_in="process").start()
    return await pool.run(os.getpid)


async def until_gone(pids: list[int]) -> None:
    await until(lambda: all(map(is_gone, pids)))
