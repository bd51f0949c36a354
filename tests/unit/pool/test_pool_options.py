"""The options of a pool: the effect of each, and that an invalid one leaves nothing behind."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from poolhand import (
    Pool,
    PoolhandError,
    Retry,
    UsageError,
    bounded,
    fail_fast,
    fair_round_robin,
    fifo,
    list_pools,
    priority,
    ring_buffer,
    unbounded,
    wait,
)
from poolhand.errors import JobRejected, JobTimedOut, PoolFull
from poolhand.observe import events
from poolhand.rules.validation import shown
from poolhand.settings import Autoscale
from poolhand.testing import SeededRuntime
from poolhand.views import Job, Status
from tests.unit.pool.support import Heard, Journal, occupied, seeded, until

# Untyped, so that invalid values can be passed.
make: Any = Pool
bounded_: Any = bounded
ring_buffer_: Any = ring_buffer
priority_: Any = priority
fair_: Any = fair_round_robin
Retry_: Any = Retry
COLOUR: ContextVar[str] = ContextVar("COLOUR", default="none")
NAN, INF, HUGE = math.nan, math.inf, 10**400


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check after every test that no pool, file or thread is left."""
    monkeypatch.chdir(tmp_path)
    pools, threads = list_pools(), threading.active_count()
    yield
    assert list_pools() == pools
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() <= threads


# Bad values

COUNT = ("an int of at least 1", [0, -1, 1.0, 1.5, True, "5", NAN, [1]])
WHOLE = ("an int of 0 or more", [-1, 0.0, 1.5, True, "5", None, NAN, [1]])
SECONDS = ("seconds, 0 or more", [-1, -0.1, NAN, INF, True, "5", None, [1], HUGE])
AMOUNT = ("seconds above 0", [0, 0.0, -1, NAN, INF, -INF, True, "5", [1], HUGE])

BAD: dict[str, tuple[str, list[Any]]] = {
    "name": (
        "a non-blank text of at most 1,000 bytes in UTF-8",
        ["", " ", "\t\n", 5, b"name", ["name"], True, "x" * 1001, "\ud800"],
    ),
    "max_concurrent": (COUNT[0], [*COUNT[1], None]),
    "queue": (
        "fifo(), lifo(), priority(), fair_round_robin() or one of these names",
        ["", "random", "FIFO", 5, fifo, [fifo()], bounded(5)],
    ),
    "backpressure": (
        "unbounded(), bounded(n), fail_fast(), ring_buffer(n)",
        ["", "bounded", "ring_buffer", "block", 5, bounded, fifo()],
    ),
    "timeout": AMOUNT,
    "soft_timeout": AMOUNT,
    "retry": ("a Retry(…), or None", [3, True, "3", {"attempts": 3}, Retry]),
    "run_in": (
        "'loop', 'thread', 'process'",
        ["", "threads", "Loop", 5, True, ["loop"], {"loop": 1}],
    ),
    "history": (WHOLE[0], [*WHOLE[1], 10**30]),
    "max_keys": WHOLE,
    "key_ttl": SECONDS,
    "max_per_key": (COUNT[0], COUNT[1]),
    "autoscale": ("an Autoscale(…), or None", [True, 5, "2..50", {"min": 2}, Autoscale]),
    "stale_after": (AMOUNT[0], [*AMOUNT[1], None]),
    "drain_timeout": SECONDS,
    "cancel_grace": SECONDS,
    "on_dead": ("a callable", [5, "print", True, [print]]),
    "scope": ("'session', 'pipeline', 'tenant', 'org'", ["", "global", None, 5, ["session"]]),
}


@pytest.mark.parametrize(
    ("option", "allowed", "value"),
    [
        pytest.param(option, allowed, value, id=f"{option}-{ascii(value)[:20]}")
        for option, (allowed, values) in BAD.items()
        for value in values
    ],
)
def test_a_bad_value_is_refused_with_option_value_and_allowed_values(
    option: str, allowed: str, value: Any
) -> None:
    with pytest.raises(UsageError) as caught:
        make(**{option: value})
    text = str(caught.value)
    assert f"{option}={shown(value)} is not allowed" in text
    assert allowed in text
    assert caught.value.code == "PH-USE-001"
    assert isinstance(caught.value, ValueError)


