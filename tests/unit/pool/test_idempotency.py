"""Idempotency: one key, one job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from poolhand import Pool, Refused, Retry, bounded, fail_fast, fair_round_robin, ring_buffer, wait
from poolhand.errors import IdempotencyConflict, JobCancelled, JobExpired, JobRejected, PoolFull
from poolhand.observe import events
from poolhand.pool.submitter import Submitter
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import Heard, Journal, occupied, park, seeded, until


class Broken(Exception):
    """What the jobs of these tests raise."""


def call(journal: Journal | None = None, name: str = "") -> Callable[[], Awaitable[str]]:
    """Return a function that fails without a journal: for a key always the same call."""

    async def called() -> str:
        if journal is None:
            raise Broken
        return await journal.note(name)

    return called


# One run


@seeded
async def test_two_submits_of_one_key_are_one_job(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(idempotency_key="k")
        first = await view.submit(call(journal, "first"))
        second = await view.submit(call(journal, "second"))
        third = view.submit_nowait(call(journal, "third"))
        assert first.id == second.id == third.id
        assert [await ticket for ticket in (first, second, third)] == ["first"] * 3
        assert pool.snapshot().total == 1
        assert first.snapshot().idempotency_key == "k"
    assert journal.ran == ["first"]


@pytest.mark.parametrize("parked", [False, True])
@seeded
async def test_a_hundred_concurrent_submits_of_one_key_run_once_and_get_the_same_job(
    runtime: SeededRuntime, parked: bool
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool:
        view = pool.with_options(idempotency_key="k")

        async def submit() -> str:
            ticket = await view.submit(call(journal, "once"))
            assert await ticket == "once"
            return ticket.id

        if parked:
            async with occupied(pool):
                await pool.submit(journal.note, "filler")
                tasks = [asyncio.create_task(submit()) for _ in range(100)]
                await until(lambda: pool.snapshot().blocked_submitters == 100)
        else:
            tasks = [asyncio.create_task(submit()) for _ in range(100)]
        ids = await asyncio.gather(*tasks)
    assert len(set(ids)) == 1
    assert journal.ran.count("once") == 1


@seeded
async def test_submits_of_one_key_before_during_and_after_its_run_are_one_job(
    runtime: SeededRuntime,
) -> None:
    ran: list[int] = []

    async def job() -> int:
        ran.append(1)
        await asyncio.sleep(2)
        return len(ran)

    async with Pool(runtime=runtime, max_concurrent=2, backpressure=bounded(1)) as pool:
        view = pool.with_options(idempotency_key="k")

        async def submit(source: Submitter, moment: float) -> str:
            await asyncio.sleep(moment)
            ticket = await source.submit(job)
            await ticket
            return ticket.id

        moments = [runtime.random.uniform(0, 6) for _ in range(100)]
        others = [submit(pool, runtime.random.uniform(0, 6)) for _ in range(10)]
        ids = await asyncio.gather(*(submit(view, moment) for moment in moments), *others)
    assert len(set(ids[:100])) == 1
    assert len(ran) == 11


@seeded
async def test_keyed_submits_blocked_at_different_times_are_resolved_after_the_wait(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool:
        view = pool.with_options(idempotency_key="k")
        async with occupied(pool):
            await pool.submit(journal.note, "filler")
            first = await park(pool, view, call(journal, "k"))
            other = await park(pool, pool, journal.note, "other")
            second = await park(pool, view, call(journal, "k"))
        tickets = await asyncio.gather(first, other, second)
        late = await view.submit(call(journal, "k"))
        assert tickets[0].id == tickets[2].id == late.id
        await wait(tickets)
    assert sorted(journal.ran) == ["filler", "k", "other"]


@seeded
async def test_the_first_blocked_submitter_of_a_key_may_leave_and_the_others_get_the_job(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool:
        view = pool.with_options(idempotency_key="k")
        async with occupied(pool):
            await pool.submit(journal.note, "filler")
            tasks = [await park(pool, view, call(journal, "k")) for _ in range(3)]
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            assert pool.snapshot().blocked_submitters == 2
        tickets = await asyncio.gather(*tasks[1:])
        assert len({ticket.id for ticket in tickets}) == 1
        await wait(tickets)
    assert journal.ran == ["filler", "k"]


@seeded
async def test_submit_nowait_that_would_join_a_blocked_submit_is_refused_alone(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool:
        view = pool.with_options(idempotency_key="k")
        async with occupied(pool):
            await pool.submit(Journal().note, "filler")
            task = await park(pool, view, call(Journal(), "k"))
            with pytest.raises(PoolFull):
                view.submit_nowait(call(Journal(), "k"))
        assert await (await task) == "k"


@seeded
async def test_joining_a_job_emits_its_own_event_and_no_submit(runtime: SeededRuntime) -> None:
    heard = Heard()
    async with Pool(runtime=runtime, events=heard.events) as pool:
        view = pool.with_options(idempotency_key="k")
        tickets = [await view.submit(call(Journal(), "k")) for _ in range(3)]
        await wait(tickets)
    assert [event.job.id for event in heard.of(events.JobSubmitted)] == [tickets[0].id]
    assert [event.job.id for event in heard.of(events.JobJoined)] == [tickets[0].id] * 2
    assert len(heard.of(events.JobEnded)) == 1


@seeded
async def test_joining_a_job_takes_no_place(runtime: SeededRuntime) -> None:
    policy = bounded(1, on_full="fail_submitter")
    async with Pool(runtime=runtime, backpressure=policy) as pool, occupied(pool):
        view = pool.with_options(idempotency_key="k")
        first = await view.submit(call(Journal(), "k"))
        with pytest.raises(PoolFull):
            await pool.submit(Journal().note, "other")
        assert (await view.submit(call(Journal(), "k"))).id == first.id


@seeded
async def test_a_retried_job_keeps_its_key(runtime: SeededRuntime) -> None:
    attempts: list[int] = []

    async def flaky() -> int:
        attempts.append(1)
        if len(attempts) == 1:
            raise Broken
        return len(attempts)

    async with Pool(runtime=runtime, retry=Retry(attempts=2, first=60)) as pool:
        view = pool.with_options(idempotency_key="k")
        first = await view.submit(flaky)
        await asyncio.sleep(1)
        assert first.status is Status.SCHEDULED
        second = await view.submit(flaky)
        assert second.id == first.id
        assert await second == 2


# What a key belongs to


@seeded
async def test_keys_are_per_tenant(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime) as pool:
        ids = set()
        for tenant in ("a", "b", None, "a", None):
            view = pool.with_options(idempotency_key="k", tenant=tenant)
            ticket = await view.submit(call(journal, str(tenant)))
            assert await ticket == str(tenant)
            ids.add(ticket.id)
    assert len(ids) == 3
    assert journal.ran == ["a", "b", "None"]


@seeded
async def test_keys_are_per_pool(runtime: SeededRuntime) -> None:
    async with Pool("one", runtime=runtime) as one, Pool("two", runtime=runtime) as two:
        first = await one.with_options(idempotency_key="k").submit(Journal().note, "1")
        second = await two.with_options(idempotency_key="k").submit(Journal().note, "2")
        assert first.id != second.id
        assert (await first, await second) == ("1", "2")


@seeded
async def test_jobs_without_a_key_are_all_their_own(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        tickets = [await pool.submit(Journal().note, "x") for _ in range(3)]
        cleared = pool.with_options(idempotency_key="k").with_options(idempotency_key=None)
        tickets += [await cleared.submit(Journal().note, "x") for _ in range(2)]
        assert len({ticket.id for ticket in tickets}) == 5


# After the outcome


@seeded
async def test_a_completed_key_returns_its_recorded_value(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(idempotency_key="k")
        first = await view.submit(call(journal, "value"))
        await first
        second = await view.submit(call(journal, "another"))
        assert second.id == first.id
        assert second.status is Status.COMPLETED
        assert await second == "value"
        assert await view.run(call(journal, "another")) == "value"
    assert journal.ran == ["value"]


@seeded
async def test_a_failed_key_returns_its_recorded_error(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(idempotency_key="k")
        with pytest.raises(Broken):
            await view.run(call())
        with pytest.raises(Broken):
            await view.run(call(Journal(), "never"))
        assert pool.snapshot().total == 1


@pytest.mark.parametrize(("ending", "error"), [("cancel", JobCancelled), ("expire", JobExpired)])
@seeded
async def test_a_key_that_ended_unrun_returns_that_outcome(
    runtime: SeededRuntime, ending: str, error: type[Exception]
) -> None:
    async with Pool(runtime=runtime) as pool, occupied(pool):
        view = pool.with_options(idempotency_key="k", expires=5)
        ticket = await view.submit(call(Journal(), "never"))
        if ending == "cancel":
            await ticket.cancel()
        else:
            await wait(ticket)
        with pytest.raises(error):
            await view.run(call(Journal(), "never"))


@seeded
async def test_an_outcome_outlives_the_history(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, history=0) as pool:
        view = pool.with_options(idempotency_key="k")
        assert await view.run(call(Journal(), "value")) == "value"
        assert pool.snapshot().jobs == ()
        assert await view.run(call(Journal(), "another")) == "value"


@seeded
async def test_rerun_failed_runs_a_failed_key_again_as_a_new_job(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(idempotency_key="k")
        first = await view.submit(call())
        await wait(first)
        second = await view.with_options(rerun_failed=True).submit(call(Journal(), "mended"))
        assert second.id != first.id
        assert await second == "mended"
        assert first.status is Status.FAILED
        assert await view.run(call(Journal(), "third")) == "mended"


@seeded
async def test_rerun_failed_leaves_a_live_or_completed_key_alone(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(idempotency_key="k", rerun_failed=True)
        async with occupied(pool):
            first = await view.submit(call(journal, "first"))
            assert (await view.submit(call(journal, "second"))).id == first.id
        await first
        assert (await view.submit(call(journal, "third"))).id == first.id
    assert journal.ran == ["first"]


@seeded
async def test_concurrent_reruns_of_a_failed_key_run_once(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, max_concurrent=5) as pool:
        view = pool.with_options(idempotency_key="k", rerun_failed=True)
        await wait(await view.submit(call()))
        tickets = await asyncio.gather(*(view.submit(call(journal, "x")) for _ in range(20)))
        assert len({ticket.id for ticket in tickets}) == 1
        await wait(tickets)
    assert journal.ran == ["x"]


@seeded
async def test_a_refused_rerun_leaves_the_recorded_failure(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, backpressure=bounded(1, wait_timeout=5)) as pool:
        view = pool.with_options(idempotency_key="k")
        await wait(await view.submit(call()))
        async with occupied(pool):
            await pool.submit(Journal().note, "filler")
            with pytest.raises(PoolFull):
                await view.with_options(rerun_failed=True).submit(call(Journal(), "again"))
        with pytest.raises(Broken):
            await view.run(call(Journal(), "recorded"))


# What releases a key


@pytest.mark.parametrize(
    "policy",
    [
        bounded(1, on_full="drop_newest"),
        bounded(1, on_full="fail_submitter"),
        bounded(1, wait_timeout=3),
        fail_fast(),
    ],
    ids=str,
)
@seeded
async def test_a_rejected_or_refused_new_job_releases_its_key(
    runtime: SeededRuntime, policy: Any
) -> None:
    async with Pool(runtime=runtime, backpressure=policy) as pool:
        view = pool.with_options(idempotency_key="k")
        async with occupied(pool):
            if policy != fail_fast():
                await pool.submit(Journal().note, "filler")
            try:
                ticket = await view.submit(call(Journal(), "refused"))
                with pytest.raises(JobRejected):
                    await ticket
            except Refused:
                pass
        await until(lambda: not pool.size())
        assert await view.run(call(Journal(), "second try")) == "second try"


@pytest.mark.parametrize("policy", [bounded(1, on_full="drop_oldest"), ring_buffer(1)], ids=str)
@seeded
async def test_an_evicted_job_releases_its_key(runtime: SeededRuntime, policy: Any) -> None:
    async with Pool(runtime=runtime, backpressure=policy) as pool:
        view = pool.with_options(idempotency_key="k")
        async with occupied(pool):
            victim = await view.submit(call(Journal(), "victim"))
            await pool.submit(Journal().note, "newer")
            assert victim.status is Status.REJECTED
        await until(lambda: not pool.size())
        second = await view.submit(call(Journal(), "second try"))
        assert second.id != victim.id
        assert await second == "second try"


@seeded
async def test_a_job_that_evicts_the_holder_of_its_own_key_does_not_exist(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, backpressure=ring_buffer(1)) as pool, occupied(pool):
        view = pool.with_options(idempotency_key="k")
        first = await view.submit(call(Journal(), "x"))
        assert (await view.submit(call(Journal(), "y"))).id == first.id
        assert first.status is Status.QUEUED


@pytest.mark.parametrize("how", ["cancelled", "without waiting"])
@seeded
async def test_a_blocked_submitter_that_leaves_releases_its_key(
    runtime: SeededRuntime, how: str
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool:
        view = pool.with_options(idempotency_key="k")
        async with occupied(pool):
            await pool.submit(journal.note, "filler")
            if how == "cancelled":
                task = await park(pool, view, call(journal, "gone"))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                with pytest.raises(PoolFull):
                    view.submit_nowait(call(journal, "gone"))
        assert await view.run(call(journal, "second try")) == "second try"
    assert journal.ran == ["filler", "second try"]


@seeded
async def test_a_bad_call_leaves_its_key_free(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(idempotency_key="k")
        nothing: Any = None
        with pytest.raises(ValueError, match="cannot be called"):
            await view.submit(nothing)
        assert await view.run(call(Journal(), "x")) == "x"


# Forgetting


@seeded
async def test_a_key_expires_key_ttl_after_the_outcome_not_after_the_submit(
    runtime: SeededRuntime,
) -> None:
    ran: list[int] = []

    async def job() -> int:
        await asyncio.sleep(100)
        ran.append(len(ran))
        return len(ran)

    async with Pool(runtime=runtime, key_ttl=10) as pool:
        view = pool.with_options(idempotency_key="k")
        first = await view.submit(job)
        await asyncio.sleep(50)
        assert (await view.submit(job)).id == first.id
        assert await first == 1
        await asyncio.sleep(9.9)
        assert (await view.submit(job)).id == first.id
        await asyncio.sleep(0.2)
        second = await view.submit(job)
        assert second.id != first.id
        assert await second == 2


@seeded
async def test_a_rerun_key_expires_after_its_last_outcome(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, key_ttl=10) as pool:
        view = pool.with_options(idempotency_key="k")
        await wait(await view.submit(call()))
        await asyncio.sleep(8)
        again = await view.with_options(rerun_failed=True).submit(call(Journal(), "again"))
        await again
        await asyncio.sleep(8)
        assert (await view.submit(call(Journal(), "third"))).id == again.id
        await asyncio.sleep(3)
        assert (await view.submit(call(Journal(), "third"))).id != again.id


@seeded
async def test_at_most_max_keys_outcomes_are_kept_the_oldest_go_first(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, max_keys=3) as pool:
        for name in "abcd":
            await pool.with_options(idempotency_key=name).run(journal.note, name)
        for name in "bcd":
            await pool.with_options(idempotency_key=name).run(journal.note, name)
        assert journal.ran == list("abcd")
        await pool.with_options(idempotency_key="a").run(journal.note, "a")
        assert journal.ran == list("abcda")


@pytest.mark.parametrize("options", [{"max_keys": 0}, {"key_ttl": 0}])
@seeded
async def test_a_pool_may_keep_no_outcomes_but_always_keeps_keys_of_live_jobs(
    runtime: SeededRuntime, options: Any
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, **options) as pool:
        view = pool.with_options(idempotency_key="k")
        async with occupied(pool):
            first = await view.submit(call(journal, "1"))
            await asyncio.sleep(1000)
            assert (await view.submit(call(journal, "2"))).id == first.id
        await first
        assert await view.run(call(journal, "3")) == "3"
    assert journal.ran == ["1", "3"]


@seeded
async def test_a_caller_that_leaves_does_not_cancel_a_job_others_wait_for(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime) as pool:
        shared = pool.with_options(idempotency_key="k", cancel_with_caller=True)
        one = asyncio.create_task(shared.run(asyncio.sleep, 5, "done"))
        two = asyncio.create_task(shared.run(asyncio.sleep, 5, "done"))
        await asyncio.sleep(1)
        one.cancel()
        assert await two == "done"


@seeded
async def test_removing_a_tenant_option_removes_it_for_keys_too(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, queue=fair_round_robin("tenant_id")) as pool:
        acme = pool.with_options(tenant_id="acme")
        assert (await acme.submit(asyncio.sleep, 0)).snapshot().tenant == "acme"
        nobody = acme.with_options(tenant_id=None)
        assert (await nobody.submit(asyncio.sleep, 0)).snapshot().tenant is None


# One call


async def charge(amount: int, currency: str = "EUR") -> int:
    return amount


async def refund(amount: int) -> int:
    return -amount


@pytest.mark.parametrize("is_over", [False, True])
@seeded
async def test_a_key_of_another_function_or_other_arguments_is_a_conflict(
    runtime: SeededRuntime, is_over: bool
) -> None:
    heard = Heard()
    async with Pool(runtime=runtime, events=heard.events) as pool:
        view = pool.with_options(idempotency_key="k")
        first = await view.submit(charge, 7)
        if is_over:
            await wait(first)
        with pytest.raises(IdempotencyConflict, match=r"with other arguments") as other:
            await view.submit(charge, 8)
        with pytest.raises(IdempotencyConflict, match=r"a call of .*\.charge; .*refund:k"):
            view.submit_nowait(refund, 7)
        assert (other.value.key, other.value.job_id) == ("k", first.id)
        assert await first == 7
    assert [event.code for event in heard.of(events.SubmitRefused)] == ["PH-TOL-003"] * 2
    assert len(heard.of(events.JobSubmitted)) == 1


@seeded
async def test_the_same_call_given_in_another_way_is_no_conflict(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(idempotency_key="k")
        first = await view.submit(charge, 7)
        assert (await view.submit(charge, amount=7)).id == first.id
        assert (await view.submit(charge, 7, currency="EUR")).id == first.id
        assert (await view.submit(partial(charge, 8))).id == first.id


class Opaque:
    """An argument that cannot be compared."""


@pytest.mark.parametrize(("one", "other"), [(Opaque, Opaque), (Opaque, int), (str, Opaque)])
@seeded
async def test_arguments_that_cannot_be_compared_are_no_conflict(
    runtime: SeededRuntime, one: type, other: type
) -> None:
    async def job(value: object) -> None: ...

    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(idempotency_key="k")
        first = await view.submit(job, one())
        assert (await view.submit(job, other())).id == first.id
        huge = await pool.with_options(idempotency_key="huge").submit(job, "x" * 200_000)
        again = pool.with_options(idempotency_key="huge")
        assert (await again.submit(job, "y" * 200_000)).id == huge.id


@seeded
async def test_a_rerun_of_a_failed_key_is_the_same_call(runtime: SeededRuntime) -> None:
    async def fails(number: int) -> None:
        raise Broken

    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(idempotency_key="k", rerun_failed=True)
        first = await view.submit(fails, 1)
        await wait(first)
        with pytest.raises(IdempotencyConflict):
            await view.submit(fails, 2)
        second = await view.submit(fails, 1)
        await wait(second)
        assert second.id != first.id


@seeded
async def test_a_conflict_does_not_count_as_a_look_at_the_failure(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    async with Pool(runtime=runtime) as pool:
        view = pool.with_options(idempotency_key="k")
        await view.submit(call())
        await until(lambda: pool.snapshot().failed == 1)
        with pytest.raises(IdempotencyConflict):
            await view.submit(charge, 7)
    assert "Broken" in caplog.text
