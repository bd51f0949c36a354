"""Jobs that a worker does not finish: which ones are named, and what is said of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Event

import pytest

from poolhand import App
from poolhand.durable.worker.running_claim import (
    Unfinished,
    cut_short_text,
    stopped_text,
    stopping_text,
)
from tests.unit.pool.support import until

ASYNC, THREAD = Unfinished("j-1", "ask"), Unfinished("j-2", "draw", in_thread=True)
ONCE = Unfinished("j-3", "pay", fails=True)


def test_a_stopped_non_repeatable_job_is_reported_as_failed_not_handed_back() -> None:
    assert stopped_text([ASYNC, ONCE], 3.0) == (
        "2 jobs were still running after 3 s; handed back to the store, to run again: job j-1 of "
        "task 'ask'; failed, as on_crash='fail' says: job j-3 of task 'pay'"
    )
    assert cut_short_text([ONCE]) == (
        "1 job was still running when the worker had to end; failed, as on_crash='fail' says: "
        "job j-3 of task 'pay'"
    )


def test_several_jobs_in_threads_are_named_together() -> None:
    assert stopping_text([THREAD, THREAD]) == (
        "job j-2 of task 'draw', job j-2 of task 'draw' run in a thread, which cannot be stopped: "
        "they run on until the code ends or this process ends, and are handed back then"
    )


def test_only_a_few_of_many_jobs_are_named() -> None:
    text = stopped_text([ASYNC] * 1_000, 0.0)
    assert text.startswith("1000 jobs were still running; handed back")
    assert text.endswith("and 995 more")
    assert len(text) < 500


def test_names_of_jobs_are_harmless() -> None:
    text = cut_short_text([Unfinished("j-1", "x\x1b[2J\n" * 1_000)])
    assert text.isprintable()
    assert len(text) < 5_000


@pytest.mark.slow
async def test_a_worker_reports_which_jobs_it_interrupted_and_which_did_not_stop() -> None:
    app = App("memory://")
    app.pool("default", max_concurrent=10)
    gate, begun = Event(), list[str]()

    @app.task(name="draw")
    def draw() -> None:
        begun.append("draw")
        gate.wait()

    @app.task(name="ask")
    async def ask() -> None:
        begun.append("ask")
        await asyncio.Event().wait()

    @app.task(name="save")
    async def save() -> None:
        begun.append("save")
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    @app.task(name="pay", on_crash="fail")
    async def pay() -> None:
        begun.append("pay")
        await asyncio.Event().wait()

    async with app:
        worker = app.worker(slots=5)
        async with worker:
            for task in (draw, ask, save, pay):
                await task.submit()
            await until(lambda: len(begun) == 4)
            report = await worker.drain(0)
        cut = {one.name: (one.in_thread, one.stuck) for one in worker.cut_short}
        # A job that ran to its end when it was asked to stop is done.
        assert cut == {"draw": (True, True), "ask": (False, False), "pay": (False, False)}
        assert (report.completed, report.failed) == (1, 1)
        assert (report.handed_back, report.stuck) == (1, 1)
        gate.set()
