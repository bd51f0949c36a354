"""The methods of a pool: how work is submitted, and what is returned."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from poolhand import Pool, Retry, Ticket, UsageError, bounded, fair_round_robin, list_pools, wait
from poolhand.errors import Draining
from poolhand.testing import SeededRuntime
from poolhand.views import Explanation, Job, Status
from tests.unit.pool.support import Journal, occupied, park, seeded, until


class Mine(Exception):
    """An exception of the user."""


async def raise_mine(text: str) -> None:
    raise Mine(text)


async def review(number: int, *, deep: bool = False) -> tuple[int, bool]:
    return number, deep


# run, submit, with_options


@seeded
async def test_the_first_example_of_the_spec_works(runtime: SeededRuntime) -> None:
    async with Pool(
        "pr-review",
        runtime=runtime,
        max_concurrent=5,
        queue=fair_round_robin("tenant_id"),
        backpressure=bounded(100),
    ) as pool:
        assert await pool.run(review, 1984, deep=True) == (1984, True)
        view = pool.with_options(priority=10, key="acme", idempotency_key="review-1984")
        ticket = await view.submit(review, 1984)
        assert await ticket == (1984, False)


@seeded
async def test_run_gives_the_value_or_the_jobs_own_exception(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        assert await pool.run(review, 1) == (1, False)
        assert await pool.run(asyncio.sleep, 1, "slept") == "slept"
        with pytest.raises(Mine, match="as it is"):
            await pool.run(raise_mine, "as it is")


@seeded
async def test_options_never_mix_with_the_arguments_of_the_function(
    runtime: SeededRuntime,
) -> None:
    async def takes(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return args, kwargs

    names = ("priority", "key", "timeout", "session", "fn", "self", "args", "kwargs", "delay")
    given = dict.fromkeys(names, "mine")
    async with Pool(runtime=runtime) as pool:
        ticket = await pool.submit(takes, 1, 2, **given)
        assert await ticket == ((1, 2), given)
        job = ticket.snapshot()
        assert (job.priority, job.key, job.session) == (0, "", None)
        assert await pool.submit_nowait(takes, **given) == ((), given)
        assert await pool.run(takes, **given) == ((), given)
        view = pool.with_options(priority=3)
        assert await view.run(takes, **given) == ((), given)


@seeded
async def test_a_view_changes_neither_the_pool_nor_the_view_it_comes_from(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        one = pool.with_options(priority=1, tenant="t")
        two = one.with_options(priority=2, user="u")
        jobs = [(await source.submit(review, 1)).snapshot() for source in (pool, one, two)]
    found = [(job.priority, job.tenant, job.user) for job in jobs]
    assert found == [(0, None, None), (1, "t", None), (2, "t", "u")]


@seeded
async def test_a_view_can_be_made_before_the_start_and_used_after_it(
    runtime: SeededRuntime,
) -> None:
    pool = Pool(runtime=runtime)
    view = pool.with_options(priority=4)
    async with pool:
        assert (await view.submit(review, 1)).snapshot().priority == 4


@seeded
async def test_submit_returns_before_the_job_is_done(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool, occupied(pool):
        ticket = await pool.submit(review, 1)
        assert isinstance(ticket, Ticket)
        assert ticket.status is Status.QUEUED


@seeded
async def test_submit_nowait_is_a_plain_function_that_returns_a_ticket(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        ticket = pool.submit_nowait(review, 1, deep=True)
        assert isinstance(ticket, Ticket)
        assert await ticket == (1, True)
        assert await pool.with_options(priority=1).submit_nowait(review, 2) == (2, False)


@seeded
async def test_work_is_bounded_by_max_concurrent_over_all_submitters(
    runtime: SeededRuntime,
) -> None:
    inside = most = 0

    async def job() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(runtime.random.choice([0, 0.5, 1]))
        inside -= 1

    async def submitter() -> None:
        for _ in range(10):
            await pool.run(job)

    async with Pool(runtime=runtime, max_concurrent=3) as pool:
        await asyncio.gather(*(submitter() for _ in range(8)))
        assert pool.snapshot().completed == 80
    assert most == 3


# Starting and stopping


@seeded
async def test_a_pool_can_be_started_and_drained_without_async_with(
    runtime: SeededRuntime,
) -> None:
    pool = Pool(runtime=runtime)
    await pool.start()
    await pool.submit(review, 1)
    report = await pool.drain(10)
    assert (report.submitted, report.completed) == (1, 1)
    assert list_pools() == []


@seeded
async def test_a_second_drain_returns_the_first_report(runtime: SeededRuntime) -> None:
    pool = await Pool(runtime=runtime).start()
    await pool.submit(review, 1)
    first, second = await asyncio.gather(pool.drain(10), pool.drain())
    assert first is second
    assert await pool.drain(5) is first


@seeded
async def test_leaving_the_block_finishes_submitted_jobs(runtime: SeededRuntime) -> None:
    journal = Journal()

    async def job(name: str) -> None:
        await asyncio.sleep(5)
        await journal.note(name)

    async with Pool(runtime=runtime) as pool:
        for name in "abc":
            await pool.submit(job, name)
    assert journal.ran == ["a", "b", "c"]


@seeded
async def test_leaving_the_block_by_an_exception_drains_too(runtime: SeededRuntime) -> None:
    journal = Journal()

    async def leave(pool: Pool) -> None:
        async with pool:
            await pool.submit(journal.note, "x")
            raise Mine

    with pytest.raises(Mine):
        await leave(Pool(runtime=runtime))
    assert journal.ran == ["x"]


@seeded
async def test_a_pool_that_is_not_started_is_refused_with_the_reason(
    runtime: SeededRuntime,
) -> None:
    pool = Pool("asleep", runtime=runtime)
    with pytest.raises(UsageError, match=r"'asleep' is not started; use `async with`"):
        await pool.submit(review, 1)
    for use in (pool.snapshot, pool.stats, pool.size, pool.dead, pool.pause, pool.resume):
        with pytest.raises(UsageError, match="not started"):
            use()
    with pytest.raises(UsageError, match="not started"):
        pool.submit_nowait(review, 1)
    assert list_pools() == []


@seeded
async def test_a_drained_pool_refuses_work_with_draining(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        pass
    for submit in (pool.submit, pool.run):
        with pytest.raises(Draining) as caught:
            await submit(review, 1)
        assert caught.value.code == "PH-POL-003"
        assert caught.value.policy == "draining"
        assert isinstance(caught.value, RuntimeError)
    with pytest.raises(Draining):
        pool.submit_nowait(review, 1)
    assert pool.snapshot().total == 0


# The record of a job


@seeded
async def test_a_job_record_has_the_submitted_options(runtime: SeededRuntime) -> None:
    start = runtime.wall()
    async with Pool("recorded", runtime=runtime) as pool:
        view = pool.with_options(
            priority=3,
            key="k",
            session="s",
            tenant="t",
            user="u",
            idempotency_key="i",
            delay=10,
            expires=60,
        )
        job = (await view.submit(review, 1)).snapshot()
        assert isinstance(job, Job)
        assert (job.pool, job.pool_id, job.status) == ("recorded", pool.id, Status.SCHEDULED)
        assert (job.priority, job.key, job.session) == (3, "k", "s")
        assert (job.tenant, job.user, job.idempotency_key) == ("t", "u", "i")
        assert job.submitted_at == start
        assert job.run_at is not None
        assert (job.run_at - start).total_seconds() == 10
        assert job.expires_at is not None
        assert (job.expires_at - start).total_seconds() == 60
        assert (job.started_at, job.finished_at, job.attempts) == (None, None, 0)
        assert (job.result, job.error, job.marks) == (None, None, ())
        assert (job.rejection_reason, job.rejection_policy) == (None, None)


@seeded
async def test_a_finished_job_record_has_its_times_and_its_result(
    runtime: SeededRuntime,
) -> None:
    async def job() -> str:
        await asyncio.sleep(2)
        return "value"

    async with Pool(runtime=runtime) as pool:
        start = runtime.wall()
        async with occupied(pool):
            ticket = await pool.submit(job)
            await asyncio.sleep(3)
        done = await wait(ticket)
    assert (done.status, done.result, done.attempts) == (Status.COMPLETED, "value", 1)
    assert done.started_at is not None
    assert done.finished_at is not None
    assert (done.started_at - start).total_seconds() == pytest.approx(3)
    assert (done.finished_at - start).total_seconds() == pytest.approx(5)
    assert done.waited == pytest.approx(3)
    assert done.ran == pytest.approx(2)


@seeded
async def test_a_failed_job_carries_type_message_and_traceback_of_its_error(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        done = await wait(await pool.submit(raise_mine, "why"))
    assert done.status is Status.FAILED
    assert done.error is not None
    assert done.error.type.endswith("Mine")
    assert done.error.message == "why"
    assert "in raise_mine" in done.error.traceback
    assert done.result is None


@seeded
async def test_a_job_counts_its_attempts(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, retry=Retry(attempts=3, first=1)) as pool:
        ticket = await pool.submit(raise_mine, "again")
        done = await wait(ticket)
        assert (done.status, done.attempts) == (Status.FAILED, 3)


@seeded
async def test_timestamps_are_utc_and_iso_8601_when_encoded(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        done = await wait(await pool.submit(review, 1))
        shown = msgspec.json.decode(msgspec.json.encode(done))
    for name in ("submitted_at", "started_at", "finished_at"):
        assert shown[name] == "2030-01-01T00:00:00Z"
    assert shown["status"] == "completed"


@seeded
async def test_ids_are_unique_and_sort_by_submit_order(runtime: SeededRuntime) -> None:
    async with Pool("a", runtime=runtime) as one, Pool("b", runtime=runtime) as two:
        ids = [(await one.submit(review, 1)).id for _ in range(200)]
        others = [(await two.submit(review, 1)).id for _ in range(200)]
    assert len({*ids, *others}) == 400
    assert ids == sorted(ids)


@seeded
async def test_a_job_moves_through_its_states_in_order(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        gate = asyncio.Event()
        turn = await pool.with_options(session="s").submit(gate.wait)
        ticket = await pool.with_options(session="s", delay=5).submit(asyncio.sleep, 5)
        states = [ticket.status]
        await asyncio.sleep(6)
        states.append(ticket.status)
        async with occupied(pool):
            gate.set()
            await turn
            await until(lambda: ticket.status is not Status.BLOCKED)
            states.append(ticket.status)
        await wait(ticket)
        states.append(ticket.status)
    assert [state.value for state in states] == ["scheduled", "blocked", "running", "completed"]
    assert [state.waiting for state in states] == [True, True, False, False]
    assert [state.terminal for state in states] == [False, False, False, True]


# explain


async def why(ticket: Ticket[Any]) -> Explanation:
    explanation = await ticket.explain()
    assert str(explanation) == explanation.text
    return explanation


@seeded
async def test_explain_returns_the_number_of_jobs_ahead_and_the_estimated_wait(
    runtime: SeededRuntime,
) -> None:
    async def job() -> None:
        await asyncio.sleep(4)

    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        await pool.run(job)
        async with occupied(pool, 2):
            tickets = [await pool.submit(job) for _ in range(4)]
            reasons = [await why(ticket) for ticket in tickets]
    assert [one.reason for one in reasons] == ["pool_cap"] + ["behind_others"] * 3
    assert [one.ahead for one in reasons] == [0, 1, 2, 3]
    assert [one.seconds for one in reasons] == [pytest.approx(s) for s in (4, 4, 8, 8)]
    assert "no other before it" in reasons[0].text
    assert "1 other before it" in reasons[1].text
    assert "3 others before it" in reasons[3].text
    assert "about 8.0 s" in reasons[3].text


@pytest.mark.parametrize("queue", ["fifo", "lifo", "priority", "fair_round_robin"])
@seeded
async def test_explain_counts_by_the_strategy_in_force(runtime: SeededRuntime, queue: str) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue=queue) as pool:
        async with occupied(pool):
            tickets = [
                await pool.with_options(
                    key=runtime.random.choice("ABC"), priority=runtime.random.randrange(3)
                ).submit(journal.note, str(number))
                for number in range(12)
            ]
            foretold = {str(n): (await why(t)).ahead for n, t in enumerate(tickets)}
        await wait(tickets)
    assert [foretold[name] for name in journal.ran] == list(range(12))


@seeded
async def test_explain_reports_a_busy_session(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        gate = asyncio.Event()
        view = pool.with_options(session="talk")
        holder = await view.submit(gate.wait)
        tickets = [await view.submit(review, n) for n in range(3)]
        first, _, third = [await why(ticket) for ticket in tickets]
        gate.set()
        await wait([holder, *tickets])
    assert (first.reason, third.reason) == ("session_busy", "session_busy")
    assert (first.ahead, third.ahead) == (0, 2)
    assert "'talk'" in first.text
    assert holder.id in first.text
    assert "2 others" in third.text


@seeded
async def test_explain_reports_a_key_cap(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=3, max_per_key=1) as pool:
        gate = asyncio.Event()
        view = pool.with_options(key="acme")
        tickets = [await view.submit(gate.wait) for _ in range(3)]
        reasons = [await why(ticket) for ticket in tickets]
        gate.set()
        await wait(tickets)
    assert [one.reason for one in reasons] == ["running", "key_cap", "key_cap"]
    assert [one.ahead for one in reasons[1:]] == [0, 1]
    assert "'acme'" in reasons[1].text
    assert "all of its 1 places" in reasons[1].text


@seeded
async def test_explain_reports_a_schedule_and_a_retry(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        later = await pool.with_options(delay=30).submit(review, 1)
        await asyncio.sleep(10)
        explanation = await why(later)
        assert explanation.reason == "scheduled"
        assert explanation.seconds == pytest.approx(20)
        assert explanation.text == "it waits for its time in 20.0 s"
        retry = Retry(attempts=2, first=8, jitter=0)
        again = await pool.with_options(retry=retry).submit(raise_mine, "x")
        await asyncio.sleep(2)
        explanation = await why(again)
        assert explanation.reason == "scheduled"
        assert explanation.seconds == pytest.approx(6)
        assert explanation.text == "it waits for a retry in 6.0 s"


@seeded
async def test_explain_reports_a_paused_pool(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        pool.pause()
        ticket = await pool.submit(review, 1)
        assert (await why(ticket)).reason == "paused"
        assert "resume" in (await why(ticket)).text
        pool.resume()
        assert await ticket == (1, False)


@seeded
async def test_explain_reports_a_running_or_finished_job(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        async with occupied(pool) as (ticket,):
            assert (await why(ticket)).reason == "running"
            assert (await why(ticket)).text == "it runs: attempt 1, for 0.0 s"
        assert (await why(ticket)).reason == "over"
        assert (await why(ticket)).text == "it is over: completed"
        failed = await pool.submit(raise_mine, "x")
        await wait(failed)
        assert (await why(failed)).text == "it is over: failed"


# Resizing and pausing


@seeded
async def test_resize_changes_how_much_runs_and_cancels_nothing(runtime: SeededRuntime) -> None:
    gate = asyncio.Event()
    async with Pool(runtime=runtime, max_concurrent=1) as pool:
        tickets = [await pool.submit(gate.wait) for _ in range(6)]
        await pool.resize(4)
        assert pool.snapshot().active == 4
        await pool.resize(2)
        assert pool.snapshot().active == 4
        gate.set()
        assert [job.status for job in await wait(tickets)] == [Status.COMPLETED] * 6
        assert pool.snapshot().max_concurrent == 2


@seeded
async def test_a_paused_pool_takes_work_and_starts_none(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=2) as pool:
        async with occupied(pool) as (running,):
            pool.pause()
            ticket = await pool.submit(review, 1)
        await asyncio.sleep(100)
        assert (running.status, ticket.status) == (Status.COMPLETED, Status.QUEUED)
        pool.resume()
        assert await ticket == (1, False)


@seeded
async def test_a_blocked_submit_can_be_cancelled_by_its_caller(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool, occupied(pool):
        await pool.submit(review, 1)
        task = await park(pool, pool, review, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.snapshot().total == 2