def test_every_option_of_a_pool_is_in_this_table() -> None:
    with pytest.raises(UsageError) as caught:
        make(wrong=1)
    listed = caught.value.message.partition("there are ")[2].split(", ")
    later = {"scope_id", "pipeline_id", "store", "dir"}
    assert {*listed, "name"} == BAD.keys() | later


def test_all_invalid_options_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        make(
            " ",
            max_concurrent=0,
            queue="random",
            backpressure=5,
            timeout=-1,
            retry=3,
            history=-1,
            colour="red",
            run_in="fork",
            scope="tenant",
            autoscale=True,
        )
    text = str(caught.value)
    for part in (
        "name=' '", "max_concurrent=0", "queue='random'", "backpressure=5", "timeout=-1",
        "retry=3", "history=-1", "'colour'", "run_in='fork'", "scope='tenant'", "autoscale",
    ):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("max_concurent", "max_concurrent"),
        ("timeouts", "timeout"),
        ("back_pressure", "backpressure"),
        ("ondead", "on_dead"),
        ("Retry", "retry"),
    ],
)
def test_a_misspelt_option_is_refused_with_a_suggestion(name: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(**{name: 1})
    assert f"{name!r} is not an option of a pool; did you mean {near!r}?" in str(caught.value)


@pytest.mark.parametrize("name", ["colour", "zone", "x", "💥"])
def test_an_unknown_option_is_refused_with_the_list_of_options(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(**{name: 1})
    assert f"{name!r} is not an option of a pool" in str(caught.value)
    for known in ("max_concurrent", "backpressure", "drain_timeout", "on_dead"):
        assert known in str(caught.value)


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"scope": "pipeline"}, ["scope='pipeline'", "needs scope_id="]),
        ({"scope": "pipeline", "scope_id": " "}, ["scope_id=' '", "non-blank"]),
        ({"scope": "pipeline", "scope_id": 5}, ["scope_id=5", "non-blank"]),
        (
            {"scope": "pipeline", "scope_id": "a", "pipeline_id": "b"},
            ["scope_id='a' and pipeline_id='b' disagree"],
        ),
        ({"scope": "pipeline", "scope_id": "\ud800"}, ["scope_id='\\ud800'", "UTF-8"]),
        ({"scope": "pipeline", "scope_id": "x" * 1001}, ["scope_id='xxx", "at most 1,000"]),
        ({"scope": "pipeline", "scope_id": "a", "dir": 5}, ["dir=5", "a folder"]),
        (
            {"scope": "pipeline", "scope_id": "a", "dir": ""},
            ["dir=''", "it must be a folder"],
        ),
        (
            {"scope": "pipeline", "scope_id": "a", "dir": " "},
            ["dir=' '", "it must be a folder"],
        ),
        ({"scope": "pipeline", "scope_id": "a", "dir": "a\0b"}, ["dir='a\\x00b'", "a folder"]),
        ({"scope": "pipeline", "scope_id": "a", "dir": "\ud800"}, ["dir='", "a folder"]),
        ({"scope": "pipeline", "scope_id": "a", "store": "x.db"}, ["store='x.db'", "a URL"]),
        (
            {"scope": "pipeline", "scope_id": "a", "store": "memory://", "dir": "x"},
            ["store or dir, not both"],
        ),
        ({"scope": "pipeline", "scope_id": "a", "store": "redis://x"}, ["not supported"]),
        ({"scope_id": "p"}, ["scope_id='p'", "scope='pipeline'"]),
        ({"pipeline_id": "p"}, ["pipeline_id='p'", "scope='pipeline'"]),
        ({"store": "sqlite:///x.db"}, ["store='sqlite:///x.db'", "scope='pipeline'"]),
        ({"dir": "pools"}, ["dir='pools'", "scope='pipeline'"]),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_an_impossible_scope_is_refused_with_the_fix(
    options: dict[str, Any], texts: list[str]
) -> None:
    with pytest.raises(PoolhandError) as caught:
        make("later", **options)
    for text in texts:
        assert text in str(caught.value)


