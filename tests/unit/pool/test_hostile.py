"""Hostile jobs, errors and environments: no caller hangs, no slot is lost."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any, NoReturn

import pytest

from poolhand import Pool, RetryLater, Snooze, UsageError, wait
from poolhand.errors import JobFailed
from poolhand.rules.queue.ready import MOST_RESTING, Ready
from poolhand.rules.queue.strategy import fair_round_robin
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import seeded
from tests.unit.rules.floor import new_entry


def refuse(*_: Any) -> NoReturn:
    raise KeyboardInterrupt("looked at")


class Text(str):
    """A text that cannot be sliced or iterated."""

    __slots__ = ()

    __getitem__ = __iter__ = refuse


ERRORS: dict[str, type[BaseException]] = {
    "its text raises": type("BadText", (Exception,), {"__str__": refuse}),
    "its text is no plain text": type("OddText", (Exception,), {"__str__": lambda _: Text("x")}),
    "it has no truth": type("BadTruth", (Exception,), {"__bool__": refuse, "__len__": refuse}),
    "it has no class": type("BadClass", (Exception,), {"__class__": property(refuse)}),
    "its wish raises": type("BadWish", (Exception,), {"retry_after": property(refuse)}),
    "it exits without a text": type("BadExit", (SystemExit,), {"__str__": refuse}),
    "it hashes and compares badly": type(
        "BadHash", (Exception,), {"__hash__": refuse, "__eq__": refuse}
    ),
}


@pytest.mark.parametrize("what", ERRORS)
@seeded
async def test_an_error_that_raises_when_inspected_fails_only_its_job(
    runtime: SeededRuntime, what: str
) -> None:
    async def job() -> None:
        try:
            raise ERRORS[what]
        except BaseException as error:
            # Chained as well: the cause is inspected too.
            raise LookupError from error

    async def bare() -> None:
        raise ERRORS[what]

    async with Pool(runtime=runtime) as pool:
        for fn in (job, bare):
            ticket = await pool.submit(fn)
            assert (await wait(ticket)).status is Status.FAILED
        assert await pool.run(asyncio.sleep, 0, "well") == "well"
        assert pool.snapshot().active == 0


@pytest.mark.parametrize("directive", [RetryLater, Snooze])
@seeded
async def test_a_directive_whose_repr_raises_fails_its_job(
    runtime: SeededRuntime, directive: type[BaseException]
) -> None:
    kind = type("Wish", (directive,), {"__repr__": refuse})

    async def job() -> None:
        raise kind("x")

    async with Pool(runtime=runtime) as pool:
        with pytest.raises((JobFailed, UsageError)):
            await pool.run(job)
        assert await pool.run(asyncio.sleep, 0, "well") == "well"


async def test_a_value_that_raises_when_inspected_is_returned() -> None:
    kind = type("Proxy", (), {"__class__": property(refuse)})
    value = kind()
    async with Pool() as pool:
        assert await pool.run(lambda: value) is value


@pytest.mark.parametrize("kind", ["generator", "async generator"])
async def test_a_generator_is_refused_before_it_does_nothing(kind: str) -> None:
    def plain() -> Any:
        yield 1

    async def late() -> Any:
        yield 1

    async with Pool() as pool:
        with pytest.raises(UsageError, match="generator"):
            await pool.submit(plain if kind == "generator" else late)
        assert pool.snapshot().total == 0


async def test_job_records_are_consistent_when_read_from_any_thread() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        async with Pool(max_concurrent=4) as pool:
            tickets = [pool.submit_nowait(asyncio.sleep, 0, number) for number in range(500)]
            readers = [
                asyncio.to_thread(lambda: [ticket.status for ticket in tickets for _ in range(4)])
                for _ in range(3)
            ]
            await asyncio.gather(*readers, *tickets)
            jobs = [ticket.snapshot() for ticket in tickets]
    finally:
        sys.setswitchinterval(interval)
    assert [job.result for job in jobs] == list(range(500))
    assert {job.status for job in jobs} == {Status.COMPLETED}


async def test_a_snapshot_of_the_pool_is_taken_on_its_own_thread() -> None:
    async with Pool() as pool:
        with pytest.raises(UsageError, match=r"stats\(\) or size\(\)"):
            await asyncio.to_thread(pool.snapshot)
        assert await asyncio.to_thread(pool.size) == 0
        assert (await asyncio.to_thread(pool.stats)).submitted == 0


def run_in_child(queue: Any) -> None:
    async def main() -> int:
        async with Pool("forked") as pool:
            return await pool.run(len, "abc")

    queue.put(asyncio.run(main()))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
async def test_a_forked_process_has_its_own_threads_and_no_pool_names_taken() -> None:
    fork = multiprocessing.get_context("fork")
    async with Pool("forked") as pool:
        assert await pool.run(len, "ab") == 2
        queue = fork.SimpleQueue()
        # On a thread: a fork on the thread of the running loop could not start its own loop.
        child = fork.Process(target=run_in_child, args=(queue,))
        starter = threading.Thread(target=child.start)
        starter.start()
        starter.join()
        assert await asyncio.to_thread(queue.get) == 3
        child.join()


@seeded
async def test_a_drain_whose_own_task_is_cancelled_stops_at_once_and_reports(
    runtime: SeededRuntime,
) -> None:
    async with Pool("hurried", runtime=runtime, drain_timeout=100) as pool:
        tickets = [await pool.submit(asyncio.sleep, 1000) for _ in range(3)]
        drain = asyncio.create_task(pool.drain())
        await asyncio.sleep(1)
        task = next(one for one in asyncio.all_tasks() if one.get_name() == "hurried-drain")
        task.cancel()
        report = await drain
    assert (report.cancelled, report.rejected) == (1, 2)
    assert report.seconds < 3
    assert all(job.status.terminal for job in await wait(tickets))


SCRIPT = """
    import asyncio
    from poolhand import Pool, subscribe, wait

    def tell(event):
        if type(event).__name__ == "DrainStarted":
            # A little later, so that the signal finds the loop at rest and not in our books.
            asyncio.get_running_loop().call_later(0.05, lambda: print("draining", flush=True))

    async def main():
        global pool
        async with Pool("sig", max_concurrent=2, drain_timeout=60) as pool:
            tickets = [await pool.submit(asyncio.sleep, 60) for _ in range(20)]
            subscribe(tell)
            print("ready", flush=True)
            await wait(tickets)

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        shown = pool.snapshot()
        print(shown.active, shown.queued, shown.cancelled + shown.rejected, flush=True)
"""


@pytest.mark.slow
def test_a_second_signal_stops_a_program_now_and_leaves_no_job_behind() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline() == "draining\n"
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=30)
    assert out == "0 0 20\n"
    assert "pending" not in err


def test_keys_used_once_do_not_fill_the_memory() -> None:
    ready: Ready[Any] = Ready(fair_round_robin())
    for number in range(MOST_RESTING + 5_000):
        ready.add(new_entry(key=f"k{number}"))
        ready.take()
    assert len(ready._lanes) <= MOST_RESTING


async def test_many_nested_waits_do_not_make_deadlock_detection_slow() -> None:
    async def outer() -> int:
        return sum([await pool.run(asyncio.sleep, 0, 1) for _ in range(3)])

    async with Pool(max_concurrent=2_000) as pool:
        assert sum(await asyncio.gather(*(pool.run(outer) for _ in range(1_000)))) == 3_000
