"""Stuck slots: explain names the code behind which a job waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Event

import pytest

from poolhand import App
from poolhand.durable.client.ticket import StoredTicket
from poolhand.durable.leases.heartbeat import STUCK
from poolhand.errors import JobTimedOut
from poolhand.operate.doctor import examine
from poolhand.operate.store_findings import Level
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of


@asynccontextmanager
async def behind_stuck_code(app: App) -> AsyncIterator[tuple[str, StoredTicket[None], Event]]:
    """Yield the id of a job whose thread does not stop, a job that waits behind it, and a gate."""
    gate = Event()

    @app.task(name="draw", timeout=0.05, retry=None)
    def draw() -> None:
        gate.wait()

    @app.task(name="ask")
    async def ask() -> None: ...

    async with app, app.worker(slots=1):
        try:
            stuck = await draw.submit()
            with pytest.raises(JobTimedOut):
                await stuck
            waits = await ask.submit()
            assert isinstance(waits, StoredTicket)
            yield stuck.id, waits, gate
        finally:
            gate.set()


async def until_reason(ticket: StoredTicket[None], reason: str) -> str:
    """Repeat `explain` until the job waits for that reason; return its text."""
    while (found := await ticket.explain()).reason != reason:
        pass
    return found.text


async def test_a_job_that_waits_behind_stuck_slots_names_the_code_that_holds_them() -> None:
    app = App("memory://")
    async with behind_stuck_code(app) as (stuck, waits, gate):
        text = await until_reason(waits, "stuck_slots")
        assert text.startswith("it waits for a free slot of a worker; 1 of 1 slot is stuck in the")
        assert f"job {stuck} of task 'draw', which ran past its timeout in a thread" in text
        assert text.endswith("when its code ends, or when its worker is restarted")
        shown = await app.operator().job(waits.id)
        assert shown is not None
        assert shown.why == text
        gate.set()
        await waits
        connection = await app.core.connection()
        keys: list[str] = [STUCK]

        async def look() -> None:
            keys[:] = await connection.store.scan(STUCK)

        while keys:
            await connection.thread.ask(look)


async def test_explain_reports_a_pool_whose_cap_is_used_by_stuck_code() -> None:
    app = App("memory://")
    app.pool("default", max_concurrent=1)
    async with behind_stuck_code(app) as (stuck, waits, _):
        text = await until_reason(waits, "stuck_slots")
        assert text.startswith("all 1 slots of the pool are taken; 1 of them by code that runs on")
        assert f"job {stuck} of task 'draw'" in text


async def test_doctor_names_stuck_slots(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('stuck') / 'jobs.db'}"
    app = App(url)
    async with behind_stuck_code(app) as (stuck, waits, _):
        await until_reason(waits, "stuck_slots")
        runtime = Runtime()
        findings = await examine(store_of(url, runtime), runtime)
        (found,) = [one for one in findings if one.check == "slots"]
        assert found.level is Level.WARN
        assert f"job {stuck} of task 'draw', which ran past its timeout" in found.text
        assert "restarted" in (found.fix or "")
