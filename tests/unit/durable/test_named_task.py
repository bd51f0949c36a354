"""Tasks by name: submitted by a process that has not imported their code."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import pytest

from poolhand import Retry, Session, UsageError, bounded, fair_round_robin
from poolhand.app import App
from poolhand.durable.calls.call_record import read_call_record
from poolhand.durable.client.named_task import KNOWN_FOR
from poolhand.errors import PoolFull
from poolhand.settings import KeyRing, Wire
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.contract.support import call_record
from tests.unit.durable.support import SharedStore, StoreApp, seeded


@dataclass
class Report:
    topic: str
    pages: int


@dataclass
class Customer:
    name: str
    email: str


@dataclass
class Purchase:
    customer: Customer
    note: str = ""


def tasks_of(app: App) -> App:
    """Register the tasks of a worker on an app."""
    app.pool("research", max_concurrent=3, queue=fair_round_robin("tenant_id"))

    @app.task(name="agents.research", pool="research", priority=3, timeout=60, retry=Retry(2))
    async def research(topic: str, depth: int = 1, *, due: date | None = None) -> Report:
        assert due is None or isinstance(due, date)
        return Report(topic, depth)

    @app.task(name="agents.file")
    async def file(report: Report, kind: Literal["draft", "final"], *tags: str) -> list[Any]:
        return [report.topic, kind, *tags]

    @app.task(name="agents.buy")
    async def buy(order: Purchase, gift_for: Customer | None = None) -> str:
        return order.customer.email

    @app.agent(name="agents.chat", on_busy="reject")
    async def chat(session: Session, message: str) -> str:
        return f"{session.id}: {message}"

    return app


@pytest.fixture
def apps(shared_url: str) -> tuple[App, App]:
    """An app without tasks, and one whose worker has them."""
    return App(shared_url), tasks_of(App(shared_url))


async def test_a_task_is_submitted_without_its_code(apps: tuple[App, App]) -> None:
    here, there = apps
    async with here, there, there.worker():
        ticket = await here.submit("agents.research", "bees", 4, due=date(2030, 1, 1))
        assert await ticket == {"topic": "bees", "pages": 4}, (
            "as JSON has it: no type is known here"
        )
        job = ticket.snapshot()
        assert (job.pool, job.priority, job.name) == ("research", 3, "agents.research")
        connection = await here.core.connection()
        data = await connection.thread.ask(lambda: call_record(connection.store, job.id))
        assert data is not None
        brief = read_call_record(data, job.id)
        assert (brief.timeout, brief.retry and brief.retry.attempts) == (60, 2)
        assert brief.version is not None


async def test_a_result_is_read_by_its_id_without_the_code(apps: tuple[App, App]) -> None:
    here, there = apps
    async with here, there, there.worker():
        id = (await here.submit("agents.research", "bees")).id
        here._named._known = None
        found = await here.get(id)
        assert found is not None
        assert await found == {"topic": "bees", "pages": 1}
        assert found.snapshot().result == {"topic": "bees", "pages": 1}


async def test_a_found_task_has_the_verbs_of_a_task(apps: tuple[App, App]) -> None:
    here, there = apps
    async with here, there, there.worker():
        research = await here.find_task("agents.research")
        assert repr(research) == "<NamedTask agents.research in pool 'research'>"
        assert await research.run("bees") == {"topic": "bees", "pages": 1}
        assert [one["topic"] for one in await research.map("abc")] == ["a", "b", "c"]
        keyed = research.with_options(idempotency_key="k", tenant_id="acme", priority=9)
        tickets = [await keyed.submit("bees"), await keyed.submit("bees")]
        assert tickets[0].id == tickets[1].id
        job = await tickets[0].refresh()
        assert (job.priority, job.key, job.tenant) == (9, "acme", "acme")


async def test_structs_lists_and_literals_are_checked(apps: tuple[App, App]) -> None:
    here, there = apps
    async with here, there, there.worker():
        file = await here.find_task("agents.file")
        assert await file.run(Report("bees", 1), "draft", "a", "b") == ["bees", "draft", "a", "b"]
        assert await file.run({"topic": "ants", "pages": 2}, "final") == ["ants", "final"]
        for args, said in [
            (("bees", "draft"), "report='bees' is not allowed; it must be object Report"),
            ((Report("bees", 1), "other"), "kind='other' is not allowed; it must be one of"),
            (({"topic": 5, "pages": 1}, "draft"), r"report\.topic=5 is not allowed"),
            ((Report("bees", 1), "draft", 5), r"tags\[0\]=5 is not allowed; it must be string"),
        ]:
            with pytest.raises(UsageError, match=said):
                await file.submit(*args)


async def test_required_fields_of_nested_objects_are_checked(apps: tuple[App, App]) -> None:
    here, there = apps
    ann = {"name": "Ann", "email": "ann@example.org"}
    async with here, there, there.worker():
        assert await (await here.submit("agents.buy", {"customer": ann})) == "ann@example.org"
        assert await (await here.submit("agents.buy", Purchase(Customer(**ann)))) == ann["email"]
        for order, said in [
            ({}, r"order\.customer is missing; Purchase requires it"),
            (
                {"customer": {"name": "Ann"}},
                r"order\.customer\.email is missing; Customer requires",
            ),
            ({"customer": {}}, r"order\.customer\.name, order\.customer\.email are missing"),
        ]:
            with pytest.raises(UsageError, match=said):
                await here.submit("agents.buy", order)
        with pytest.raises(UsageError, match=r"gift_for\.email is missing; Customer requires it"):
            await here.submit("agents.buy", {"customer": ann}, gift_for={"name": "Bo"})


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, r"agents\.research\(topic, depth=None, \*, due=None\) .* missing .* 'topic'"),
        ((5,), {}, "topic=5 is not allowed; it must be string"),
        (("bees", "deep"), {}, "depth='deep' is not allowed; it must be integer"),
        (("bees", True), {}, "depth=True is not allowed; it must be integer"),
        (("bees",), {"topics": 5}, "unexpected keyword argument 'topics'"),
        (("bees", 1, None), {}, "too many positional arguments"),
    ],
    ids=["missing", "number", "text", "bool", "unknown", "too many"],
)
async def test_arguments_are_checked_as_published(args: Any, kwargs: Any, said: str) -> None:
    app = tasks_of(App("memory://"))
    async with app, app.worker():
        # As another process would, without its code.
        app._named._here.clear()
        with pytest.raises(UsageError, match=said):
            await app.submit("agents.research", *args, **kwargs)


async def test_an_unpublished_name_is_refused_with_similar_names(apps: tuple[App, App]) -> None:
    here, there = apps
    async with here, there:
        with pytest.raises(UsageError, match="no worker has published any task yet: start one"):
            await here.submit("agents.research")
        async with there.worker():
            with pytest.raises(UsageError) as caught:
                await here.submit("agents.reserch", "bees")
            assert str(caught.value) == (
                "task 'agents.reserch' is not registered in this app, and no worker of this store "
                "has published it; did you mean 'agents.research'? to submit it anyway, name its "
                "pool: (await app.find_task('agents.reserch', pool='…')).submit(…) [PH-USE-001]"
            )
            with pytest.raises(UsageError, match=r"did you mean 'agents\.chat'\?"):
                await here.submit("chat", "hello")
            with pytest.raises(UsageError, match=r"known are 'agents\.buy', 'agents\.chat', 'ag"):
                await here.submit("xyz")


async def test_a_task_without_a_worker_can_be_submitted_to_a_named_pool(
    apps: tuple[App, App],
) -> None:
    here, there = apps
    async with here, there:
        research = await here.find_task("agents.research", pool="research")
        with pytest.raises(UsageError, match="arguments are given by name"):
            await research.submit("bees")
        ticket = await research.with_options(priority=1).submit(topic="bees", depth=2)
        assert ticket.snapshot().pool == "research"
        async with there.worker():
            assert await ticket == {"topic": "bees", "pages": 2}


async def test_a_task_of_this_app_is_submitted_as_it_is_registered(url: str) -> None:
    app = tasks_of(App(url))
    async with app, app.worker():
        ticket = await app.submit("agents.research", "bees", depth=2)
        assert await ticket == Report("bees", 2), "its own types are known"
        with pytest.raises(UsageError, match="cannot be called so"):
            await app.submit("agents.research", 5)
        chat = (await app.find_task("agents.chat")).session("s-1")
        assert await chat.run("hello") == "s-1: hello"


async def test_an_agent_is_submitted_in_a_session(apps: tuple[App, App]) -> None:
    here, there = apps
    async with here, there, there.worker():
        with pytest.raises(UsageError, match=r"agents\.chat is an agent, .*\.session\('s-1'\)"):
            await here.submit("agents.chat", "hello")
        chat = await here.find_task("agents.chat")
        assert await chat.session("s-7", tenant="acme").run("hello") == "s-7: hello"
        ticket = await chat.with_options(session="s-8").submit("hi")
        assert await ticket == "s-8: hi"


async def test_signed_calls_are_submitted_by_name(shared_url: str) -> None:
    ring = KeyRing({"k": b"0123456789abcdef"}, current="k")
    here, there = (
        App(shared_url, wire=Wire(ring=ring)),
        tasks_of(App(shared_url, wire=Wire(ring=ring))),
    )
    async with here, there, there.worker():
        ticket = await here.submit("agents.research", "bees")
        assert await ticket == {"topic": "bees", "pages": 1}
        found = await here.get(ticket.id)
        assert found is not None
        assert await found == {"topic": "bees", "pages": 1}


async def test_the_rules_of_the_pool_hold_though_it_is_declared_elsewhere(shared_url: str) -> None:
    here, there = App(shared_url), App(shared_url)
    there.pool("full", max_concurrent=1, backpressure=bounded(1, wait_timeout=0.01))

    @there.task(name="hold", pool="full")
    async def hold() -> None:
        await asyncio.sleep(60)

    async with here, there:
        async with there.worker():
            pass
        await here.submit("hold")
        with pytest.raises(PoolFull):
            await here.submit("hold")


def test_a_script_submits_by_name(shared_url: str) -> None:
    here, there = App(shared_url), tasks_of(App(shared_url))

    async def work() -> Any:
        async with there, there.worker():
            ticket = await asyncio.to_thread(here.submit_sync, "agents.research", "bees")
            return await asyncio.to_thread(ticket.result, 30)

    assert asyncio.run(work()) == {"topic": "bees", "pages": 1}
    asyncio.run(here.close())


async def test_submit_sync_on_a_loop_is_refused() -> None:
    with pytest.raises(UsageError, match=r"use await app\.submit\('x', …\)"):
        App("memory://").submit_sync("x")


@pytest.mark.parametrize("name", ["", " ", 5, None, "a\0b", "\ud800"], ids=repr)
async def test_an_invalid_task_or_pool_name_is_refused(name: Any) -> None:
    async with App("memory://") as app:
        with pytest.raises(UsageError, match="task name="):
            await app.submit(name)
        with pytest.raises(UsageError, match="pool="):
            await app.find_task("call", pool=name if name is not None else "")


@seeded
async def test_the_catalogue_is_asked_again_after_a_while(runtime: SeededRuntime) -> None:
    store = SharedStore(runtime)
    here, old, new = (StoreApp(store, runtime) for _ in range(3))

    async def call(number: int) -> int:
        return number

    old.task(name="call", pool="old")(call)
    new.task(name="call", pool="new")(call)
    async with here, old, new:
        async with old.worker():
            await asyncio.sleep(6)
            assert (await here.find_task("call")).pool == "old"
        async with new.worker():
            await asyncio.sleep(6)
            assert KNOWN_FOR <= 6
            assert (await here.find_task("call")).pool == "new"
            ticket = await here.submit("call", 5)
            assert await ticket == 5
            assert ticket.status is Status.COMPLETED