def test_later_options_may_be_given_as_their_defaults() -> None:
    make(
        scope="session",
        scope_id=None,
        pipeline_id=None,
        store=None,
        dir=None,
    )


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        (lambda: bounded_(0), ["bounded(0)", "at least 1"]),
        (lambda: bounded_(-1), ["bounded(-1)", "at least 1"]),
        (lambda: bounded_(1.5), ["bounded(1.5)", "at least 1"]),
        (lambda: bounded_(True), ["bounded(True)", "at least 1"]),
        (lambda: bounded_(None), ["bounded(None)", "at least 1"]),
        (lambda: bounded_("5"), ["bounded('5')", "at least 1"]),
        (lambda: bounded_(5, "explode"), ["on_full='explode'", "'block_submitter'"]),
        (lambda: bounded_(5, None), ["on_full=None", "'drop_oldest'"]),
        (lambda: bounded_(5, ["drop_oldest"]), ["on_full=['drop_oldest']", "'drop_newest'"]),
        (lambda: bounded_(5, wait_timeout=-1), ["wait_timeout=-1", "seconds"]),
        (lambda: bounded_(5, wait_timeout=NAN), ["wait_timeout=nan", "seconds"]),
        (lambda: bounded_(5, wait_timeout=INF), ["wait_timeout=inf", "seconds"]),
        (lambda: bounded_(5, wait_timeout="1"), ["wait_timeout='1'", "seconds"]),
        (lambda: bounded_(5, wait_timeout=True), ["wait_timeout=True", "seconds"]),
        (lambda: bounded_(5, wait_timeout=HUGE), ["wait_timeout=", "seconds"]),
        (lambda: bounded_(5, "drop_oldest", 3), ["wait_timeout", "block_submitter"]),
        (lambda: bounded_(0, wait_timeout=-1), ["bounded(0", "wait_timeout=-1"]),
        (lambda: ring_buffer_(0), ["ring_buffer(0)", "at least 1"]),
        (lambda: ring_buffer_("5"), ["ring_buffer('5')", "at least 1"]),
        (lambda: ring_buffer_(False), ["ring_buffer(False)", "at least 1"]),
        (lambda: priority_(aging=0), ["aging=0", "above 0"]),
        (lambda: priority_(aging=-1), ["aging=-1", "above 0"]),
        (lambda: priority_(aging=NAN), ["aging=nan", "above 0"]),
        (lambda: priority_(aging="5"), ["aging='5'", "above 0"]),
        (lambda: priority_(aging=True), ["aging=True", "above 0"]),
        (lambda: priority_(aging=HUGE), ["aging=", "above 0"]),
        (lambda: fair_(""), ["key=''", "submit option"]),
        (lambda: fair_("tenant id"), ["key='tenant id'", "submit option"]),
        (lambda: fair_(None), ["key=None", "submit option"]),
        (lambda: fair_(5), ["key=5", "submit option"]),
        (lambda: fair_(weights=[("a", 1)]), ["weights=[('a', 1)]", "above 0"]),
        (lambda: fair_(weights={"a": 0}), ["'a': 0", "above 0"]),
        (lambda: fair_(weights={"a": -1}), ["'a': -1", "above 0"]),
        (lambda: fair_(weights={"a": INF}), ["'a': inf", "above 0"]),
        (lambda: fair_(weights={"a": "2"}), ["'a': '2'", "above 0"]),
        (lambda: fair_(weights={"a": HUGE}), ["'a': 1", "above 0"]),
        (lambda: fair_(weights={1: 2}), ["1: 2", "text"]),
        (lambda: fair_(weights={"a": 0, "b": -1}), ["'a': 0", "'b': -1"]),
        (lambda: Retry_(attempts=0), ["attempts=0", "at least 1"]),
        (lambda: Retry_(attempts=2.0), ["attempts=2.0", "at least 1"]),
        (lambda: Retry_(first=-1), ["first=-1", "0 or more"]),
        (lambda: Retry_(first=NAN), ["first=nan", "0 or more"]),
        (lambda: Retry_(first=HUGE), ["first=", "0 or more"]),
        (lambda: Retry_(factor=0.5), ["factor=0.5", "at least 1"]),
        (lambda: Retry_(cap=-1), ["cap=-1", "0 or more"]),
        (lambda: Retry_(cap=INF), ["cap=inf", "0 or more"]),
        (lambda: Retry_(jitter=1.5), ["jitter=1.5", "0 to 1"]),
        (lambda: Retry_(jitter="x"), ["jitter='x'", "0 to 1"]),
        (lambda: Retry_(give_up_on=[KeyError]), ["give_up_on=", "tuple of exception classes"]),
        (lambda: Retry_(give_up_on=(5,)), ["give_up_on=(5,)", "tuple of exception classes"]),
        (lambda: Retry_(attempts=0, first=-1, factor=0), ["attempts=0", "first=-1", "factor=0"]),
    ],
)
def test_a_bad_strategy_policy_or_retry_is_refused_with_the_reason(
    call: Any, texts: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", None, NAN])
@seeded
async def test_a_bad_size_leaves_the_pool_as_it_is(runtime: SeededRuntime, value: Any) -> None:
    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        with pytest.raises(UsageError) as caught:
            await pool.resize(value)
        assert repr(value) in str(caught.value)
        assert "at least 1" in str(caught.value)
        assert pool.snapshot().max_concurrent == 2


@pytest.mark.parametrize("value", [-1, NAN, INF, True, "3"])
@seeded
async def test_a_bad_drain_timeout_leaves_the_pool_running(
    runtime: SeededRuntime, value: Any
) -> None:
    async with Pool(runtime=runtime) as pool:
        with pytest.raises(UsageError) as caught:
            await pool.drain(value)
        assert repr(value) in str(caught.value)
        assert await pool.run(Journal().note, "x") == "x"


# Good values


@seeded
async def test_the_defaults_match_the_documentation(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        config = pool.snapshot().config
    assert (config.max_concurrent, config.queue) == (1, priority())
    assert config.backpressure == unbounded()
    assert (config.timeout, config.soft_timeout, config.retry, config.run_in) == (None,) * 4
    assert (config.history, config.max_keys, config.key_ttl) == (1_000, 100_000, 86_400)
    assert (config.max_per_key, config.on_dead) == (None, None)
    assert (config.stale_after, config.drain_timeout, config.cancel_grace) == (120, 30, 5)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "ünïcode name"},
        {"name": "x" * 300},
        {"max_concurrent": 500},
        {"timeout": 0.001},
        {"timeout": 10**9},
        {"timeout": None, "soft_timeout": None, "retry": None, "max_per_key": None},
        {"history": 0, "max_keys": 0, "key_ttl": 0},
        {"drain_timeout": 0, "cancel_grace": 0},
        {"stale_after": 0.5},
        {"backpressure": fail_fast()},
        {"backpressure": bounded(10**9, wait_timeout=0)},
        {"queue": fair_round_robin("tenant_id", {"a": 0.5, "b": 16})},
        {"on_dead": print},
    ],
    ids=str,
)
@seeded
async def test_valid_values_are_accepted(runtime: SeededRuntime, options: dict[str, Any]) -> None:
    async with make(runtime=runtime, **options) as pool:
        ticket = await pool.submit(Journal().note, "x")
        assert (await wait(ticket)).status is Status.COMPLETED
        config = pool.snapshot().config
        for name, value in options.items():
            assert getattr(config, name) == value


