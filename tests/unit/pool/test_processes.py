"""Process slots without a process: refusals and messages."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from poolhand import Pool, UsageError, bounded
from poolhand.errors import JobFailed
from poolhand.observe.events import JobSubmitted
from poolhand.pool.slots.process_answer import Answer, contents_of, unpack
from poolhand.pool.slots.process_parent import ChildLost, ChildPhase, lost, pack, unguarded
from poolhand.rules.job import Fault
from poolhand.runtime import Runtime
from poolhand.testing import SeededRuntime
from tests.unit.pool.support import Heard, occupied, seeded

NOWHERE = Fault("other.Error", "of its own kind", "  File there, in that")


class Packed:
    """A value whose unpickling makes a call of the test."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self._made_by = call, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made_by


def _local_function() -> Callable[[], int]:
    def local() -> int:
        return 1

    return local


def _generator() -> Any:
    return (number for number in range(3))


# Refused at submit


@pytest.mark.parametrize(
    ("fn", "make", "name"),
    [
        (lambda: None, tuple, "<lambda>"),
        (partial(lambda: None), tuple, "<lambda>"),
        (_local_function(), tuple, "_local_function.<locals>.local"),
        (len, lambda: (open(os.devnull),), "len"),  # noqa: SIM115 - closed below
        (len, lambda: (threading.Lock(),), "len"),
        (len, lambda: (_generator(),), "len"),
        (threading.Lock().acquire, tuple, "lock.acquire"),
    ],
    ids=["lambda", "partial", "local", "file", "lock", "generator", "method"],
)
@seeded
async def test_a_call_that_cannot_be_sent_is_refused_at_once_and_leaves_nothing_behind(
    runtime: SeededRuntime,
    fn: Callable[..., Any],
    make: Callable[[], tuple[Any, ...]],
    name: str,
) -> None:
    heard = Heard()
    args = make()
    full = bounded(1)
    async with Pool(
        run_in="process", backpressure=full, runtime=runtime, events=heard.events
    ) as pool:
        for submit in (pool.submit_nowait, pool.submit, pool.run):
            with pytest.raises(UsageError) as caught:
                await submit(fn, *args)
            text = str(caught.value)
            assert text.startswith("run_in='process': the call of ")
            assert f"{name} cannot be sent" in text
            assert "a function at the top level of a module, and arguments that are data" in text
        seen = pool.snapshot()
        assert (seen.total, seen.active, seen.jobs) == (0, 0, ())
        assert heard.of(JobSubmitted) == []
        async with occupied(pool):
            await pool.submit(asyncio.sleep, 0)
            with pytest.raises(UsageError):
                await pool.submit(fn, *args)
            assert pool.snapshot().blocked_submitters == 0
    for argument in args:
        getattr(argument, "close", int)()


@seeded
async def test_an_async_function_runs_on_the_loop_wherever_plain_ones_run(
    runtime: SeededRuntime,
) -> None:
    async with Pool(run_in="process", runtime=runtime) as pool:
        assert await pool.run(asyncio.sleep, 0, "on the loop") == "on the loop"
    async with Pool(runtime=runtime) as pool:
        with pytest.raises(UsageError, match="run_in='process' is for plain functions"):
            await pool.with_options(run_in="process").submit(asyncio.sleep, 0)
        assert pool.snapshot().total == 0


@seeded
async def test_a_submit_may_override_run_in_of_its_pool(runtime: SeededRuntime) -> None:
    async with Pool(run_in="process", runtime=runtime) as pool:
        for place in ("loop", "thread", None):
            here = pool.with_options(run_in=place)
            assert await here.run(os.getpid) == os.getpid()


def test_a_call_is_sent_as_it_is_when_it_is_submitted() -> None:
    numbers = [3, 1, 2]
    packed = pack(sorted, (numbers,), {"reverse": True})
    numbers.append(4)
    assert unpack(packed)() == [3, 2, 1]


# Processes that cannot be started


