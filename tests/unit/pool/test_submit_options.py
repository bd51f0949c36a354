"""The options of a submit: the effect of each, and that an invalid one leaves nothing behind."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from poolhand import Pool, Retry, UsageError, bounded, fair_round_robin, list_pools, wait
from poolhand.errors import JobCancelled, JobExpired, JobTimedOut
from poolhand.rules.validation import shown
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import Journal, occupied, park, seeded, until

NAN, INF, HUGE = math.nan, math.inf, 10**400
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001
LAST = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check after every test that no pool and no file is left."""
    monkeypatch.chdir(tmp_path)
    pools = list_pools()
    yield
    assert list_pools() == pools
    assert list(tmp_path.iterdir()) == []


# Bad values

TEXT = (
    "a non-blank text of at most 1,000 bytes in UTF-8",
    ["", " ", 5, b"x", True, ["x"], "x" * 1001, "x" * 3_000_000],
)
FLAG = ("True or False", [0, 1, "yes", None, []])
AMOUNT = ("seconds above 0", [0, -1, NAN, INF, True, "5", [1], HUGE])

BAD: dict[str, tuple[str, list[Any]]] = {
    "priority": ("an int", [1.0, "5", None, True, NAN, [1], INF]),
    "key": ("a text of at most 1,000 bytes in UTF-8", [5, b"x", True, ["x"], 1.5, "x" * 1001]),
    "idempotency_key": TEXT,
    "rerun_failed": FLAG,
    "session": TEXT,
    "tenant": TEXT,
    "user": TEXT,
    "timeout": AMOUNT,
    "soft_timeout": AMOUNT,
    "retry": ("a Retry(…), or None", [3, True, "3", {}, Retry]),
    "run_in": ("'loop', 'thread', 'process'", ["", "threads", 5, True, ["loop"]]),
    "delay": ("seconds, 0 or more", [-1, NAN, INF, True, "5", [1], HUGE]),
    "run_at": ("a datetime with a time zone", [NAIVE, 5, "2030-01-01", True, timedelta(1)]),
    "expires": (AMOUNT[0], [*AMOUNT[1], datetime(2030, 1, 1, tzinfo=UTC)]),
    "cancel_with_caller": FLAG,
}
# Large, but within the range of dates and clocks.
TOO_FAR = [("delay", 1e12), ("expires", 1e12), ("priority", 2**60), ("priority", -(10**30))]


def view(pool: Pool, **options: Any) -> Any:
    return pool.with_options(**options)


@pytest.mark.parametrize(
    ("option", "allowed", "value"),
    [
        pytest.param(option, allowed, value, id=f"{option}-{str(value)[:20]}")
        for option, (allowed, values) in BAD.items()
        for value in values
    ],
)
def test_a_bad_value_is_refused_with_option_value_and_allowed_values(
    option: str, allowed: str, value: Any
) -> None:
    with pytest.raises(UsageError) as caught:
        view(Pool("strict"), **{option: value})
    text = str(caught.value)
    assert f"{option}={shown(value)} is not allowed" in text
    assert allowed in text
    assert "'strict'" in text
    assert len(text) < 500


