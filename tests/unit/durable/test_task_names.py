"""One function under two names, because its module was started in two ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from poolhand import App, Session, UsageError
from poolhand.observe.events import JobSetAside
from poolhand.rules.audit import DEQUEUE, STREAM
from poolhand.settings import KeyRing, Wire
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.durable.support import Heard, SharedStore, StoreApp, seeded, stored

RING = KeyRing({"k": b"k" * 32}, current="k")
SHORT, LONG = "agents.f", "proj.agents.f"


async def double(number: int) -> int:
    return 2 * number


async def answer(session: Session, text: str) -> str:
    session.state["messages"].append(text)
    return text.upper()


@seeded
@pytest.mark.parametrize("ring", [None, RING], ids=["plain", "signed"])
@pytest.mark.parametrize(("name", "known_as"), [(SHORT, LONG), (LONG, SHORT)], ids=["end", "more"])
async def test_a_job_runs_where_its_task_has_a_longer_or_shorter_name(
    runtime: SeededRuntime, name: str, known_as: str, ring: KeyRing | None
) -> None:
    """Also for a job that a worker of another service has set aside before."""
    store = SharedStore(runtime)
    web, stranger, worker = (StoreApp(store, runtime, wire=Wire(ring=ring)) for _ in range(3))
    task = web.task(name=name)(double)
    stranger.task(name="other.f")(double)
    worker.task(name=known_as)(double)
    async with web, stranger, worker:
        async with stranger.worker():
            first = await task.submit(1)
            await asyncio.sleep(10)
        assert (await stored(web, first.id)).job.waits_for == f"task:{name}"
        async with worker.worker():
            assert await first == 2
            assert await (await task.submit(2)) == 4
            found = await worker.get(first.id)
            assert found is not None
            assert await found == 2
        job = (await stored(web, first.id)).job
    assert (job.name, job.attempts, job.status) == (name, 1, Status.COMPLETED)


@seeded
@pytest.mark.parametrize(("name", "known_as"), [(SHORT, LONG), (LONG, SHORT)], ids=["end", "more"])
async def test_a_call_signed_with_a_newer_key_waits_under_its_own_name(
    runtime: SeededRuntime, name: str, known_as: str
) -> None:
    store = SharedStore(runtime)
    new = KeyRing({"k": b"k" * 32, "new": b"n" * 32}, current="new")
    web, behind, worker = (
        StoreApp(store, runtime, wire=Wire(ring=ring)) for ring in (new, RING, new)
    )
    task = web.task(name=name)(double)
    behind.task(name=known_as)(double)
    worker.task(name=known_as)(double)
    async with web, behind, worker:
        async with behind.worker():
            ticket = await task.submit(1)
            await asyncio.sleep(10)
        assert (await stored(web, ticket.id)).job.waits_for == f"key:new/{name}"
        async with worker.worker():
            assert await ticket == 2


@seeded
async def test_a_job_whose_name_matches_two_tasks_waits_and_both_are_named(
    runtime: SeededRuntime,
) -> None:
    store, heard = SharedStore(runtime), Heard()
    web, worker = StoreApp(store, runtime), StoreApp(store, runtime, events=heard.events)
    task = web.task(name=SHORT)(double)
    for package in ("a", "b"):
        worker.task(name=f"{package}.{SHORT}")(double)
    async with web, worker:
        async with worker.worker():
            ticket = await task.submit(1)
            await asyncio.sleep(100)
        job = (await stored(web, ticket.id)).job
        assert (job.status, job.waits_for) == (Status.SCHEDULED, "task:agents.f")
        (told,) = heard.of(JobSetAside)
        assert told.hint == (
            "its task 'agents.f' may mean a.agents.f or b.agents.f of this worker; submit it by "
            "its full name, or rename all but one"
        )
        async with web.worker():
            assert await ticket == 2


@seeded
async def test_a_task_of_another_file_with_the_same_suffix_is_another_task(
    runtime: SeededRuntime,
) -> None:
    store = SharedStore(runtime)
    shop, bank = StoreApp(store, runtime), StoreApp(store, runtime)

    def of_file(file: str, answer: str) -> Callable[[int], str]:
        module: dict[str, Any] = {"__name__": "tasks", "__file__": file, "answer": answer}
        exec("def refund(order: int) -> str:\n    return answer", module)  # noqa: S102 - a module
        found: Callable[[int], str] = module["refund"]
        return found

    in_shop = shop.task(name="shop.tasks.refund")(of_file("shop/tasks.py", "shop"))
    in_bank = bank.task(name="tasks.refund")(of_file("bank/tasks.py", "bank"))
    async with shop, bank:
        async with bank.worker(slots=2):
            tickets = [await in_shop.submit(number) for number in range(4)]
            await asyncio.sleep(100)
            jobs = [(await stored(shop, one.id)).job for one in tickets]
            assert {job.waits_for for job in jobs} == {"task:shop.tasks.refund"}
            assert {job.attempts for job in jobs} == {0}
            # Each job cost one claim; the worker does not claim them again.
            assert len(await store.read(STREAM, kind=DEQUEUE)) == 4
            assert await (await in_bank.submit(1)) == "bank"
        async with shop.worker(slots=2):
            assert [await one for one in tickets] == ["shop"] * 4
            other = await in_bank.submit(2)
            await asyncio.sleep(100)
            assert (await stored(bank, other.id)).job.waits_for == "task:tasks.refund"
        async with bank.worker():
            assert await other == "bank"


@seeded
async def test_turns_of_an_agent_continue_under_its_other_name(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    web, worker = (
        StoreApp(store, runtime, wire=Wire(ring=RING)),
        StoreApp(store, runtime, wire=Wire(ring=RING)),
    )
    agent = web.agent(name=SHORT)(answer)
    worker.agent(name=LONG)(answer)
    async with web, worker:
        talk = agent.session("s", on_busy="merge")
        tickets = [await talk.submit(text) for text in ("a", "b", "c")]
        async with worker.worker():
            assert await tickets[0] == "A"
            await asyncio.sleep(10)
        record = await agent.session("s").record()
    assert record is not None
    assert record.state["messages"] == ["a"]


def test_a_function_defined_inside_a_function_needs_a_name() -> None:
    app = App("memory://")

    def plain() -> None: ...

    async def agent(session: Session) -> None: ...

    makers: dict[Any, Any] = {app.task: plain, app.agent: agent, app.every(5): plain}
    for maker, fn in makers.items():
        with pytest.raises(UsageError, match="is defined inside another function") as caught:
            maker(fn)
        assert f'@app.task(name="{fn.__name__}")' in str(caught.value)
    with pytest.raises(UsageError, match="is a lambda"):
        app.task(lambda: None)
    assert app.task(name="plain")(plain).name == "plain"
    assert app.task(double).name == f"{__name__}.double"


def test_two_functions_of_one_app_cannot_have_one_name() -> None:
    app = App("memory://")
    app.task(name="same")(double)
    app.task(name="same")(double)
    with pytest.raises(UsageError, match="'same' is registered already, for another function"):
        app.agent(name="same")(answer)