class NoProcesses(Runtime):
    """A runtime that cannot start a process."""

    def spawn(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> BaseProcess:
        raise RuntimeError(f"no process for {name}")


async def test_a_process_that_cannot_start_fails_its_job_and_frees_its_slot() -> None:
    open_files: list[int] = []
    async with Pool("poor", runtime=NoProcesses()) as pool:
        view = pool.with_options(run_in="process")
        for number in (1, 2, 3):
            with pytest.raises(RuntimeError, match=f"^no process for poor-process-00{number}$"):
                await view.run(len, "abc")
            open_files.append(len(os.listdir("/dev/fd")))
        assert await pool.run(len, "abc") == 3
        assert (pool.snapshot().active, pool.snapshot().failed) == (0, 3)
        assert len(pool.dead()) == 3
        assert open_files == open_files[:1] * 3


# Texts of errors


@pytest.mark.parametrize(
    ("code", "phase", "text"),
    [
        (0, ChildPhase.BUSY, "its process 7 ended with exit code 0"),
        (3, ChildPhase.IDLE, "its process 7 ended with exit code 3"),
        (-signal.SIGKILL, ChildPhase.BUSY, "its process 7 was killed by SIGKILL"),
        (-1000, ChildPhase.BUSY, "its process 7 was killed by signal 1000"),
        (None, ChildPhase.BUSY, "its process 7 closed its pipe or sent an unexpected message"),
        (
            -signal.SIGKILL,
            ChildPhase.STARTING,
            "its process 7 was killed by SIGKILL before it was ready",
        ),
        (
            1,
            ChildPhase.STARTING,
            f"its process 7 ended with exit code 1 before it was ready: {unguarded()}",
        ),
    ],
)
def test_a_lost_process_is_reported_with_its_exit_and_time(
    code: int | None, phase: ChildPhase, text: str
) -> None:
    error = lost("job-1", ChildLost(7, code, phase))
    assert str(error) == f"job job-1 was lost: {text} [PH-JOB-007]"
    assert error.job_id == "job-1"


def _raise(kind: type[BaseException], text: str) -> None:
    raise kind(text)


def test_a_value_round_trips_through_a_child() -> None:
    for value in (None, 0, [1, {"two": b"3"}], ValueError("no error, a value")):
        (out, error) = contents_of((True, pickle.dumps(value), None), "job-1")
        assert (repr(out), error) == (repr(value), None)


@pytest.mark.parametrize("kind", [LookupError, KeyboardInterrupt, SystemExit])
def test_a_value_that_cannot_be_unpickled_is_a_failure_with_the_reason(
    kind: type[BaseException],
) -> None:
    packed = pickle.dumps(Packed(_raise, kind, "not here"))
    value, error = contents_of((True, packed, None), "job-1")
    assert value is None
    assert type(error) is JobFailed
    assert str(error) == (
        "job job-1 returned a value that cannot be unpickled outside its process "
        f"({kind.__name__}: not here); return data [PH-JOB-001]"
    )


def test_an_error_from_a_child_has_the_traceback_of_its_origin() -> None:
    answer: Answer = False, pickle.dumps(LookupError("nothing", 3)), NOWHERE
    value, error = contents_of(answer, "job-1")
    assert value is None
    assert type(error) is LookupError
    assert error.args == ("nothing", 3)
    assert str(error.__cause__) == "in its process:\n  File there, in that"
    assert error.__traceback__ is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        pickle.dumps(Packed(_raise, KeyboardInterrupt, "not here")),
        pickle.dumps("no error at all"),
    ],
    ids=["unsendable", "unreadable", "no error"],
)
def test_an_error_that_cannot_be_rebuilt_is_a_failure_with_its_name_and_message(
    content: bytes,
) -> None:
    value, error = contents_of((False, content, NOWHERE), "job-1")
    assert value is None
    assert type(error) is JobFailed
    assert (
        str(error) == "job job-1 failed in its process: other.Error: of its own kind [PH-JOB-001]"
    )
    assert error.job_id == "job-1"
    assert str(error.__cause__) == "in its process:\n  File there, in that"