@pytest.mark.parametrize(("option", "value"), TOO_FAR)
def test_an_out_of_range_value_is_refused_with_the_range(option: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        view(Pool(), **{option: value})
    text = str(caught.value)
    assert f"{option}={value!r}" in text
    allowed = text.partition("it must be ")[2]
    assert any(word in allowed for word in ("up to", "at most", "between", "below", "from", "<"))


@seeded
async def test_a_run_at_at_the_end_of_the_calendar_is_refused_or_accepted_without_error(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        try:
            ticket = await pool.with_options(run_at=LAST).submit(Journal().note, "x")
        except UsageError as error:
            assert "run_at" in str(error)  # noqa: PT017
            assert pool.snapshot().total == 0
        else:
            assert ticket.status is Status.SCHEDULED
            await ticket.cancel()


def test_every_option_of_a_submit_is_in_this_table() -> None:
    with pytest.raises(UsageError) as caught:
        view(Pool(), wrong=1)
    assert caught.value.message.partition("there are ")[2].split(", ") == list(BAD)


@seeded
async def test_a_bad_option_leaves_no_job_and_no_view(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        before = pool.snapshot()
        with pytest.raises(UsageError):
            view(pool, priority="high")
        assert pool.snapshot() == before
        assert await pool.run(Journal().note, "x") == "x"


def test_all_invalid_options_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        view(Pool(), priority="high", tenant="", timeout=0, colour="red", run_in="fork")
    for part in ("priority='high'", "tenant=''", "timeout=0", "'colour'", "run_in='fork'"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [("tiemout", "timeout"), ("softtimeout", "soft_timeout"), ("tenant_id", "tenant")],
)
def test_a_misspelt_option_is_refused_with_a_suggestion(name: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        view(Pool(), **{name: "x"})
    assert f"{name!r} is not an option of a submit; did you mean {near!r}?" in str(caught.value)


@pytest.mark.parametrize("name", ["colour", "field", "changes"])
def test_an_unknown_option_is_refused_with_the_list_of_options(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        view(Pool(), **{name: "x"})
    assert f"{name!r} is not an option of a submit" in str(caught.value)
    for known in ("priority", "idempotency_key", "cancel_with_caller"):
        assert known in str(caught.value)


@pytest.mark.parametrize("name", ["tenant_id", "lane", "field", "customer"])
@seeded
async def test_the_strategys_own_field_is_an_option_of_that_pool(
    runtime: SeededRuntime, name: str
) -> None:
    async with Pool(runtime=runtime, queue=fair_round_robin(name)) as pool:
        ticket = await view(pool, **{name: "acme"}).submit(Journal().note, "x")
        assert ticket.snapshot().key == "acme"
        with pytest.raises(UsageError, match=f"{name}=5 is not allowed; it must be a text"):
            view(pool, **{name: 5})
        with pytest.raises(UsageError, match=f"there are .*{name}"):
            view(pool, colour="red")


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"on_busy": "reject"}, ["on_busy", "needs a store"]),
        ({"on_crash": "fail"}, ["on_crash", "needs a store"]),
    ],
    ids=str,
)
def test_an_option_that_a_pool_in_memory_lacks_is_refused_with_the_reason(
    options: dict[str, Any], texts: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        view(Pool(), **options)
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("expires", [5, 10])
def test_a_job_does_not_expire_before_its_delay_is_over(expires: int) -> None:
    told = "with delay=10 the job would expire before it can start"
    with pytest.raises(UsageError, match=told):
        Pool().with_options(delay=10, expires=expires)
    with pytest.raises(UsageError, match=told):
        Pool().with_options(expires=expires).with_options(delay=10)
    Pool().with_options(delay=0, expires=expires)
    Pool().with_options(delay=10, expires=11)


def test_delay_and_run_at_exclude_each_other() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(UsageError, match="delay or run_at, not both"):
        Pool().with_options(delay=5, run_at=moment)
    with pytest.raises(UsageError, match="delay or run_at, not both"):
        Pool().with_options(delay=5).with_options(run_at=moment)


def test_an_option_can_be_reset_with_none() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    Pool().with_options(delay=5).with_options(delay=None).with_options(run_at=moment)


# Tenant and user


@seeded
async def test_tenant_and_user_are_recorded(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.with_options(tenant="acme", user="ann").submit(Journal().note, "x")
        assert (ticket.snapshot().tenant, ticket.snapshot().user) == ("acme", "ann")


# Options that override those of the pool


@seeded
async def test_timeout_overrides_the_pools(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, timeout=3, max_concurrent=3) as pool:
        longer = await pool.with_options(timeout=30).submit(asyncio.sleep, 10, "done")
        never = await pool.with_options(timeout=None).submit(asyncio.sleep, 100, "done")
        shorter = await pool.with_options(timeout=1).submit(asyncio.sleep, 2)
        assert await longer == "done"
        assert await never == "done"
        with pytest.raises(JobTimedOut):
            await shorter


@seeded
async def test_soft_timeout_overrides_the_pools(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, soft_timeout=3, max_concurrent=2) as pool:
        never = await pool.with_options(soft_timeout=None).submit(asyncio.sleep, 100, "done")
        shorter = await pool.with_options(soft_timeout=1).submit(asyncio.sleep, 2)
        assert await never == "done"
        assert (await wait(shorter)).marks == ("soft_timeout",)


@seeded
async def test_retry_overrides_the_pools(runtime: SeededRuntime) -> None:
    async def fail() -> None:
        raise LookupError

    async with Pool(runtime=runtime, retry=Retry(attempts=3, first=1)) as pool:
        more = Retry(attempts=5, first=1)
        attempts = [
            (await wait(await source.submit(fail))).attempts
            for source in (pool, pool.with_options(retry=more), pool.with_options(retry=None))
        ]
    assert attempts == [3, 5, 1]


@seeded
async def test_run_in_overrides_the_pools(runtime: SeededRuntime) -> None:
    def on_a_loop() -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    async with Pool(runtime=runtime, run_in="loop") as pool:
        assert await pool.run(on_a_loop) is True
        assert await pool.with_options(run_in="thread").run(on_a_loop) is False
        assert await pool.with_options(run_in=None).run(on_a_loop) is False


# When it runs


@seeded
async def test_a_delayed_job_is_scheduled_and_runs_after_its_delay(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        start = runtime.monotonic()
        ticket = await pool.with_options(delay=30).submit(Journal().note, "x")
        job = ticket.snapshot()
        assert job.status is Status.SCHEDULED
        assert job.run_at == runtime.wall() + timedelta(seconds=30)
        assert pool.snapshot().scheduled == 1
        assert await pool.run(Journal().note, "others go on") == "others go on"
        await ticket
        assert 30 <= runtime.monotonic() - start <= 30.1


@seeded
async def test_a_job_runs_at_run_at_in_any_time_zone(runtime: SeededRuntime) -> None:
    zone = timezone(timedelta(hours=9))
    async with Pool(runtime=runtime) as pool:
        moment = runtime.wall() + timedelta(seconds=45)
        ticket = await pool.with_options(run_at=moment.astimezone(zone)).submit(runtime.wall)
        job = ticket.snapshot()
        assert job.status is Status.SCHEDULED
        assert job.run_at == moment
        assert job.run_at is not None
        assert job.run_at.utcoffset() == timedelta(0)
        ran_at = await ticket
        assert moment <= ran_at <= moment + timedelta(seconds=0.2)


@pytest.mark.parametrize("options", [{"delay": 0}, {"run_at": datetime(2020, 1, 1, tzinfo=UTC)}])
@seeded
async def test_a_delay_or_date_in_the_past_starts_at_once(
    runtime: SeededRuntime, options: dict[str, Any]
) -> None:
    async with Pool(runtime=runtime) as pool:
        start = runtime.monotonic()
        ticket = await view(pool, **options).submit(Journal().note, "x")
        assert ticket.status is Status.RUNNING
        assert await ticket == "x"
        assert runtime.monotonic() == start


@seeded
async def test_scheduled_jobs_run_in_the_order_of_their_times(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime) as pool:
        delays = [9, 3, 6, 1, 12]
        for delay in delays:
            await pool.with_options(delay=delay).submit(journal.note, str(delay))
    assert journal.ran == ["1", "3", "6", "9", "12"]


@seeded
async def test_a_scheduled_job_can_be_cancelled(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.with_options(delay=1000).submit(Journal().note, "never")
        assert await ticket.cancel()
        with pytest.raises(JobCancelled):
            await ticket
        assert pool.snapshot().scheduled == 0


@pytest.mark.parametrize("waits_for", ["slot", "session", "key", "time"])
@seeded
async def test_a_job_that_still_waits_after_expires_seconds_is_expired(
    runtime: SeededRuntime, waits_for: str
) -> None:
    journal = Journal()
    by_wait: dict[str, dict[str, Any]] = {
        "slot": {},
        "session": {"session": "s"},
        "key": {"key": "k"},
        "time": {"run_at": runtime.wall() + timedelta(seconds=60)},
    }
    options = by_wait[waits_for]
    async with Pool(runtime=runtime, max_concurrent=2, max_per_key=1) as pool:
        gate = asyncio.Event()
        holder = await pool.with_options(session="s", key="k").submit(gate.wait)
        async with occupied(pool):
            start = runtime.monotonic()
            ticket = await view(pool, expires=5, **options).submit(journal.note, "never")
            with pytest.raises(JobExpired) as caught:
                await ticket
            assert 5 <= runtime.monotonic() - start <= 5.1
            assert caught.value.job_id == ticket.id
            job = ticket.snapshot()
            assert (job.status, job.started_at, job.blocked_on) == (Status.EXPIRED, None, None)
            assert pool.snapshot().expired == 1
        gate.set()
        await holder
        await asyncio.sleep(100)
    assert journal.ran == []


@seeded
async def test_a_job_that_starts_in_time_does_not_expire(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.with_options(expires=5).submit(asyncio.sleep, 60, "done")
        assert await ticket == "done"
        assert pool.snapshot().expired == 0


@seeded
async def test_the_time_as_a_blocked_submitter_counts_for_expires(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool:
        async with occupied(pool):
            await pool.submit(journal.note, "filler")
            task = await park(pool, pool.with_options(expires=5), journal.note, "stale")
            await asyncio.sleep(60)
        with pytest.raises(JobExpired):
            await (await task)
    assert journal.ran == ["filler"]


@seeded
async def test_timed_options_count_from_each_submit_not_from_the_view(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        kept = pool.with_options(delay=10)
        await asyncio.sleep(100)
        start = runtime.monotonic()
        await kept.run(Journal().note, "x")
        assert 10 <= runtime.monotonic() - start <= 10.1


@seeded
async def test_times_follow_the_monotonic_clock_when_the_wall_clock_jumps(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        start = runtime.monotonic()
        ticket = await pool.with_options(delay=10).submit(Journal().note, "x")
        runtime.wall_offset = 100_000
        await asyncio.sleep(5)
        assert ticket.status is Status.SCHEDULED
        runtime.wall_offset = -100_000
        await ticket
        assert 10 <= runtime.monotonic() - start <= 10.1


# cancel_with_caller


@pytest.mark.parametrize("waits", ["await", "result", "result with a timeout", "run"])
@pytest.mark.parametrize("with_caller", [False, True])
@seeded
async def test_a_cancelled_caller_cancels_its_job_only_with_cancel_with_caller(
    runtime: SeededRuntime, with_caller: bool, waits: str
) -> None:
    gate = asyncio.Event()
    async with Pool(runtime=runtime) as pool:
        source = pool.with_options(cancel_with_caller=with_caller)

        async def caller() -> None:
            if waits == "run":
                await source.run(gate.wait)
                return
            ticket = await source.submit(gate.wait)
            if waits == "await":
                await ticket
            else:
                await ticket.result(timeout=None if waits == "result" else 1000)

        task = asyncio.create_task(caller())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(1)
        snapshot = pool.snapshot()
        gate.set()
    assert (snapshot.active, snapshot.cancelled) == ((0, 1) if with_caller else (1, 0))
    assert pool.snapshot().failed == 0


@seeded
async def test_cancel_with_caller_takes_a_waiting_job_out_of_the_queue(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime) as pool, occupied(pool):
        source = pool.with_options(cancel_with_caller=True)
        task = asyncio.create_task(source.run(journal.note, "never"))
        await until(lambda: pool.snapshot().queued == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.snapshot().queued == 0
        assert pool.snapshot().cancelled == 1
    assert journal.ran == []