@seeded
async def test_the_pools_timeout_holds_for_every_job(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, timeout=3) as pool:
        ticket = await pool.submit(asyncio.sleep, 60)
        with pytest.raises(JobTimedOut):
            await ticket
        assert ticket.snapshot().marks == ("hard_timeout",)
        assert ticket.snapshot().ran == pytest.approx(3, abs=0.1)


@seeded
async def test_the_pools_soft_timeout_holds_for_every_job(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, soft_timeout=3) as pool:
        ticket = await pool.submit(asyncio.sleep, 60)
        with pytest.raises(JobTimedOut):
            await ticket
        assert ticket.snapshot().marks == ("soft_timeout",)


@seeded
async def test_in_memory_jobs_are_not_retried_by_default(runtime: SeededRuntime) -> None:
    attempts: list[int] = []

    async def fail() -> None:
        attempts.append(1)
        raise LookupError

    async with Pool(runtime=runtime) as pool:
        await wait(await pool.submit(fail))
    assert len(attempts) == 1
    async with Pool(runtime=runtime, retry=Retry()) as pool:
        await wait(await pool.submit(fail))
    assert len(attempts) == 1 + 4


@seeded
async def test_drain_timeout_bounds_the_end_of_the_block(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, drain_timeout=7) as pool:
        running = await pool.submit(asyncio.sleep, 1000)
        waiting = await pool.submit(asyncio.sleep, 1000)
        start = runtime.monotonic()
    assert 7 <= runtime.monotonic() - start <= 8
    assert running.status is Status.CANCELLED
    assert waiting.snapshot().rejection_policy == "draining"
    with pytest.raises(JobRejected):
        await waiting


