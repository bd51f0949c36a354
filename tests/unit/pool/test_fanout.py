"""Fan-out: the outcome of each request, independent of the others."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections import UserDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from poolhand import (
    AgentRequest,
    Pool,
    RetryLater,
    UsageError,
    agent_fanout,
    list_pools,
    stop_requested,
)
from poolhand.testing import SeededRuntime
from poolhand.views import FanoutResult
from tests.unit.pool.support import seeded, until


async def answer() -> str:
    return "42"


async def greet(name: str, *, loudly: bool = False) -> str:
    return f"hello {name}{'!' if loudly else ''}"


async def forever() -> None:
    await asyncio.Event().wait()


def add(a: int, b: int = 1) -> int:
    return a + b


class Agent:
    """An object with a name and a method to call."""

    def __init__(self, name: Any) -> None:
        self.name = name

    async def ask(self) -> str:
        return f"{self.name} knows"

    async def __call__(self) -> str:
        return f"{self.name} was called"


# Results


@seeded
async def test_results_come_back_in_the_order_of_the_requests(runtime: SeededRuntime) -> None:
    async def late(n: int) -> int:
        await asyncio.sleep(10 - n)
        return n

    requests = [AgentRequest(late, (n,)) for n in range(10)]
    results = await agent_fanout(requests, 3, runtime=runtime)
    assert results == [
        {
            "label": "late",
            "index": n,
            "status": "completed",
            "ok": True,
            "result": n,
            "error": None,
        }
        for n in range(10)
    ]
    assert {type(one) for one in results} == {dict}
    assert json.loads(json.dumps(results)) == results


@seeded
async def test_a_request_has_many_forms(runtime: SeededRuntime) -> None:
    results = await agent_fanout(
        (
            answer,
            partial(greet, "you"),
            lambda: greet("her"),
            lambda: 5,
            AgentRequest(greet, ("me",), {"loudly": True}),
            AgentRequest(call=add, args=[1], kwargs={"b": 2}),
            {"call": add, "args": (3, 4)},
            UserDict(call=answer, label="the answer", timeout=5),
        ),
        runtime=runtime,
    )
    assert [one["result"] for one in results] == [
        "42", "hello you", "hello her", 5, "hello me!", 3, 7, "42",
    ]  # fmt: skip
    assert all(one["ok"] for one in results)
    assert results[-1]["label"] == "the answer"


@seeded
async def test_one_bad_request_stops_no_other(runtime: SeededRuntime) -> None:
    async def fail() -> None:
        raise LookupError("nothing there")

    async def fail_silently() -> None:
        raise ValueError

    async def leave() -> None:
        raise SystemExit(3)

    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    def fail_in_a_thread() -> None:
        raise ArithmeticError("in a thread")

    class Local(Exception):
        pass

    async def fail_in_its_own_way() -> None:
        raise Local("its own")

    calls = [fail, fail_silently, leave, cancel_itself, fail_in_a_thread, fail_in_its_own_way]
    results = await agent_fanout(
        [*calls, partial(greet), AgentRequest(forever, timeout=1), answer], 2, runtime=runtime
    )
    assert [one["status"] for one in results] == [
        "failed", "failed", "failed", "cancelled", "failed", "failed", "failed", "failed",
        "completed",
    ]  # fmt: skip
    assert [one["ok"] for one in results] == [False] * 8 + [True]
    assert [one["result"] for one in results] == [None] * 8 + ["42"]
    errors = [one["error"] or "" for one in results]
    assert errors[:2] == ["LookupError: nothing there", "ValueError"]
    assert errors[2].startswith("JobFailed: job ")
    assert errors[2].endswith("raised SystemExit: 3")
    assert errors[3].startswith("JobCancelled: job ")
    assert errors[4:6] == ["ArithmeticError: in a thread", "Local: its own"]
    assert errors[6].startswith("TypeError: greet() missing 1 required positional argument")
    assert errors[7].startswith("JobTimedOut: job ")
    assert results[8]["error"] is None


@seeded
async def test_a_request_may_ask_to_be_run_again(runtime: SeededRuntime) -> None:
    tries: list[int] = []

    async def third_time() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise RetryLater(1)
        return "there"

    async def give_up_in_the_end() -> None:
        await third_time()
        raise asyncio.CancelledError

    (result,) = await agent_fanout([third_time], runtime=runtime)
    assert (result["status"], result["result"], result["error"]) == ("completed", "there", None)
    tries.clear()
    (result,) = await agent_fanout([give_up_in_the_end], runtime=runtime)
    assert result["status"] == "cancelled"
    assert (result["error"] or "").startswith("JobCancelled: ")


async def test_no_requests_give_no_results() -> None:
    assert await agent_fanout([]) == []
    assert await agent_fanout(iter(()), 1) == []


async def test_real_threads_return_results_in_order() -> None:
    results = await agent_fanout([partial(add, n) for n in range(20)], 4)
    assert [one["result"] for one in results] == list(range(1, 21))
    assert list_pools() == []


# Concurrency, and leftovers


@pytest.mark.parametrize("most", [1, 2, 8, 50])
@seeded
async def test_max_parallel_limits_the_running_requests(runtime: SeededRuntime, most: int) -> None:
    running = peak = 0

    async def work() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(runtime.random.choice((1, 2)))
        running -= 1

    results = await agent_fanout([work] * 30, most, runtime=runtime)
    assert [one["index"] for one in results] == list(range(30))
    assert peak == min(most, 30)
    assert list_pools() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


@seeded
async def test_eight_requests_run_at_a_time_by_default(runtime: SeededRuntime) -> None:
    running = peak = 0

    async def work() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(1)
        running -= 1

    await agent_fanout([work] * 20, runtime=runtime)
    assert peak == 8


@seeded
async def test_cancelling_the_caller_cancels_all_of_them(runtime: SeededRuntime) -> None:
    began: list[int] = []
    ended: list[int] = []

    async def work(n: int) -> None:
        began.append(n)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(2)
            ended.append(n)

    requests = [AgentRequest(work, (n,)) for n in range(5)]
    task = asyncio.create_task(agent_fanout(requests, 2, runtime=runtime))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(began) == sorted(ended) == [0, 1]
    assert list_pools() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


@seeded
async def test_a_caller_may_be_cancelled_at_any_moment(runtime: SeededRuntime) -> None:
    for steps in range(30):
        task = asyncio.create_task(agent_fanout([answer] * 5, 2, runtime=runtime))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or len(task.result()) == 5
        assert list_pools() == []
        assert asyncio.all_tasks() == {asyncio.current_task()}


@seeded
async def test_a_timeout_around_it_is_a_timeout(runtime: SeededRuntime) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await agent_fanout([forever] * 5, 2, runtime=runtime)
    assert list_pools() == []


@pytest.mark.parametrize("most", [1, 2, 3])
@seeded
async def test_code_that_ignores_its_timeout_stops_no_other(
    runtime: SeededRuntime, most: int
) -> None:
    gate = asyncio.Event()

    async def deaf() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    late = AgentRequest(deaf, timeout=1)
    results = await agent_fanout([late, late, answer, answer], most, runtime=runtime)
    assert [one["status"] for one in results] == ["failed"] * 2 + ["completed"] * 2
    assert list_pools() == []
    gate.set()


async def test_a_thread_that_hangs_beyond_its_timeout_stops_no_other() -> None:
    gate = threading.Event()

    def hang() -> None:
        gate.wait(30)

    try:
        results = await agent_fanout([AgentRequest(hang, timeout=0.01), add_two], 1)
    finally:
        gate.set()
    assert [one["status"] for one in results] == ["failed", "completed"]


def add_two() -> int:
    return add(1, 1)


async def test_a_thread_is_asked_to_stop_with_its_caller() -> None:
    began = threading.Event()

    def work() -> None:
        began.set()
        while not stop_requested():
            pass

    task = asyncio.create_task(agent_fanout([work, forever], 2))
    await until(began.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list_pools() == []


@seeded
async def test_a_fan_out_works_inside_a_job_and_nested(runtime: SeededRuntime) -> None:
    async def inner() -> list[FanoutResult]:
        return await agent_fanout([answer, answer], 1, runtime=runtime)

    async def outer() -> list[FanoutResult]:
        return await agent_fanout([inner, inner], 1, runtime=runtime)

    async with Pool(runtime=runtime) as pool:
        results = await pool.run(outer)
        assert list_pools() == [pool]
    assert [one["result"] for each in results for one in each["result"]] == ["42"] * 4


# Labels


def in_a_line() -> Callable[[], int]:
    return lambda: 5


@pytest.mark.parametrize(
    ("request_", "label"),
    [
        (answer, "answer"),
        (partial(partial(greet, loudly=True), "you"), "greet"),
        (Agent("researcher").ask, "researcher.ask"),
        (Agent("critic"), "critic"),
        (partial(Agent("critic")), "critic"),
        (Agent(None).ask, "Agent.ask"),
        (Agent(" "), "Agent"),
        (Agent(5), "Agent"),
        (dict, "dict"),
        ("hello".upper, "str.upper"),
        (AgentRequest(answer, label="mine"), "mine"),
        ({"call": answer, "label": "mine"}, "mine"),
        ({"call": answer, "label": None}, "answer"),
    ],
)
async def test_a_request_is_labelled_with_a_readable_name(request_: Any, label: str) -> None:
    (result,) = await agent_fanout([request_])
    assert result["ok"]
    assert result["label"] == label


async def test_a_function_in_a_function_is_called_by_its_own_name() -> None:
    async def inside() -> None: ...

    class Shy:
        @property
        def name(self) -> str:
            raise LookupError

        def ask(self) -> int:
            return 1

    results = await agent_fanout([inside, Shy().ask, in_a_line()])
    line = in_a_line.__code__.co_firstlineno + 1
    assert [one["label"] for one in results] == [
        "inside",
        "Shy.ask",
        f"lambda in test_fanout.py:{line}",
    ]
    assert all(one["ok"] for one in results)


# Invalid requests


def a_generator() -> Iterator[int]:
    yield 1


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no function": (lambda: 5, r"call=5 is not allowed; it must be a function"),
    "nothing": (lambda: None, "call=None is not allowed"),
    "a text": (lambda: "answer", "call='answer' is not allowed"),
    "a coroutine": (lambda: answer(), r"call is the coroutine answer\(…\); give the function"),
    "a generator": (lambda: a_generator, "call: a_generator is a generator"),
    "no call": (lambda: {"args": (1,)}, "call is missing; it must be a function"),
    "a bad call": (lambda: AgentRequest(5), "call=5 is not allowed"),  # type: ignore[arg-type]
    "an unknown field": (
        lambda: {"call": answer, "arg": 1},
        "'arg' is not a field of a request; there are call, args, kwargs, label, timeout",
    ),
    "a field without a name": (lambda: {"call": answer, 5: 1}, "5 is not a field of a request"),
    "args of no kind": (lambda: {"call": add, "args": "12"}, "args='12' is not allowed; it must"),
    "kwargs of no kind": (lambda: {"call": add, "kwargs": [1]}, r"kwargs=\[1\] is not allowed"),
    "kwargs without names": (lambda: {"call": add, "kwargs": {1: 2}}, r"kwargs=\{1: 2\} is not"),
    "a blank label": (lambda: {"call": add, "label": " "}, "label=' ' is not allowed"),
    "a label of no kind": (lambda: {"call": add, "label": 5}, "label=5 is not allowed"),
    "no time": (lambda: {"call": add, "timeout": 0}, "timeout=0 is not allowed; it must be sec"),
    "time of no kind": (lambda: {"call": add, "timeout": "5"}, "timeout='5' is not allowed"),
    "several": (
        lambda: {"call": 5, "label": 5, "x": 5},
        r"'x' is not a field.*requests\[1\]: call=5.*requests\[1\]: label=5",
    ),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_request_is_refused_before_any_runs(what: str) -> None:
    make, fault = BAD[what]
    ran: list[int] = []
    with pytest.raises(UsageError, match=rf"agent_fanout: requests\[1\]: {fault}"):
        await agent_fanout([lambda: ran.append(1), make(), lambda: ran.append(2)])
    assert ran == []
    assert list_pools() == []
    gc.collect()


async def test_all_bad_requests_are_reported_at_once() -> None:
    made = [make() for make, _ in BAD.values()]
    with pytest.raises(UsageError) as raised:
        await agent_fanout([*made, answer], 0)
    text = str(raised.value)
    assert text.startswith("agent_fanout: max_parallel=0 is not allowed; it must be an int of at")
    assert all(f"requests[{index}]: " in text for index in range(len(made)))
    assert f"requests[{len(made)}]" not in text


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "2", None, 10**9])
async def test_a_bad_max_parallel_is_refused_before_any_runs(most: Any) -> None:
    with pytest.raises(UsageError, match=r"max_parallel=.* is not allowed; it must be an int of"):
        await agent_fanout([answer], most)
    with pytest.raises(UsageError, match="max_parallel="):
        await agent_fanout([], most)


@pytest.mark.parametrize(
    "make", [lambda: 5, lambda: None, lambda: answer, lambda: {"call": answer}, lambda: answer()]
)
async def test_requests_that_are_not_iterable_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=r"requests=.* is not allowed; it must be an iterable of"):
        await agent_fanout(make())
    gc.collect()


async def test_an_iterable_of_requests_that_raises_runs_nothing() -> None:
    ran: list[int] = []

    def requests() -> Iterator[Callable[[], None]]:
        yield lambda: ran.append(1)
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await agent_fanout(requests())
    assert ran == []
    assert list_pools() == []


def test_a_request_is_immutable() -> None:
    request = AgentRequest(answer)
    assert (request.args, request.kwargs, request.label, request.timeout) == ((), {}, None, None)
    with pytest.raises(AttributeError):
        request.label = "x"  # type: ignore[misc]
    assert msgspec.structs.replace(request, label="x").label == "x"


@seeded
async def test_a_caller_cancelled_again_and_again_leaves_no_request_running(
    runtime: SeededRuntime,
) -> None:
    ended = 0

    async def stubborn() -> None:
        nonlocal ended
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(0.3)
            raise
        finally:
            ended += 1

    call = asyncio.create_task(agent_fanout([stubborn] * 3, runtime=runtime))
    await asyncio.sleep(1)
    for _ in range(5):
        call.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == 3
    assert list_pools() == []
