"""A failure of a pool in memory that is never retrieved is logged; any other is not."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from poolhand import Pool, Retry, current_job, log_events, wait
from poolhand.errors import JobCancelled
from poolhand.observe.events import Events
from poolhand.views import Job, Status
from tests.unit.pool.support import until


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    caplog.clear()
    return found


async def broken(_: object = None) -> None:
    raise ValueError("no such page")


def plain() -> None:
    raise ValueError("no such page")


async def settle(pool: Pool) -> None:
    """Let all jobs end; the log line comes in one of the next iterations of the loop."""
    await until(lambda: not pool.size())
    await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("job", "run_in"), [(broken, None), (plain, "thread"), (plain, "loop")])
async def test_an_unread_failed_job_is_logged(
    caplog: pytest.LogCaptureFixture, job: Any, run_in: str | None
) -> None:
    async with Pool("reviews") as pool:
        id = (await pool.with_options(run_in=run_in).submit(job)).id
        await settle(pool)
        (line,) = errors(caplog)
        name = job.__qualname__
        assert line.startswith(
            f"job {id} of '{name}' in pool 'reviews' failed, and its ticket was never awaited: "
            "ValueError: no such page\n    Traceback"
        )
        assert 'raise ValueError("no such page")' in line
        assert [one.id for one in pool.dead()] == [id]
    assert errors(caplog) == []


async def test_an_unread_failed_thread_job_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Pool("reviews") as pool:
        await pool.submit(plain)
        await until(lambda: bool(caplog.records))
    assert len(errors(caplog)) == 1


async def test_a_failure_read_in_any_way_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Pool("reviews") as pool:
        with pytest.raises(ValueError, match="no such page"):
            await pool.run(broken)
        with pytest.raises(ValueError, match="no such page"):
            await (await pool.submit(broken)).result(timeout=5)
        await wait([await pool.submit(broken)])
        await wait(await pool.submit(broken), timeout=5)
        polled = await pool.submit(broken)
        await settle(pool)
        assert polled.status is Status.FAILED
        with pytest.raises(ValueError, match="no such page"):
            await pool.map(broken, [1])
        assert len(await pool.map(broken, [1, 2], return_exceptions=True)) == 2
        del polled
        await settle(pool)
    assert errors(caplog) == []


async def test_a_ticket_that_is_held_can_still_be_asked_after_the_drain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Pool("reviews") as pool:
        tickets = [await pool.submit(broken) for _ in range(2)]
        await settle(pool)
    assert errors(caplog) == []
    with pytest.raises(ValueError, match="no such page"):
        await tickets.pop()
    assert errors(caplog) == []
    tickets.clear()
    await turns()
    assert len(errors(caplog)) == 1


async def test_a_failure_that_only_its_key_holds_is_logged_with_the_drain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Pool("reviews") as pool:
        await pool.with_options(idempotency_key="once").submit(broken)
        await settle(pool)
        assert errors(caplog) == []
    await turns()
    assert len(errors(caplog)) == 1


async def test_retries_of_a_pool_are_not_logged_and_its_last_failure_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Pool("reviews", retry=Retry(attempts=3, first=0.1)) as pool:
        await pool.submit(broken)
        await settle(pool)
    assert [one.levelname for one in caplog.records] == ["ERROR"]


async def test_a_failure_passed_to_on_dead_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    dead: list[Job] = []
    async with Pool("reviews", on_dead=dead.append) as pool:
        await pool.submit(broken)
        await settle(pool)
    assert len(dead) == 1
    assert errors(caplog) == []


async def test_a_cancelled_job_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    async with Pool("reviews") as pool:
        await (await pool.submit(asyncio.sleep, 60)).cancel()
        await pool.submit(asyncio.sleep, 60)
        await pool.drain(0)
    assert errors(caplog) == []


async def test_a_burst_of_failures_is_a_few_lines_and_a_summary(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Pool("reviews", max_concurrent=50) as pool:
        for _ in range(200):
            await pool.submit(broken)
        await settle(pool)
    *lines, summary = errors(caplog)
    assert len(lines) >= 10
    count = 200 - len(lines)
    assert summary.startswith(f"and {count} more failures of task 'broken' in the last ")
    assert summary.endswith(f"; {count} jobs are dead")


async def test_when_events_are_logged_a_failure_has_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events()
    log_events(events=events)
    async with Pool("reviews", events=events) as pool:
        await pool.submit(broken)
        await settle(pool)
    (line,) = errors(caplog)
    assert line.startswith("job ended pool=reviews ")


# Jobs that make tasks


async def after_wait_for() -> None:
    await asyncio.wait_for(asyncio.sleep(0), 5)
    raise ValueError("no such page")


async def after_a_task() -> None:
    child = asyncio.create_task(asyncio.sleep(0))
    await child
    raise ValueError("no such page")


async def in_a_task() -> None:
    child = asyncio.create_task(broken())
    await child


async def in_gather() -> None:
    await asyncio.gather(broken(), asyncio.sleep(0))


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(broken())


async def in_a_circle() -> None:
    child = asyncio.create_task(asyncio.sleep(0))
    await child
    try:
        raise ValueError("no such page")
    except ValueError as error:
        kept = error
        raise kept  # noqa: B904


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


MAKERS_OF_TASKS = [after_wait_for, after_a_task, in_a_task, in_gather, in_a_group, in_a_circle]


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("retry", [None, Retry(attempts=2, first=0)], ids=["once", "twice"])
@pytest.mark.parametrize("job", MAKERS_OF_TASKS)
async def test_the_tasks_of_a_job_do_not_keep_its_ticket(
    caplog: pytest.LogCaptureFixture, job: Any, retry: Retry | None
) -> None:
    async with Pool("reviews", retry=retry) as pool:
        await pool.submit(job)
        await settle(pool)
        (line,) = errors(caplog)
        assert "no such page" in line
        assert len(pool.dead()) == 1


async def test_current_job_works_in_a_task_that_outlives_its_job() -> None:
    found: list[Job | None] = []
    done = asyncio.Event()

    async def later() -> None:
        await done.wait()
        found.append(current_job())

    async def job() -> None:
        tasks.append(asyncio.create_task(later()))
        raise ValueError("no such page")

    tasks: list[asyncio.Task[None]] = []
    async with Pool("reviews") as pool:
        ticket = await pool.submit(job)
        await wait(ticket)
        done.set()
        await tasks[0]
    assert found == [ticket.snapshot()]


async def test_failures_throttled_after_the_end_of_a_pool_are_logged_with_the_summary(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Pool("reviews") as pool:
        tickets = [await pool.submit(broken) for _ in range(15)]
        await settle(pool)
    assert errors(caplog) == []
    tickets.clear()
    assert len(errors(caplog)) == 10
    del pool
    gc.collect()
    (line,) = errors(caplog)
    assert line.startswith("and 5 more failures of task 'broken' in the last ")


async def cancels_itself() -> None:
    inner = asyncio.create_task(asyncio.Event().wait())
    inner.cancel()
    await inner


def cancels_itself_plainly() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("job", "run_in"), [(cancels_itself, None), (cancels_itself_plainly, "thread")]
)
async def test_a_job_that_raises_cancelled_error_itself_is_logged_unless_it_is_read(
    caplog: pytest.LogCaptureFixture, job: Any, run_in: str | None
) -> None:
    async with Pool("reviews") as pool:
        with pytest.raises(JobCancelled):
            await pool.with_options(run_in=run_in).run(job)
        await settle(pool)
        assert not caplog.records
        id = (await pool.with_options(run_in=run_in).submit(job)).id
        await settle(pool)
        (record,) = caplog.records
        assert (record.levelname, record.getMessage()) == (
            "WARNING",
            f"job {id} of task '{job.__qualname__}' ended as cancelled although no one cancelled "
            "it: its code raised CancelledError (an inner task that was cancelled?); catch it, or "
            "raise another error to have it retried",
        )
        assert not pool.dead()
        assert pool.snapshot().cancelled == 2


async def test_a_job_whose_task_is_cancelled_from_outside_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Pool("reviews") as pool:
        await pool.submit(asyncio.sleep, 60)
        await turns()
        for task in asyncio.all_tasks():
            if task.get_name().startswith("reviews-worker-"):
                task.cancel()
        await settle(pool)
        assert pool.snapshot().cancelled == 1
    assert not caplog.records
