"""Connections to PostgreSQL that are cut at every statement: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from threading import Event

import pytest

from poolhand.contract import Change, Claim, ClaimRequest, Extended, Filter, JobBatch, LogLine, Put
from poolhand.errors import Unavailable
from poolhand.rules import lifecycle
from poolhand.rules.audit import OUTCOME, STREAM
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import bounded
from poolhand.rules.queue.strategy import fair_round_robin
from poolhand.runtime import Runtime
from poolhand.stores.postgres.store import PostgresStore
from tests.contract.support import (
    Clock,
    Hand,
    document,
    entries,
    ids,
    order,
    over,
    owner,
    spec,
    withdraw,
)
from tests.faults.proxy import Proxy, Trap
from tests.private_servers.postgres_server import PostgresServer
from tests.system.test_postgres_patience import impatient
from tests.unit.stores.tables import postgres_faults

pytestmark = pytest.mark.slow

LIMIT = 30  # seconds after which a wait gives up
OURS = r"^(?!.*(pg_notify|LISTEN|SELECT 1$))"
MOST = 60  # statements that no verb has
EVERYBODY = 100


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", postgres.port, watches=True) as one:
        yield one


@pytest.fixture
def own_proxy(own_postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", own_postgres.port, watches=True) as one:
        yield one


# Cut after a statement, nothing tells whether it was done; cut before it, it surely was not.
ALSO_BEFORE = [
    pytest.param(True, id="after"),
    pytest.param(False, id="before", marks=pytest.mark.full),
]


class Cut:
    """A store behind a proxy, and a `Hand` that uses it."""

    def __init__(self, url: str, proxy: Proxy) -> None:
        self.url = url
        self.proxy = proxy
        self.store = PostgresStore(proxy.through(url), Runtime())
        self.hand = Hand(self.store, Clock())

    async def held(self) -> set[int]:
        """Return the tokens that are held, as another store sees them."""
        async with opened(self.url) as other:
            lines = await other._turns.read(
                lambda tables: tables.execute("SELECT token FROM poolhand_claims").fetchall()
            )
        return {token for (token,) in lines}

    async def outcomes(self) -> list[str]:
        """Return the jobs whose ends are in the audit, one entry per record."""
        return await self.hand.audited(OUTCOME.removeprefix("pool_"))

    async def expect_whole(self) -> None:
        assert await postgres_faults(self.url) == []
        outcomes = await self.outcomes()
        assert len(outcomes) == len(set(outcomes))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, Runtime())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def behind(url: str, proxy: Proxy) -> AsyncIterator[Cut]:
    cut = Cut(url, proxy)
    await cut.store.open()
    try:
        await cut.store.enroll(owner("hand"))
        await cut.store.declare(spec("free"))
        await cut.store.declare(spec("capped", slots=EVERYBODY, backpressure=bounded(1000)))
        await cut.store.declare(spec("fair", queue=fair_round_robin(), max_per_key=50))
        yield cut
    finally:
        proxy.mend()
        await cut.store.close()


@pytest.fixture
async def cut(store_schema: str, proxy: Proxy) -> AsyncIterator[Cut]:
    async with behind(store_schema, proxy) as one:
        yield one


async def at_every_statement(cut: Cut, after: bool, act: Callable[[int], Awaitable[None]]) -> int:
    """Repeat an action, cut one statement later each time; return how many."""
    for number in range(MOST):
        trap = (cut.proxy.cut_after if after else cut.proxy.cut_before)(OURS, skip=number)
        async with asyncio.timeout(LIMIT):
            await act(number)
        if not trap.sprung.is_set():
            cut.proxy.mend()
            await cut.expect_whole()
            return number
    raise AssertionError(f"more than {MOST} statements")


def batch(number: int) -> JobBatch:
    orders = [
        order(f"{number}-free", "free"),
        order(f"{number}-turn", "free", session=f"s{number % 3}"),
        order(f"{number}-key", "capped", idempotency_key=f"k{number}"),
        order(f"{number}-same", "capped", idempotency_key=f"k{number}"),
        order(f"{number}-fair", "fair", key=f"user{number % 4}"),
    ]
    return JobBatch(tuple(orders), "hand")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_job_is_added_once_whichever_statement_is_cut(cut: Cut, after: bool) -> None:
    async def act(number: int) -> None:
        (answer,) = await cut.store.add([batch(number)])
        assert entries(answer) == ["accepted", "accepted", "accepted", "joined", "accepted"]

    count = await at_every_statement(cut, after, act)
    assert count > 3
    jobs = await cut.store.find(Filter(), limit=1000)
    assert len(jobs.jobs) == 4 * (count + 1)


@pytest.mark.parametrize("after", ALSO_BEFORE)
async def test_a_claim_is_known_to_its_owner_whichever_statement_is_cut(
    cut: Cut, after: bool
) -> None:
    for number in range(MOST):
        await cut.store.add([batch(number)])
    known: list[Claim] = []

    async def act(number: int) -> None:
        known.extend(await cut.hand.claim(3))

    count = await at_every_statement(cut, after, act)
    assert count > 3
    assert len(known) == 3 * (count + 1) == len(set(ids(known)))
    assert {claim.token for claim in known} == await cut.held()


@pytest.mark.parametrize("after", ALSO_BEFORE)
async def test_a_job_is_settled_once_and_new_claims_are_known_whichever_statement_is_cut(
    cut: Cut, after: bool
) -> None:
    for number in range(MOST):
        await cut.store.add([batch(number)])
    running = await cut.hand.claim(4)
    done: list[str] = []

    async def act(number: int) -> None:
        changes = settled(running, cut.hand.clock)
        replaced = await cut.store.replace(changes, ClaimRequest("hand", (0, 1, 2, 3)))
        assert replaced.made == (True,) * len(changes)
        done.extend(ids(running))
        running[:] = replaced.claims

    count = await at_every_statement(cut, after, act)
    assert count > 3
    assert len(done) == len(set(done))
    assert {claim.token for claim in running} == await cut.held()
    found = await cut.store.get(done)
    assert {one.job.status for one in found if one is not None} == {Status.COMPLETED}
    assert sorted(await cut.outcomes()) == sorted(f"outcome {id}" for id in done)


def settled(claims: Sequence[Claim], clock: Clock) -> list[Change]:
    at = clock.wall()
    return [Change(lifecycle.complete(one.job, b"", at, 0.0), one.token) for one in claims]


@pytest.mark.parametrize("verb", ["expire_owner", "cancel", "pause", "withdraw", "prune", "read"])
async def test_other_verbs_are_carried_out_whichever_statement_is_cut(cut: Cut, verb: str) -> None:
    await cut.store.add([batch(number) for number in range(3)])
    store = cut.store

    async def act(number: int) -> None:
        match verb:
            case "expire_owner":
                await store.enroll(owner(f"dead{number}"))
                claims = await cut.hand.claim(1, ("free",), owner=f"dead{number}")
                expired = await store.expire_owner(f"dead{number}", 0)
                assert ids(expired) == ids(claims)
                await store.replace(
                    [Change(lifecycle.hand_back(one.job), one.token) for one in expired]
                )
            case "cancel":
                await store.add([JobBatch((order(f"c{number}", "free", session="c"),))])
                (stored,) = await store.cancel([f"c{number}"], "me")
                assert stored is not None
                assert stored.job.status is Status.CANCELLED
            case "pause":
                await store.set_pool("capped", "me", paused=number % 2 == 0)
                await store.set_pool("capped", "me", slots=10 + number)
            case "withdraw":
                assert await withdraw(store, [f"{number % 3}-free"]) == [f"{number % 3}-free"]
            case "prune":
                assert await store.prune(over(1000.0)) == 0
            case _:
                assert await store.read(STREAM) == await store.read(STREAM)
                assert await store.count(Filter(pool="fair")) == {Status.QUEUED: 3}

    assert await at_every_statement(cut, False, act) > 1


async def test_documents_are_written_although_the_connection_breaks_before(cut: Cut) -> None:
    unknown = []

    async def act(number: int) -> None:
        try:
            assert await cut.store.put([Put(f"d{number}", b"value", expect=0)])
        except Unavailable as error:
            unknown.append(str(error))
        else:
            assert await document(cut.store, f"d{number}") == (b"value", 1)

    await at_every_statement(cut, False, act)
    # Only during the commit, which is another statement on a new connection.
    assert 1 <= len(unknown) <= 2
    assert all("the change may or may not have been made" in text for text in unknown)


async def test_log_lines_are_appended_once_although_the_connection_breaks_before(cut: Cut) -> None:
    unknown = []

    async def act(number: int) -> None:
        try:
            assert not await cut.store.append([LogLine("stream", "kind", b"%d" % number)])
        except Unavailable:
            unknown.append(number)

    count = await at_every_statement(cut, False, act)
    lines = await cut.store.read("stream")
    assert 1 <= len(unknown) <= 2
    assert [int(line.body) for line in lines] == [
        number for number in range(count + 1) if number not in unknown
    ]


async def test_an_unknown_document_commit_is_reported_as_unknown(cut: Cut) -> None:
    cut.proxy.cut_after("^COMMIT")
    with pytest.raises(Unavailable, match="the change may or may not have been made"):
        await cut.store.put([Put("d", b"value", expect=0)])
    assert await document(cut.store, "d") == (b"value", 1)


# The answer to the commit comes late, or never


class Then(Event):
    """An event that makes a call when it is set, before its waiters wake."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def set(self) -> None:
        self._act()
        super().set()


