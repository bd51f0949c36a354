"""Keys of calls: equal for equal calls, whatever codec or key wrote them, and in any process."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from poolhand import Retry, Session, Snooze, Task, Ticket, step, tool, wait
from poolhand.app import App
from poolhand.contract import Put
from poolhand.durable.connection.connection import store_proxy
from poolhand.settings import KeyRing, Wire
from tests.contract.support import over

AGAIN = Retry(attempts=3, first=0.0, jitter=0.0)
LIMIT = 30
OLD, NEW = b"o" * 32, b"n" * 32
ONE_KEY = KeyRing({"old": OLD}, current="old")
ROTATED = KeyRing({"old": OLD, "new": NEW}, current="new")
TOOL = "former.pay"


async def result(ticket: Ticket[Any]) -> Any:
    async with asyncio.timeout(LIMIT):
        return await ticket


async def again(app: App, id: str) -> Ticket[Any]:
    """Retry a dead job."""
    (answer,) = await app.operator().retry([id], "anna")
    found = await app.get(answer.text.split()[-1])
    assert found is not None, answer
    return found


async def test_a_set_in_another_order_is_the_same_call(url: str) -> None:
    app, paid, done = App(url), list[Any](), list[Any]()
    orders = [{0, 8}, {8, 0}]
    assert list(orders[0]) != list(orders[1])

    @tool
    async def pay(items: set[int]) -> int:
        paid.append(items)
        return len(items)

    def count(items: set[int]) -> int:
        done.append(items)
        return len(items)

    @app.task(name="agent", retry=AGAIN)
    async def agent() -> int:
        items = orders.pop(0)
        found = await pay(items) + await step("count", count, items)
        if orders:
            raise ConnectionError
        return found

    async with app, app.worker():
        assert await result(await agent.submit()) == 4
    assert (len(paid), len(done)) == (1, 1)


async def test_tools_of_one_process_whose_names_end_alike_are_different_tools(url: str) -> None:
    app, made = App(url), list[str]()

    @tool(name="agents.pay")
    async def pay(order: str) -> str:
        made.append(f"short {order}")
        return "short"

    @tool(name="proj.agents.pay")
    async def other_pay(order: str) -> str:
        made.append(f"long {order}")
        return "long"

    @app.task(name="agent")
    async def agent() -> list[str]:
        return [await other_pay("bees"), await pay("bees")]

    async with app, app.worker():
        assert await result(await agent.submit()) == ["long", "short"]
        assert await result(await agent.submit()) == ["long", "short"]
    assert made == ["long bees", "short bees"] * 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({"ring": ONE_KEY}, {"ring": ROTATED}, id="rotated ring"),
        pytest.param({"codec": "json"}, {"codec": "msgpack"}, id="another codec"),
    ],
)
async def test_a_call_is_recognized_after_a_codec_change(
    shared_url: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    paid, done = list[str](), list[str]()

    @tool
    async def pay(order: str) -> str:
        paid.append(order)
        return "paid"

    def note(order: str) -> str:
        done.append(order)
        return "noted"

    def made(**how: Any) -> tuple[App, Task[..., Any, Any]]:
        app = App(shared_url, wire=Wire(**how))

        @app.task(name="agent", retry=None)
        async def agent(order: str) -> str:
            said = await pay(order) + await step("note", note, order)
            if how == before:
                raise ConnectionError
            return said

        return app, agent

    app, agent = made(**before)
    async with app, app.worker():
        job = await wait(await agent.submit("o-1"), LIMIT)
    app, _ = made(**after)
    async with app, app.worker():
        assert await result(await again(app, job.id)) == "paidnoted"
    assert (paid, done) == (["o-1"], ["o-1"])


# Runs of a version that keyed a call by its payload: written here in that form.


def former_payload(call: Any, ring: KeyRing | None = None) -> bytes:
    body = msgspec.json.encode(call)
    if ring is None:
        return b"PH\x01\x00\x04json" + body
    signed = b"PH\x01\x02\x04json\x03old" + body
    return signed + ring.former_signature("old", signed)


def former_key(scope: str, whose: str, *call: Any) -> str:
    parts = [TOOL, 1, scope, whose, *call]
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()


async def keep_former(app: App, key: str, job: str, call: bytes, stage: str, **more: Any) -> None:
    """Write a receipt in the earlier form."""
    receipt = {"tool": TOOL, "stage": stage, "call": call, "job": job, "token": 0, **more}
    body = msgspec.msgpack.encode(receipt)
    assert await store_proxy(app.core).put([Put(f"receipt/{key}", body, 0)]) is not None


class Former:
    """A job of an earlier version: it waits, and has a receipt of one call."""

    def __init__(self, url: str, ring: KeyRing | None = None, **options: Any) -> None:
        self.app = App(url, wire=Wire(ring=ROTATED if ring is not None else None))
        self.ring = ring
        self.paid: list[Any] = []

        @tool(name=TOOL, **options)
        async def pay(order: Any) -> str:
            self.paid.append(order)
            return "paid here"

        @self.app.task(name="agent", retry=None)
        async def agent(given: Any) -> str:
            return await pay(set(given) if isinstance(given, list) else given)

        self.agent = agent

    async def play(
        self, given: Any, stage: str, key: Callable[[str, bytes], str], **terms: Any
    ) -> tuple[Any, str]:
        """Return the job and the earlier key."""
        call = hashlib.sha256(
            former_payload((TOOL, ["order"], {"order": given}), self.ring)
        ).digest()
        async with self.app:
            ticket = await self.agent.with_options(delay=0.1, **terms).submit(given)
            named = key(ticket.id, call)
            done = msgspec.json.encode("paid then")
            kept = {"result": b"PH\x01\x00\x04json" + done} if stage == "succeeded" else {}
            await keep_former(self.app, named, ticket.id, call, stage, **kept)
            async with self.app.worker():
                return await wait(ticket, LIMIT), named


def in_run(job: str, call: bytes) -> str:
    return former_key("run", job, [], 1, call)


async def test_a_call_completed_by_an_earlier_version_is_not_repeated(url: str) -> None:
    former = Former(url)
    job, _ = await former.play("o-1", "succeeded", in_run)
    assert (job.result, former.paid) == ("paid then", [])


@pytest.mark.slow
@pytest.mark.parametrize("ring", [None, ONE_KEY], ids=["unsigned", "rotated ring"])
async def test_a_call_that_an_earlier_version_has_begun_is_unknown_until_it_is_settled(
    shared_url: str, ring: KeyRing | None
) -> None:
    former = Former(shared_url, ring)
    job, key = await former.play("o-1", "claimed", in_run)
    assert job.error.type.endswith("ToolOutcomeUnknown")
    assert re.findall(r"settle_tool\('([^']+)'", job.error.message) == [key]
    async with former.app as app, app.worker():
        await app.settle_tool(key, happened=True, result="paid, as it turned out")
        assert await result(await again(app, job.id)) == "paid, as it turned out"
    assert former.paid == []


async def test_a_key_of_the_business_of_an_earlier_version_holds_for_its_tenant(
    shared_url: str,
) -> None:
    former = Former(shared_url, scope="global", key_fields=["order"])

    def key(job: str, call: bytes) -> str:
        return former_key("global", "", ["o-1"])

    job, _ = await former.play("o-1", "succeeded", key, tenant="acme")
    assert (job.result, former.paid) == ("paid then", [])
    async with former.app as app, app.worker():
        again = former.agent.with_options(tenant="acme")
        assert await result(await again.submit("o-1")) == "paid then"
        other = former.agent.with_options(tenant="other")
        assert await result(await other.submit("o-1")) == "paid here"


@pytest.mark.slow
async def test_a_receipt_of_an_earlier_version_expires_only_for_other_runs(shared_url: str) -> None:
    former = Former(shared_url, scope="global", key_fields=["order"], dedupe_ttl=0.01)

    def key(job: str, call: bytes) -> str:
        return former_key("global", "", ["o-1"])

    job, _ = await former.play("o-1", "succeeded", key)
    assert (job.result, former.paid) == ("paid then", [])
    async with former.app as app, app.worker():
        later = former.agent.with_options(delay=0.1)
        assert await result(await later.submit("o-1")) == "paid here"


@pytest.mark.slow
async def test_a_set_argument_of_unknown_order_is_unknown_rather_than_called_twice(
    shared_url: str,
) -> None:
    former = Former(shared_url)
    job, _ = await former.play([0, 8], "succeeded", lambda job, call: in_run(job, b"?" * 32))
    assert job.error.type.endswith("ToolOutcomeUnknown")
    assert former.paid == []
    (key,) = re.findall(r"settle_tool\('([^']+)'", job.error.message)
    assert key.startswith(f"run/{job.id}/")
    async with former.app as app, app.worker():
        await app.settle_tool(key, happened=False)
        assert await result(await again(app, job.id)) == "paid here"
    assert former.paid == [{0, 8}]


async def test_a_step_that_an_earlier_version_has_done_is_not_done_again(url: str) -> None:
    app, done = App(url), list[str]()

    def note(order: str) -> str:
        done.append(order)
        return "noted here"

    @app.task(name="agent", retry=None)
    async def agent(order: str) -> str:
        return await step("note", note, order)

    async with app:
        ticket = await agent.with_options(delay=0.1).submit("o-1")
        call = hashlib.sha256(former_payload(("note", ["order"], {"order": "o-1"}))).digest()
        kept = b"PH\x01\x00\x04json" + msgspec.json.encode("noted then")
        record = {"type": "step", "path": [1], "name": "note", "call": call, "result": kept}
        await append(app, f"journal/{ticket.id}", record)
        async with app.worker():
            assert await result(ticket) == "noted then"
    assert done == []


async def append(app: App, stream: str, record: dict[str, Any]) -> None:
    from poolhand.contract import LogLine

    await store_proxy(app.core).append([LogLine(stream, "record", msgspec.msgpack.encode(record))])


# Scope and lifetime of a receipt


@pytest.mark.parametrize("scope", ["run", "session", "global"])
async def test_receipts_do_not_expire_for_their_own_run(url: str, scope: str) -> None:
    app, paid = App(url), list[str]()

    @tool(scope=scope, dedupe_ttl=0.01)
    async def pay(order: str) -> str:
        paid.append(order)
        return "paid"

    slept: list[bool] = []

    @app.agent(name="agent")
    async def agent(session: Session, order: str) -> str:
        said = await pay(order)
        if not slept:
            slept.append(True)
            raise Snooze(0.2)
        return said

    async with app, app.worker():
        assert await result(await agent.session("s").submit("o-1")) == "paid"
        assert paid == ["o-1"]
        # Another run may repeat the call.
        assert await result(await agent.session("s").submit("o-1")) == "paid"
    assert paid == ["o-1", "o-1"]


async def test_a_settled_call_stays_settled_for_its_run_in_every_scope(url: str) -> None:
    app, paid = App(url), list[str]()

    @tool(scope="global", key_fields=["order"], timeout=0.05)
    async def pay(order: str) -> str:
        paid.append(order)
        await asyncio.sleep(100)
        return "never"

    @app.task(name="agent", retry=None)
    async def agent(order: str) -> str:
        return await pay(order)

    async with app, app.worker():
        job = await wait(await agent.with_options(tenant="acme").submit("o-1"), LIMIT)
        (key,) = re.findall(r"settle_tool\('([^']+)'", job.error.message if job.error else "")
        assert key.startswith("tenant/acme/")
        await app.settle_tool(f"receipt/{key}", happened=True, result="paid")
        # As if it had expired for all others.
        assert await store_proxy(app.core).put([Put(f"receipt/{key}", None)])
        assert await result(await again(app, job.id)) == "paid"
    assert paid == ["o-1"]


async def test_global_is_for_one_tenant_unless_it_is_shared(url: str) -> None:
    app, paid = App(url), list[str]()

    async def act(what: str) -> str:
        paid.append(what)
        return what

    pay = tool(name="pay", scope="global", key_fields=["what"])(act)
    warm = tool(name="warm", scope="global", key_fields=["what"], shared=True)(act)

    @app.task(name="agent")
    async def agent() -> None:
        await pay("pay")
        await warm("warm")

    async with app, app.worker():
        for tenant in ("acme", "other", "acme", None):
            await result(await agent.with_options(tenant=tenant).submit())
    assert sorted(paid) == ["pay", "pay", "pay", "warm"]


async def test_names_with_slashes_are_not_mixed_up(url: str) -> None:
    app, paid = App(url), list[str]()

    @tool(scope="session", key_fields=["order"])
    async def pay(order: str, by: str) -> str:
        paid.append(by)
        return by

    @app.agent(name="agent")
    async def agent(session: Session, by: str) -> str:
        return await pay("o-1", by)

    async with app, app.worker():
        for number, (tenant, name) in enumerate([("a", "b/c"), ("a/b", "c")]):
            door = agent.session(name, tenant=tenant)
            assert await result(await door.submit(str(number))) == str(number)
        keys = await store_proxy(app.core).scan("receipt/session/")
    assert paid == ["0", "1"]
    assert [key.rpartition("/")[0] for key in keys] == [
        "receipt/session/a%2Fb/c",
        "receipt/session/a/b%2Fc",
    ]


async def test_receipts_are_deleted_with_the_last_job_of_their_run(url: str) -> None:
    app, failing = App(url), [True]

    @tool
    async def pay(order: str) -> str:
        return order

    @app.task(name="agent", retry=None)
    async def agent(order: str) -> str:
        said = await pay(order)
        if failing and failing.pop():
            raise ConnectionError
        return said

    async with app, app.worker():
        job = await wait(await agent.submit("o-1"), LIMIT)
        store, connection = store_proxy(app.core), await app.core.connection()
        assert len(await store.scan(f"receipt/run/{job.id}/")) == 1
        ticket = await again(app, job.id)
        await result(ticket)
        assert await store.erase([job.id], (), "anna") == [job.id]
        # The job that continued it is still kept.
        assert len(await store.scan(f"receipt/run/{job.id}/")) == 1
        await connection.thread.ask(lambda: connection.store.prune(over(0.0)))
        assert await app.get(ticket.id) is None
        assert await store.scan("receipt/") == []