@seeded
async def test_cancel_grace_bounds_how_long_a_cancel_waits(runtime: SeededRuntime) -> None:
    async def stubborn() -> None:
        while not done.is_set():
            try:
                await done.wait()
            except asyncio.CancelledError:
                continue

    done = asyncio.Event()
    async with Pool(runtime=runtime, cancel_grace=2) as pool:
        ticket = await pool.submit(stubborn)
        await asyncio.sleep(1)
        start = runtime.monotonic()
        await ticket.cancel()
        assert runtime.monotonic() - start == pytest.approx(2, abs=0.1)
        assert pool.snapshot().stuck == 1
        done.set()
        await until(lambda: pool.snapshot().stuck == 0)


# Dead letters


async def broken(text: str) -> None:
    raise LookupError(text)


@seeded
async def test_a_job_without_attempts_left_is_dead_and_on_dead_is_called_once(
    runtime: SeededRuntime,
) -> None:
    told: list[Job] = []
    retry = Retry(attempts=3, first=1)
    async with Pool(runtime=runtime, retry=retry, on_dead=told.append) as pool:
        ticket = await pool.submit(broken, "x")
        await pool.run(Journal().note, "fine")
        done = await wait(ticket)
        await until(lambda: bool(told))
        assert told == [done]
        assert pool.dead() == [done]
        assert (done.attempts, done.status) == (3, Status.FAILED)


@seeded
async def test_an_async_on_dead_is_awaited(runtime: SeededRuntime) -> None:
    told: list[str] = []

    async def tell(job: Job) -> None:
        await asyncio.sleep(1)
        told.append(job.id)

    async with Pool(runtime=runtime, on_dead=tell) as pool:
        ticket = await pool.submit(broken, "x")
        await wait(ticket)
        await asyncio.sleep(2)
        assert told == [ticket.id]


@pytest.mark.parametrize("is_async", [False, True])
@seeded
async def test_an_on_dead_that_raises_is_reported_and_affects_no_job(
    runtime: SeededRuntime, is_async: bool
) -> None:
    def fail(job: Job) -> None:
        raise KeyError("mine")

    async def fail_later(job: Job) -> None:
        raise KeyError("mine")

    heard = Heard()
    on_dead: Any = fail_later if is_async else fail
    async with Pool(runtime=runtime, on_dead=on_dead, events=heard.events) as pool:
        with pytest.raises(LookupError):
            await pool.run(broken, "x")
        await asyncio.sleep(1)
        assert await pool.run(Journal().note, "fine") == "fine"
    (failed,) = heard.of(events.CallbackFailed)
    assert (failed.callback, "KeyError" in failed.error) == ("on_dead", True)


@seeded
async def test_dead_lists_the_latest_oldest_first_and_is_bounded_by_history(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, history=3) as pool:
        for number in range(5):
            await wait(await pool.submit(broken, str(number)))
        messages = [job.error.message for job in pool.dead() if job.error is not None]
    assert messages == ["2", "3", "4"]


@seeded
async def test_only_failures_are_dead(runtime: SeededRuntime) -> None:
    policy = bounded(1, on_full="drop_newest")
    async with Pool(runtime=runtime, backpressure=policy, on_dead=print) as pool:
        async with occupied(pool):
            ticket = await pool.submit(Journal().note, "x")
            await pool.submit(Journal().note, "rejected")
            await ticket.cancel()
        await pool.run(Journal().note, "x")
        assert pool.dead() == []