def lose_word(cut: Cut, then: Callable[[], None]) -> Trap:
    """Let the next commit be done and its answer be lost; then make a call."""
    trap = cut.proxy.cut_after("^COMMIT")
    # On the thread of the proxy, which forwards nothing until the call returns.
    trap.sprung = Then(then)
    return trap


async def lost_word(cut: Cut, act: Awaitable[object], until: Callable[[], None]) -> None:
    """Let a commit be done and its answer be lost, and cancel the caller that waits for it."""
    trap = lose_word(cut, until)
    task = asyncio.ensure_future(act)
    await sprung(trap)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def sprung(trap: Trap) -> None:
    assert await asyncio.to_thread(trap.sprung.wait, LIMIT)


@pytest.fixture
async def far(own_postgres: PostgresServer, own_proxy: Proxy) -> AsyncIterator[Cut]:
    async with behind(own_postgres.url, own_proxy) as one:
        yield one


async def test_jobs_claimed_in_a_lost_answer_go_back_to_the_queue(
    far: Cut, own_postgres: PostgresServer
) -> None:
    await far.store.add([batch(0)])
    await lost_word(far, far.hand.claim(4), own_postgres.pause)
    own_postgres.resume()
    assert len(await far.held()) == 4
    assert await far.store.extend("hand", []) == Extended(True)
    assert await far.held() == set()
    await far.expect_whole()
    again = await far.hand.claim(4)
    # No job failed: the attempt is not charged.
    assert [claim.job.attempts for claim in again] == [1, 1, 1, 1]


