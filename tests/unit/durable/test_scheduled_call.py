"""The call of a schedule is encoded on the user's thread, once for all its moments."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from threading import current_thread

import pytest
from pydantic import BaseModel, field_serializer, field_validator

from poolhand import App, context, current_job
from poolhand.settings import KeyRing, Wire
from poolhand.testing import SeededRuntime
from tests.unit.durable.support import seeded

RING = KeyRing({"k": b"k" * 32}, current="k")
STORE_THREAD = "poolhand-store"
REQUEST = context.register(ContextVar[str | None]("scheduled_call_request", default=None))
threads: dict[str, set[str]] = {"validate": set(), "write": set(), "repr": set()}


class Query(BaseModel):
    """An argument that records the threads on which its code runs."""

    text: str

    @field_validator("text")
    @classmethod
    def validate_text(cls, value: str) -> str:
        threads["validate"].add(current_thread().name)
        return value

    @field_serializer("text")
    def write_text(self, value: str) -> str:
        threads["write"].add(current_thread().name)
        return value

    def __repr__(self) -> str:
        threads["repr"].add(current_thread().name)
        return f"Query({self.text})"


@pytest.mark.slow
@pytest.mark.parametrize("ring", [None, RING], ids=["plain", "signed"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "while it works"])
async def test_code_of_arguments_never_runs_on_the_thread_of_the_store(
    ring: KeyRing | None, late: bool
) -> None:
    app = App("memory://", wire=Wire(ring=ring))
    ran = asyncio.Event()
    found: list[Query] = []

    @app.task(name="search")
    async def search(query: Query) -> None:
        found.append(query)
        ran.set()

    for seen in threads.values():
        seen.clear()
    if not late:
        app.every(1, args=(Query(text="bees"),))(search)
    async with app, app.worker():
        if late:
            app.every(1, args=(Query(text="bees"),))(search)
        await ran.wait()
        (schedule,) = await app.operator().schedules()
        answer = await app.operator().trigger_schedule("search", "anna")
        assert answer is not None
        ticket = await app.get(str(answer.new_id))
        assert ticket is not None
        await ticket
    assert schedule.arguments == "Query(bees)"
    assert len(found) >= 2
    assert all(one == Query(text="bees") for one in found)
    assert all(seen and STORE_THREAD not in seen for seen in threads.values()), threads


@seeded
async def test_each_run_of_a_signed_schedule_has_its_own_signature(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime, wire=Wire(ring=RING))
    ran: list[tuple[str, str]] = []

    @app.every(10, args=("acme",))
    @app.task(name="note")
    async def note(tenant: str) -> None:
        job = current_job()
        assert job is not None
        ran.append((tenant, job.id))

    async with app, app.worker():
        await asyncio.sleep(35)
    assert [tenant for tenant, _ in ran] == ["acme"] * len(ran)
    assert len({id for _, id in ran}) == len(ran) >= 3


@seeded
async def test_a_scheduled_job_does_not_get_the_context_of_the_worker_start(
    runtime: SeededRuntime,
) -> None:
    app = App("memory://", runtime=runtime)
    found: list[str | None] = []

    @app.every(10)
    @app.task(name="note")
    async def note() -> None:
        found.append(REQUEST.get())

    token = REQUEST.set("r-1")
    try:
        worker = app.worker()
    finally:
        REQUEST.reset(token)
    async with app, worker:
        await asyncio.sleep(12)
    assert found
    assert set(found) == {None}