@pytest.mark.parametrize("by", ["job", "id"])
@seeded
async def test_rerun_runs_a_dead_job_again_as_a_new_one(runtime: SeededRuntime, by: str) -> None:
    healthy: list[bool] = []

    async def job(number: int, *, deep: bool) -> tuple[int, bool]:
        if not healthy:
            raise LookupError
        return number, deep

    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(priority=7, key="k", tenant="t")
        first = await view.submit(job, 5, deep=True)
        (dead,) = [await wait(first)]
        healthy.append(True)
        ticket = await pool.rerun(dead if by == "job" else dead.id)
        assert ticket.id != first.id
        assert await ticket == (5, True)
        again = ticket.snapshot()
        assert (again.priority, again.key, again.tenant) == (7, "k", "t")
        assert first.status is Status.FAILED
        assert pool.dead() == []


@seeded
async def test_rerun_of_a_job_with_a_key_runs_it_once_more(runtime: SeededRuntime) -> None:
    ran: list[int] = []

    async def job() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise LookupError
        return len(ran)

    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(idempotency_key="k")
        first = await view.submit(job)
        await wait(first)
        ticket = await pool.rerun(first.id)
        assert await ticket == 2
        assert (await view.submit(job)).id == ticket.id


@seeded
async def test_rerun_of_a_job_that_is_not_dead_is_refused(runtime: SeededRuntime) -> None:
    async with Pool("hospital", runtime=runtime) as pool:
        fine = await pool.submit(Journal().note, "x")
        await fine
        for wrong in (fine.id, fine.snapshot(), "nobody"):
            with pytest.raises(UsageError, match="not a dead letter of pool 'hospital'"):
                await pool.rerun(wrong)
        dead = await pool.submit(broken, "x")
        await wait(dead)
        await wait(await pool.rerun(dead.id))
        with pytest.raises(UsageError, match="not a dead letter"):
            await pool.rerun(dead.id)


@seeded
async def test_a_refused_rerun_leaves_the_dead_job_where_it_is(runtime: SeededRuntime) -> None:
    policy = bounded(1, on_full="fail_submitter")
    async with Pool(runtime=runtime, backpressure=policy) as pool:
        dead = await pool.submit(broken, "x")
        await wait(dead)
        async with occupied(pool):
            await pool.submit(Journal().note, "filler")
            with pytest.raises(PoolFull):
                await pool.rerun(dead.id)
            assert [job.id for job in pool.dead()] == [dead.id]


@seeded
async def test_a_rerun_waits_for_a_place_as_a_submit_does(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool:
        dead = await pool.submit(broken, "x")
        await wait(dead)
        async with occupied(pool):
            await pool.submit(Journal().note, "filler")
            task = asyncio.create_task(pool.rerun(dead.id))
            await asyncio.sleep(5)
            assert not task.done()
            assert pool.snapshot().blocked_submitters == 1
        ticket = await task
        assert (await wait(ticket)).status is Status.FAILED


@seeded
async def test_a_rerun_sees_the_context_of_its_first_submitter(runtime: SeededRuntime) -> None:
    seen: list[str] = []

    async def job() -> None:
        seen.append(COLOUR.get())
        raise LookupError

    async with Pool(runtime=runtime) as pool:
        COLOUR.set("red")
        dead = await pool.submit(job)
        await wait(dead)
        COLOUR.set("blue")
        await wait(await pool.rerun(dead.id))
    assert seen == ["red", "red"]


@pytest.mark.parametrize("part", [{"runtime": "x"}, {"events": 5}, {"runtime": 1, "events": 2}])
def test_an_invalid_runtime_or_events_object_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        make(**part)
    assert all(
        f"{name}={value!r} is not allowed" in str(caught.value) for name, value in part.items()
    )


@seeded
async def test_a_drained_pool_refuses_changes(runtime: SeededRuntime) -> None:
    pool = await Pool(runtime=runtime).start()
    await pool.drain(0)
    for act in (pool.pause, pool.resume):
        with pytest.raises(UsageError, match="was drained"):
            act()
    with pytest.raises(UsageError, match="was drained"):
        await pool.resize(5)


@seeded
async def test_a_rerun_names_a_job(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        nothing: Any = 5
        with pytest.raises(UsageError, match="rerun"):
            await pool.rerun(nothing)
        with pytest.raises(UsageError, match="wait takes"):
            await wait(nothing)
