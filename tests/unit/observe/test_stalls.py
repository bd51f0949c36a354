"""Blocked event loops and stuck slots are logged by default, once each, with the job."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from poolhand import App, Pool, Retry, log_events
from poolhand.errors import JobTimedOut
from poolhand.observe.events import Events, LoopBlocked
from poolhand.observe.failures import blocked_text
from tests.unit.pool.support import until

ONCE = Retry(attempts=1)


class Lines(logging.Handler):
    """Collects warnings; `logged` is set by the first one about a blocked loop."""

    def __init__(self) -> None:
        super().__init__()
        self.logged = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")
        if "careless" in record.getMessage():
            self.logged.set()

    def about(self, words: str) -> list[str]:
        return [one for one in self.lines if words in one]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("poolhand")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def check_blocked(lines: Lines, id: str, name: str, pool: str) -> None:
    (line,) = [one for one in lines.about("has blocked the event loop") if id in one]
    assert line.startswith(
        f"WARNING job {id} of task '{name}' in pool '{pool}' has blocked the event loop for "
    )
    assert "\n    Blocked here (most recent call last):\n" in line
    assert "in careless" in line
    assert "lines.logged.wait(20)" in line


@pytest.mark.slow
@pytest.mark.parametrize("heard", [False, True])
async def test_a_job_that_blocks_the_loop_of_a_pool_is_logged(lines: Lines, heard: bool) -> None:
    async def careless() -> bool:
        return lines.logged.wait(20)

    events = Events()
    if heard:
        events.subscribe(lambda event: None)
    async with Pool("reviews", events=events) as pool:
        ticket = await pool.submit(careless)
        assert await ticket
    check_blocked(lines, ticket.id, ticket.snapshot().name, "reviews")


@pytest.mark.slow
async def test_a_job_that_blocks_the_loop_of_a_worker_is_logged(lines: Lines) -> None:
    app = App("memory://")

    @app.task(name="careless")
    async def careless() -> bool:
        return lines.logged.wait(20)

    async with app, app.worker(slots=1):
        ticket = await careless.submit()
        assert await ticket
    check_blocked(lines, ticket.id, "careless", ticket.snapshot().pool)


OVERRAN = "and its timeout of 0.05 s had no effect: the event loop was blocked meanwhile"


@pytest.mark.slow
async def test_a_timeout_that_a_blocked_loop_hides_is_logged(lines: Lines) -> None:
    async def careless() -> bool:
        return lines.logged.wait(20)

    async with Pool("reviews") as pool:
        ticket = await pool.with_options(timeout=0.05).submit(careless)
        assert await ticket
    blocked, overran = lines.about(ticket.id)
    assert "s; its timeout of 0.05 s cannot take effect, and no other job" in blocked
    assert overran.startswith(f"WARNING job {ticket.id} of task ")
    assert OVERRAN in overran
    assert 'make it a plain function (def), which runs in a thread, or use run_in="pro' in overran


@pytest.mark.slow
async def test_a_timeout_that_a_blocked_loop_hides_is_logged_in_a_worker(lines: Lines) -> None:
    app = App("memory://")

    @app.task(name="careless", timeout=0.05)
    async def careless() -> bool:
        return lines.logged.wait(20)

    async with app, app.worker(slots=1):
        assert await careless.run()
    (line,) = lines.about(OVERRAN)
    assert "of task 'careless' in pool 'default' ran for " in line


@pytest.mark.slow
async def test_code_that_is_no_job_is_logged_too(lines: Lines) -> None:
    def careless() -> bool:
        return lines.logged.wait(20)

    async with Pool("reviews"):
        await asyncio.sleep(0)
        assert careless()
    line = lines.about("in careless")[0]
    text = "WARNING code outside of any job, in the process of pool 'reviews', has blocked the"
    assert line.startswith(text)


async def test_when_events_are_logged_a_block_has_one_line(lines: Lines) -> None:
    async def careless() -> bool:
        return lines.logged.wait(20)

    events = Events()
    end = log_events(events=events)
    async with Pool("reviews", events=events) as pool:
        assert await pool.run(careless)
    end()
    assert lines.about("has blocked the event loop") == []
    assert lines.about("loop blocked")


def test_text_of_a_block_cannot_pass_for_a_line_of_the_log() -> None:
    text = blocked_text(LoopBlocked("p\n", None, 1.0, "a\nERROR forged\x1b[2J"))
    assert "\nERROR" not in text
    assert "\x1b" not in text


async def stubborn(release: asyncio.Event, begun: asyncio.Event | None = None) -> None:
    if begun is not None:
        begun.set()
    while not release.is_set():
        try:
            await release.wait()
        except asyncio.CancelledError:
            continue


STUCK = "and its code does not stop: slot worker-000 is stuck and takes no other job until"


async def test_a_stuck_slot_of_a_pool_is_logged(lines: Lines) -> None:
    release, begun = asyncio.Event(), asyncio.Event()
    async with Pool("reviews", max_concurrent=1, cancel_grace=0) as pool:
        late = await pool.with_options(timeout=0.01).submit(stubborn, release)
        with pytest.raises(JobTimedOut):
            await late
        release.set()
        await until(lambda: not pool.snapshot().stuck)
        release.clear()
        unwanted = await pool.submit(stubborn, release, begun)
        await begun.wait()
        assert await unwanted.cancel()
        release.set()
        await until(lambda: not pool.snapshot().stuck)
    first, second = lines.about("does not stop")
    what = "of task 'stubborn' in pool 'reviews'"
    assert first.startswith(f"WARNING job {late.id} {what} ran past its timeout, {STUCK}")
    assert second.startswith(f"WARNING job {unwanted.id} {what} was cancelled, {STUCK}")


async def test_a_stuck_slot_of_a_worker_is_logged(lines: Lines) -> None:
    app, release = App("memory://"), asyncio.Event()

    @app.task(name="late", retry=ONCE, timeout=0.01)
    async def late() -> None:
        await stubborn(release)

    async with app, app.worker(slots=1):
        ticket: Any = await late.submit()
        with pytest.raises(JobTimedOut):
            await ticket
        release.set()
    (line,) = lines.about("does not stop")
    assert line.startswith(f"WARNING job {ticket.id} of task 'late' in pool ")
    assert f"ran past its timeout, {STUCK}" in line