async def test_settling_again_after_a_lost_answer_reports_success(
    far: Cut, own_postgres: PostgresServer
) -> None:
    await far.store.add([batch(0), batch(1)])
    running = await far.hand.claim(4)
    changes, wanted = settled(running, far.hand.clock), ClaimRequest("hand", (0, 1))
    await lost_word(far, far.store.replace(changes, wanted), own_postgres.pause)
    own_postgres.resume()
    replaced = await far.store.replace(changes, wanted)
    assert replaced.made == (True,) * 4
    assert {claim.token for claim in replaced.claims} == await far.held()
    assert len(replaced.claims) == 2
    await far.expect_whole()
    # The change was reported as made once; it is not made again.
    assert (await far.store.replace(changes)).made == (False,) * 4


async def test_a_claim_whose_commit_is_being_verified_is_not_taken_back(
    cut: Cut,
) -> None:
    await cut.store.add([batch(0)])
    trap = cut.proxy.cut_after("^COMMIT")
    # The query about the transaction is delayed for a moment, during which others ask too.
    claiming = asyncio.create_task(cut.hand.claim(4))
    await sprung(trap)
    extended = [asyncio.create_task(cut.store.extend("hand", [])) for _ in range(5)]
    claims = await claiming
    await asyncio.gather(*extended)
    assert {claim.token for claim in claims} == await cut.held()
    assert len(claims) == 4


async def test_a_submit_whose_answer_is_late_raises_in_time_and_is_stored(
    far: Cut, own_postgres: PostgresServer
) -> None:
    trap = lose_word(far, own_postgres.pause)
    async with asyncio.timeout(LIMIT):
        with impatient(), pytest.raises(Unavailable):
            await far.store.add([batch(0)])
    assert trap.sprung.is_set()
    own_postgres.resume()
    async with opened(far.url) as other:
        found = await other.get(["0-free", "0-key", "0-fair"])
        assert None not in found
        # The same key again returns the same job.
        (answer,) = await other.add([JobBatch((order("new", "capped", idempotency_key="k0"),))])
        assert entries(answer) == ["joined"]
    await far.store.extend("hand", [])
    await far.expect_whole()


async def test_an_outage_of_the_server_in_the_middle_of_a_commit_loses_nothing(
    far: Cut, own_postgres: PostgresServer
) -> None:
    await far.store.add([batch(0), batch(1)])
    running = await far.hand.claim(4)
    changes, wanted = settled(running, far.hand.clock), ClaimRequest("hand", (0, 1))
    lose_word(far, own_postgres.pause)
    async with asyncio.timeout(LIMIT):
        with impatient(), pytest.raises(Unavailable):
            await far.store.replace(changes, wanted)
        with impatient(), pytest.raises(Unavailable):
            await far.store.replace(changes, wanted)
    own_postgres.resume()
    replaced = await far.store.replace(changes, wanted)
    assert replaced.made == (True,) * 4
    assert {claim.token for claim in replaced.claims} == await far.held()
    await far.expect_whole()
