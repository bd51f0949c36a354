"""Agents: turns of a session, whose state is saved with their outcome or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from poolhand import Retry, Session, UsageError, wait
from poolhand.agents.session import SessionRecord, write
from poolhand.app import App
from poolhand.contract import Put
from poolhand.durable.connection.connection import store_proxy
from poolhand.errors import (
    JobCancelled,
    JobFailed,
    SchemaTooNew,
    SessionBusy,
    SessionForbidden,
    TooLarge,
)
from poolhand.pool.ticket import Ticket
from poolhand.rules.streams import session_of
from poolhand.settings import Wire
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from poolhand.wire.limits import Limits
from tests.unit.durable.support import seeded

AGAIN = Retry(attempts=3, first=0.0, jitter=0.0)
LIMIT = 30


async def result(ticket: Ticket[Any]) -> Any:
    async with asyncio.timeout(LIMIT):
        return await ticket


async def test_the_state_of_a_session_is_passed_from_turn_to_turn(url: str) -> None:
    app = App(url)

    @app.agent(name="assistant", pool="chat")
    async def assistant(session: Session, message: str) -> int:
        session.state["messages"].append(message)
        return len(session.state["messages"])

    async with app, app.worker():
        talk = assistant.session("s-1", tenant="acme", user="ann")
        assert await talk.record() is None
        assert [await result(await talk.submit(text)) for text in ("hello", "again")] == [1, 2]
        record = await talk.record()
        assert record is not None
        assert record.state["messages"] == ["hello", "again"]
        assert sorted(record.state) == ["context", "created_at", "messages", "session_id"]
        assert (record.id, record.tenant, record.user) == ("s-1", "acme", "ann")
        # The same name under another tenant is another session.
        assert await result(await assistant.session("s-1", tenant="x").submit("hi")) == 1
        assert await result(await assistant.session("s-2", tenant="acme").submit("hi")) == 1
        assert [len(one.state["messages"]) for one in await talk.revisions()] == [1, 2]


async def test_a_turn_that_fails_leaves_the_state_as_it_was(url: str) -> None:
    app = App(url)
    runs: list[int] = []

    @app.agent(name="assistant", retry=AGAIN)
    async def assistant(session: Session, message: str) -> list[str]:
        session.state["messages"].append(message)
        runs.append(len(session.state["messages"]))
        if message == "bad" or len(runs) == 1:
            raise ConnectionError(message)
        return list(session.state["messages"])

    async with app, app.worker():
        talk = assistant.session("s")
        assert await result(await talk.submit("one")) == ["one"]
        with pytest.raises((ConnectionError, JobFailed)):
            await result(await talk.submit("bad"))
        assert await result(await talk.submit("two")) == ["one", "two"]
        history = await talk.history()
    assert runs == [1, 1, 2, 2, 2, 2]
    assert [(one.attempt, one.status, one.message) for one in history] == [
        (1, "scheduled", "one"),
        (2, "completed", "one"),
        (1, "scheduled", "bad"),
        (2, "scheduled", "bad"),
        (3, "failed", "bad"),
        (1, "completed", "two"),
    ]
    assert history[0].error == "ConnectionError: one"
    assert history[1].result == '["one"]'
    assert {one.session for one in history} == {"s"}
    assert all(one.worker and one.duration_ms is not None for one in history)


async def test_state_saved_in_a_turn_is_kept_even_if_the_turn_fails(url: str) -> None:
    app = App(url)

    @app.agent(name="assistant", retry=None)
    async def assistant(session: Session, message: str) -> None:
        session.state["saved"] = message
        await session.save()
        session.state["saved"] = "never"
        raise ValueError(message)

    async with app, app.worker():
        talk = assistant.session("s")
        with pytest.raises((ValueError, JobFailed)):
            await result(await talk.submit("half"))
        record = await talk.record()
    assert record is not None
    assert record.state["saved"] == "half"


class Busy:
    """An agent whose turns wait until the test releases them."""

    def __init__(self, url: str, on_busy: str) -> None:
        self.app = App(url)
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()

        @self.app.agent(name="assistant", on_busy=on_busy)
        async def assistant(session: Session, message: str) -> list[Any]:
            session.state["messages"].append(message)
            await session.save()
            self.begun.set()
            if message == "first":
                await self.goes_on.wait()
            return [*session.state["messages"], *session.inbox]

        self.talk = assistant.session("s")


async def test_turns_of_a_session_run_one_at_a_time(url: str) -> None:
    busy = Busy(url, "enqueue")
    async with busy.app, busy.app.worker():
        tickets = [await busy.talk.submit(text) for text in ("first", "second", "third")]
        busy.goes_on.set()
        assert [await result(one) for one in tickets] == [
            ["first"],
            ["first", "second"],
            ["first", "second", "third"],
        ]


async def test_a_busy_session_may_refuse(url: str) -> None:
    busy = Busy(url, "reject")
    async with busy.app, busy.app.worker():
        first = await busy.talk.submit("first")
        told = f"the session '[^']+' has the turn {first.id} .* already in pool"
        with pytest.raises(SessionBusy, match=told):
            await busy.talk.submit("second")
        busy.goes_on.set()
        assert await result(first) == ["first"]
        assert await result(await busy.talk.submit("third")) == ["first", "third"]


@pytest.mark.parametrize(
    ("on_busy", "left"), [("interrupt", ["first", "second"]), ("rollback", ["second"])]
)
async def test_a_turn_may_interrupt_another(url: str, on_busy: str, left: list[str]) -> None:
    busy = Busy(url, on_busy)
    async with busy.app, busy.app.worker():
        first = await busy.talk.submit("first")
        await busy.begun.wait()
        second = await busy.talk.submit("second")
        with pytest.raises(JobCancelled):
            await result(first)
        assert await result(second) == left
        record = await busy.talk.record()
        assert record is not None
        assert record.state["messages"] == left


async def test_turns_may_join_one_that_waits(url: str) -> None:
    busy = Busy(url, "merge")
    async with busy.app, busy.app.worker():
        first = await busy.talk.submit("first")
        await busy.begun.wait()
        others = [await busy.talk.submit(text) for text in ("second", "third", "fourth")]
        assert len({one.id for one in others}) == 1
        busy.goes_on.set()
        assert await result(first) == ["first"]
        assert await result(others[2]) == ["first", "second", "third", "fourth"]


async def test_old_state_is_migrated_by_upcasters(shared_url: str) -> None:
    async def count(session: Session) -> Any:
        session.state["turns"] = session.state.get("turns", 0) + 1
        return session.state

    old = App(shared_url)
    first = old.agent(name="count")(count)
    async with old, old.worker():
        await result(await first.session("s").submit())
    new = App(shared_url)
    upcasters = {
        1: lambda state: {"n": state["turns"]},
        2: lambda state: {"turns": state["n"] * 10},
    }
    third = new.agent(name="count", schema=3, upcasters=upcasters)(count)
    async with new, new.worker():
        assert await result(await third.session("s").submit()) == {"turns": 11}
    behind = App(shared_url)
    for agent, said in (
        (behind.agent(name="count", retry=None)(count), SchemaTooNew),
        (behind.agent(name="count4", schema=4, retry=None)(count), UsageError),
    ):
        async with behind, behind.worker():
            with pytest.raises((said, JobFailed), match="has schema 3"):
                await result(await agent.session("s").submit())


async def test_a_session_belongs_to_the_user_of_its_first_turn(url: str) -> None:
    app = App(url)
    seen: list[str | None] = []

    @app.agent(name="assistant")
    async def assistant(session: Session) -> str | None:
        session.state["note"] = "ann's"
        seen.append(session.user)
        return session.user

    async with app, app.worker():
        own = assistant.session("s", user="ann")
        assert await result(await own.submit()) == "ann"
        for other in (assistant.session("s", user="bob"), assistant.session("s")):
            with pytest.raises(SessionForbidden, match="belongs to another user"):
                await other.submit()
            for read in (other.record, other.revisions, other.history):
                with pytest.raises(SessionForbidden, match="give that one as user="):
                    await read()
        record = await own.record()
        assert record is not None
        assert (record.user, len(await own.revisions()), len(await own.history())) == ("ann", 1, 1)
        # An operator belongs to no user and sees all sessions.
        view = await app.operator().session("s")
        assert view is not None
        assert view.user == "ann"
        assert await app.operator().erase_session("s", by="op") is not None
        assert await result(await assistant.session("s").submit()) is None
        with pytest.raises(SessionForbidden):
            await own.submit()
    assert seen == ["ann", None]


async def test_a_turn_accepted_before_its_session_changed_user_reads_no_state(
    url: str,
) -> None:
    app = App(url)
    runs: list[str | None] = []

    @app.agent(name="assistant")
    async def assistant(session: Session) -> None:
        runs.append(session.user)

    async with app:
        connection, key = await app.core.connection(), session_of(None, "s")
        first = await assistant.session("s", user="bob").submit()
        record = SessionRecord("s", None, "ann", 1, "another", {"secret": "ann's"}, True, 1)
        put = Put(key, write(record))
        await connection.thread.ask(lambda: connection.store.put([put]))
        async with app.worker():
            job = await wait(first)
    assert (job.status, job.attempts, runs) == (Status.FAILED, 1, [])
    assert job.error is not None
    assert job.error.type == "poolhand.errors.SessionForbidden"


async def test_state_that_cannot_be_kept_fails_its_turn(url: str) -> None:
    app = App(url)

    @app.agent(name="assistant")
    async def assistant(session: Session, what: str) -> None:
        if what == "list":
            session.state = ["no dict"]  # type: ignore[assignment]
            return
        session.state["x"] = object() if what == "object" else "x" * 2_000_000

    async with app, app.worker():
        talk = assistant.session("s")
        for what, error in (("object", UsageError), ("list", UsageError), ("much", TooLarge)):
            ticket = await talk.submit(what)
            with pytest.raises((error, JobFailed), match="the state of session 's'"):
                await result(ticket)
            assert (await wait(ticket)).attempts == 1
        assert await talk.record() is None


async def test_the_state_size_limit_is_an_app_setting(url: str) -> None:
    for most, kept in ((1_000, False), (3_000_000, True)):
        app = App(url, wire=Wire(limits=Limits(state=most)))

        @app.agent(name="assistant", retry=None)
        async def assistant(session: Session) -> None:
            session.state["x"] = "x" * 2_000_000

        async with app, app.worker():
            talk = assistant.session("s")
            job = await wait(await talk.submit(), LIMIT)
            assert (await talk.record() is not None) is kept
        if not kept:
            assert job.error is not None
            assert "at most 1,000 are kept" in job.error.message
            assert (
                "or raise the limit: App(…, wire=Wire(limits=Limits(state=…)))" in job.error.message
            )


@pytest.mark.parametrize("deleted", [0, 1, 2])
async def test_revisions_are_bounded_on_a_store_from_which_documents_were_deleted(
    url: str, deleted: int
) -> None:
    app = App(url)
    seen: list[int] = []

    @app.agent(name="chat")
    async def chat(session: Session) -> None:
        await session.save()
        seen.append(session.revision)

    async with app:
        store = store_proxy(app.core)
        wrote = await store.put([Put("first", b"")])
        assert wrote is not None
        (one,) = wrote  # 1 in a new store, more where documents were deleted before
        for _ in range(deleted):
            await store.put([Put("gone", b"")])
        await store.put([Put("gone", None)])
        async with app.worker():
            for _ in range(25):
                await (await chat.session("s-1").submit())
        kept = await chat.session("s-1").revisions()
    assert seen == [one + deleted + 2 * turn for turn in range(25)]
    assert len(kept) < 42


async def test_a_limited_number_of_revisions_is_kept(url: str) -> None:
    app = App(url)

    @app.agent(name="assistant")
    async def assistant(session: Session) -> None:
        session.state["turn"] = session.revision

    async with app, app.worker():
        talk = assistant.session("s")
        wrote = await store_proxy(app.core).put([Put("first", b"")])
        assert wrote is not None
        before = wrote[0] - 1  # 0 in a new store, more where documents were deleted before
        for ticket in [await talk.submit() for _ in range(65)]:
            await result(ticket)
        kept = await talk.revisions()
    assert [one.state["turn"] for one in kept][-1] == before + 64
    assert 20 <= len(kept) <= 40


async def test_a_plain_call_takes_a_turn_with_any_session() -> None:
    app = App("memory://")

    @app.agent(name="assistant")
    async def assistant(session: Session, message: str) -> str:
        """Answer."""
        session.state["messages"].append(message)
        await session.save()
        return message.upper()

    session = Session("s")
    assert await assistant(session, "hi") == "HI"
    assert session.state["messages"] == ["hi"]
    assert (assistant.__name__, assistant.__doc__) == ("assistant", "Answer.")


async def test_wrong_agents_and_options_are_refused() -> None:
    app = App("memory://")

    def plain(session: Session) -> None: ...

    async def nothing() -> None: ...

    async def fine(session: Session) -> None: ...

    for fn in (plain, nothing):
        with pytest.raises(UsageError, match="whose first argument is its session"):
            app.agent(fn)  # type: ignore[arg-type]
    for options, said in (
        ({"schema": 0}, "schema=0 is not allowed"),
        ({"ttl": -1}, "ttl=-1 is not allowed"),
        ({"on_busy": "panic"}, "on_busy='panic' is not allowed"),
        ({"colour": 1}, "'colour' is not an option"),
    ):
        with pytest.raises(UsageError, match=said):
            app.agent(name="fine", **options)(fine)
    talk = app.agent(name="fine")(fine).session("s", on_busy="merge")
    with pytest.raises(UsageError, match="one turn at a time"):
        await talk.submit_many([()])
    with pytest.raises(UsageError, match="goes with a session"):
        app.task(name="t")(nothing).with_options(on_busy="reject")


async def test_an_agent_that_takes_no_session_is_refused_with_the_signature_it_needs() -> None:
    app = App("memory://")

    async def texted(message: str) -> None: ...

    async def listed(messages: list[str], limit: int = 3) -> None: ...

    async def named(*, session: Session) -> None: ...

    async def spread(*session: Session) -> None: ...

    for fn, shown in (
        (texted, r"async def texted\(session: Session, message: 'str'\)"),
        (listed, r"async def listed\(session: Session, messages: 'list\[str\]', limit"),
        (named, r"async def named\(session: Session\)"),
        (spread, r"async def spread\(session: Session\)"),
    ):
        with pytest.raises(UsageError, match=shown):
            app.agent(fn)  # type: ignore[arg-type]


async def test_a_session_parameter_may_be_typed_in_many_ways() -> None:
    app = App("memory://")

    async def bare(session, message: str = "") -> None: ...  # type: ignore[no-untyped-def]

    async def anything(session: Any) -> None: ...

    async def perhaps(session: Session | None) -> None: ...

    async def elsewhere(session: NotImported, message: str) -> None: ...  # type: ignore[name-defined] # noqa: F821

    for fn in (bare, anything, perhaps, elsewhere):
        app.agent(name=fn.__name__)(fn)


@pytest.mark.slow
async def test_a_hundred_turns_at_once_lose_no_update(url: str) -> None:
    app = App(url)

    @app.agent(name="count")
    async def count(session: Session, number: int) -> None:
        session.state["messages"].append(number)

    async with app, app.worker(slots=20):
        talk = count.session("s")
        tickets = [await talk.submit(number) for number in range(100)]
        await wait(tickets, LIMIT)
        record = await talk.record()
    assert record is not None
    assert record.state["messages"] == list(range(100))


@seeded
async def test_a_session_is_deleted_its_ttl_after_its_last_turn(runtime: SeededRuntime) -> None:
    app = App("memory://", runtime=runtime)

    @app.agent(name="assistant", ttl=100.0)
    async def assistant(session: Session) -> int:
        session.state["turns"] = session.state.get("turns", 0) + 1
        return int(session.state["turns"])

    async with app, app.worker():
        talk = assistant.session("s")
        for expected in (1, 2):
            assert await (await talk.submit()) == expected
            await asyncio.sleep(90)
        await asyncio.sleep(100)
        assert await talk.record() is None
        assert (await talk.revisions(), await talk.history()) == ([], [])
        assert await (await talk.submit()) == 1


async def test_a_turn_that_saves_often_can_still_be_rolled_back(url: str) -> None:
    app, begun, tries = App(url), asyncio.Event(), list[int]()

    @app.agent(name="assistant", retry=AGAIN)
    async def assistant(session: Session, message: str) -> list[str]:
        session.state["messages"].append(message)
        if message == "often":
            tries.append(1)
            # More than are kept, before another attempt reads them.
            for _ in range(39 if len(tries) == 1 else 1):
                await session.save()
            if len(tries) == 1:
                raise ConnectionError
            begun.set()
            await asyncio.sleep(LIMIT)
        return list(session.state["messages"])

    async with app, app.worker():
        talk = assistant.session("s", on_busy="rollback")
        assert await result(await talk.submit("base")) == ["base"]
        often = await talk.submit("often")
        await begun.wait()
        assert await result(await talk.submit("new")) == ["base", "new"]
        with pytest.raises(JobCancelled):
            await result(often)


# Wrong calls


@pytest.mark.parametrize("verb", ["submit", "run", "map", "submit_many", "with_options"])
def test_calling_submit_verbs_on_an_agent_without_a_session_names_the_fix(verb: str) -> None:
    agent: Any = App("memory://").agent(name="chat")(_echo)
    assert not hasattr(agent, verb)
    with pytest.raises(AttributeError, match=rf"write agent.session\('s-1'\).{verb}\(…\)"):
        getattr(agent, verb)


def test_a_misspelt_name_of_an_agent_gets_a_hint() -> None:
    agent: Any = App("memory://").agent(name="chat")(_echo)
    told = r"^'Agent' object has no attribute 'sesion'; did you mean 'session'\?$"
    with pytest.raises(AttributeError, match=told):
        agent.sesion  # noqa: B018


@pytest.mark.parametrize("session", ["hello", None, 5])
async def test_calling_an_agent_needs_a_session(session: Any) -> None:
    agent = App("memory://").agent(name="chat")(_echo)
    assert await agent(Session("s-1"), "hello") == "hello"
    with pytest.raises(
        UsageError, match=r"takes a Session first: await agent\(Session\('s-1'\), …\)"
    ):
        await agent(session, "hello")


def test_the_name_of_a_session_is_a_text() -> None:
    number: Any = 5
    with pytest.raises(
        UsageError, match=r"Session: id=5 is not allowed; it must be its name, a text"
    ):
        Session(number)


def test_a_bad_name_of_a_session_names_the_call() -> None:
    agent = App("memory://").agent(name="chat")(_echo)
    with pytest.raises(UsageError, match=r"^chat.session: session='' is not allowed"):
        agent.session("")


async def _echo(session: Session, text: str) -> str:
    return text
