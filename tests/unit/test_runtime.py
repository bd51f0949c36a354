"""The runtime: clocks, randomness, and reused threads."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from datetime import UTC, datetime
from queue import SimpleQueue
from textwrap import dedent

import pytest

from poolhand import runtime as module
from poolhand.runtime import Runtime

LONG = 30.0


@pytest.fixture
def idle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads end as soon as they are idle."""
    monkeypatch.setattr(module, "IDLE_THREAD_SECONDS", 0.0)


def idents(runtime: Runtime, calls: int) -> list[int]:
    """Return the threads of calls made one after the other."""
    seen: SimpleQueue[int] = SimpleQueue()
    found = []
    for _ in range(calls):
        runtime.in_thread(lambda: seen.put(threading.get_ident()), "one")
        found.append(seen.get(timeout=LONG))
    return found


def test_the_clocks_are_those_of_the_process() -> None:
    runtime = Runtime()
    before = datetime.now(UTC)
    first, second = runtime.monotonic(), runtime.monotonic()
    assert first <= second
    assert before <= runtime.wall() <= datetime.now(UTC)
    assert runtime.wall().tzinfo is UTC


def test_a_seed_fixes_the_randomness_and_not_the_salt() -> None:
    one, same, other = Runtime(7), Runtime(7), Runtime()
    assert one.random.random() == same.random.random() != other.random.random()
    salts = {runtime.salt() for runtime in (one, same, other) for _ in range(100)}
    assert len(salts) == 300
    assert {len(salt) for salt in salts} == {12}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps process numbers apart")
def test_a_host_identity_contains_its_pid_namespace() -> None:
    name, _, numbers = Runtime().identity()[0].rpartition("/")
    assert name == socket.gethostname()
    assert numbers == str(os.stat("/proc/self/ns/pid").st_ino)


def test_a_call_runs_outside_of_this_thread_under_its_name() -> None:
    seen: SimpleQueue[threading.Thread] = SimpleQueue()
    Runtime().in_thread(lambda: seen.put(threading.current_thread()), "reviews-worker-000")
    thread = seen.get(timeout=LONG)
    assert thread is not threading.current_thread()
    assert thread.name == "reviews-worker-000"


def test_a_thread_that_never_returns_does_not_keep_the_process() -> None:
    seen: SimpleQueue[bool] = SimpleQueue()
    Runtime().in_thread(lambda: seen.put(threading.current_thread().daemon), "one")
    assert seen.get(timeout=LONG)


def test_calls_one_after_the_other_need_few_threads() -> None:
    # A thread reports itself as idle just after its call, so a second one may be needed.
    assert len(set(idents(Runtime(), 200))) <= 20


def test_calls_at_the_same_time_have_a_thread_each() -> None:
    meeting = threading.Barrier(20, timeout=LONG)
    ends: SimpleQueue[int] = SimpleQueue()
    runtime = Runtime()
    for _ in range(20):
        runtime.in_thread(lambda: ends.put(meeting.wait()), "one")
    assert sorted(ends.get(timeout=LONG) for _ in range(20)) == list(range(20))


@pytest.mark.usefixtures("idle_at_once")
def test_no_call_is_lost_to_a_thread_that_is_about_to_exit() -> None:
    runtime = Runtime()
    ends: SimpleQueue[int] = SimpleQueue()
    for number in range(1_000):
        runtime.in_thread(lambda number=number: ends.put(number), "one")  # type: ignore[misc]
        if number % 3 == 0:
            ends.put(ends.get(timeout=LONG))
    assert sorted(ends.get(timeout=LONG) for _ in range(1_000)) == list(range(1_000))


@pytest.mark.usefixtures("idle_at_once")
def test_idle_threads_end() -> None:
    runtime = Runtime()
    seen: SimpleQueue[threading.Thread] = SimpleQueue()
    for _ in range(5):
        runtime.in_thread(lambda: seen.put(threading.current_thread()), "one")
    for _ in range(5):
        thread = seen.get(timeout=LONG)
        thread.join(LONG)
        assert not thread.is_alive()


@pytest.mark.slow
async def test_the_loop_of_a_thread_that_python_did_not_start_may_vanish_undrained() -> None:
    program = """
        import _thread, asyncio, threading
        from poolhand import Pool, subscribe
        from poolhand.runtime import Runtime
        subscribe(lambda event: None)
        gone, looks = threading.Event(), threading.Semaphore(0)
        class Counting(Runtime):
            def cpu_of_thread(self, thread):
                used = super().cpu_of_thread(thread)
                looks.release()
                return used
        def run():
            loop = asyncio.new_event_loop()
            kept.append((loop, loop.run_until_complete(Pool(runtime=Counting()).start())))
            gone.set()
        kept = []
        threading.stack_size(64 * 1024 * 1024)
        _thread.start_new_thread(run, ())
        gone.wait()
        threading.stack_size(0)
        for _ in range(10):
            looks.acquire()
        print("lives")
    """
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", dedent(program), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await done.communicate()
    assert (done.returncode, output) == (0, b"lives\n")
