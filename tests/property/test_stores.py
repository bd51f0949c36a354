"""Two stores in step: the same verbs at the same times give the same answers and state.

The memory store asks the desk; another store must give the same answers. Nothing is computed here:
every answer and all visible state is compared, bytes included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import count, cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from poolhand.contract import (
    Change,
    Claim,
    ClaimRequest,
    Filter,
    JobBatch,
    JobRequest,
    LogLine,
    Put,
    Refusal,
    Store,
)
from poolhand.errors import Conflict
from poolhand.rules import lifecycle
from poolhand.rules.audit import STREAM
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import OnFull, bounded, fail_fast, ring_buffer, unbounded
from poolhand.rules.queue.gates import OnBusy
from poolhand.rules.queue.strategy import fair_round_robin, fifo, lifo, priority
from poolhand.rules.receipts import receipts_of_run
from poolhand.rules.streams import inbox_of
from poolhand.stores.sql import steps as sql_steps
from poolhand.stores.sqlite.store import SqliteStore
from tests.contract.support import Clock, order, over, owner, spec
from tests.extent import examples
from tests.oracle import books as oracle_books
from tests.oracle.store import OracleStore
from tests.private_servers.postgres_server import PostgresServer
from tests.property.renumbered import Renumbered

T = TypeVar("T")
MEMORY = Path("/dev/shm")  # noqa: S108 - where nobody has to wait for a disk

STRATEGIES = [
    fifo(),
    lifo(),
    priority(),
    priority(aging=2.0),
    fair_round_robin(),
    fair_round_robin(weights={"A": 2.0}),
]
POLICIES = [
    unbounded(),
    fail_fast(),
    ring_buffer(2),
    *[bounded(depth, how) for depth in (1, 3) for how in OnFull],
    bounded(2),
]
RULES = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(STRATEGIES),
        "backpressure": st.sampled_from(POLICIES),
        "slots": st.sampled_from([None, 1, 2, 3]),
        "max_per_key": st.sampled_from([None, None, 1, 2]),
    }
)
TERMS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["A", "B", "C", "A", "B", ""]),
        "priority": st.integers(0, 2),
        "session": st.sampled_from([None, None, "s", "t"]),
        "tenant": st.sampled_from([None, None, "acme"]),
        "idempotency_key": st.sampled_from([None, None, None, "k", "l"]),
        "delay": st.sampled_from([None, None, None, 0.0, 2.0]),
        "run_in": st.sampled_from([None, None, None, -1.0, 3.0]),
        "expires": st.sampled_from([None, None, 2.0, 5.0]),
        "rerun_failed": st.booleans(),
    }
)
PLAIN = st.fixed_dictionaries({"key": st.sampled_from("ABC"), "priority": st.integers(0, 2)})
POOL = st.sampled_from(["one", "one", "two", "free"])
POOLS = st.sampled_from([None, None, ("one",), ("two", "free"), ("free", "none", "one")])
OWNER = st.sampled_from(["x", "x", "y"])
WHICH = st.integers(0, 40)
ENDS = st.sampled_from([Status.COMPLETED, Status.COMPLETED, Status.FAILED, Status.CANCELLED])
CAUSES = ["task:x", "task:y", "task:nobody"]
FATE = st.sampled_from(["completed", "completed", "failed", "running", "retried", *CAUSES])
STATUSES = [(status,) for status in Status]
VERSION = st.sampled_from([None, None, 0, 1, 2])
TTL = st.sampled_from([None, 2.0])
PUT = st.builds(Put, st.sampled_from("def"), st.just(b"p"), VERSION, TTL)


class StoresMachine(RuleBasedStateMachine):
    """Drives two stores with one clock."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.stores: list[Store] = [OracleStore(self.clock), self.other()]
        self.names: list[str] = []
        self.claims: list[Claim] = []
        self.stuck: list[int] = []
        self.owners = {"x": "x", "y": "y"}
        self.burials = 0
        self.read_until = 0
        # Few, so that a claim often meets more of them than it may expire.
        self.patch = pytest.MonkeyPatch()
        for module in (oracle_books, sql_steps):
            self.patch.setattr(module, "EXPIRED_AT_ONCE", 1)
        self.both(lambda store: store.open())

    def other(self) -> Store:
        """Return the store that is compared with the memory store."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.patch.undo()
        self.both(lambda store: store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def both(self, verb: Callable[[Store], Awaitable[T]]) -> T:
        """Call both stores and return their common answer."""

        async def ask() -> list[T]:
            return [await verb(store) for store in self.stores]

        ours, theirs = self.loop.run_until_complete(ask())
        assert ours == theirs
        return ours

    # Pools

    @initialize(one=RULES, two=RULES)
    def begin(self, one: dict[str, Any], two: dict[str, Any]) -> None:
        self.declare("one", one)
        self.declare("two", two)
        for name in self.owners:
            self.enroll(name)

    def declare(self, name: str, rules: dict[str, Any]) -> None:
        made = spec(name, key_ttl=6.0, max_keys=2, **rules)
        self.both(lambda store: store.declare(made))

    @rule(
        act=st.sampled_from(["declare", "declare", "resize", "pause", "resume", "resume"]),
        name=st.sampled_from(["one", "two"]),
        rules=RULES,
    )
    def operate(self, act: str, name: str, rules: dict[str, Any]) -> None:
        if act == "declare":
            self.declare(name, rules)
        elif act == "resize":
            slots = rules["slots"]
            self.both(lambda store: store.set_pool(name, "me", slots=slots, declared=slots is None))
        else:
            self.both(lambda store: store.set_pool(name, "me", paused=act == "pause"))

    @rule(rules=RULES)
    def declare_what_was_not(self, rules: dict[str, Any]) -> None:
        self.declare("free", rules)

    # Adding jobs

    def order(self, pool: str, terms: dict[str, Any], **more: Any) -> JobRequest:
        terms = dict(terms)
        run_in = terms.pop("run_in", None)
        if run_in is not None and terms["delay"] is None:
            terms["run_at"] = self.clock.date + timedelta(seconds=run_in)
        name = f"job-{len(self.names):03}"
        self.names.append(name)
        return order(name, pool, **terms, **more)

    def add(self, who: str | None, *batches: tuple[JobRequest, ...]) -> None:
        made = [JobBatch(orders, None if who is None else self.owners[who]) for orders in batches]
        self.both(lambda store: store.add(made))

    @rule(
        jobs=st.lists(st.tuples(POOL, TERMS), min_size=1, max_size=4),
        together=st.booleans(),
        who=st.sampled_from([None, "x", "y"]),
    )
    def submit(
        self, jobs: list[tuple[str, dict[str, Any]]], together: bool, who: str | None
    ) -> None:
        orders = tuple([self.order(pool, terms) for pool, terms in jobs])
        if together:
            self.add(who, orders)
        else:
            self.add(who, *[(order,) for order in orders])

    @rule(pool=POOL, jobs=st.lists(PLAIN, min_size=2, max_size=5), who=OWNER)
    def submit_some(self, pool: str, jobs: list[dict[str, Any]], who: str) -> None:
        """Add several jobs that only need a slot, so that there is always work."""
        self.add(who, *[(self.order(pool, terms),) for terms in jobs])

    @rule(
        pools=st.lists(POOL, min_size=1, max_size=4),
        terms=PLAIN,
        together=st.booleans(),
        kept=st.sampled_from([True, True, False]),
    )
    def submit_in_a_transaction(
        self, pools: list[str], terms: dict[str, Any], together: bool, kept: bool
    ) -> None:
        orders = [self.order(pool, terms) for pool in pools]
        size = len(orders) if together else 1
        batches = [tuple(orders[n : n + size]) for n in range(0, len(orders), size)]
        self.both(lambda store: self.told(store, batches, kept))

    async def told(
        self, store: Store, batches: list[tuple[JobRequest, ...]], kept: bool
    ) -> list[list[str]]:
        """Add batches in a transaction; return its verdicts."""
        made = await store.begin()
        answers = [await made.add(JobBatch(orders)) for orders in batches]
        await (made.commit() if kept else made.roll_back())
        return [
            [str(answer)]
            if isinstance(answer, Refusal)
            else [f"{added.entry} {added.job.id}" for added in answer]
            for answer in answers
        ]

    @precondition(lambda self: self.names)
    @rule(which=WHICH, pool=POOL, terms=TERMS)
    def submit_again(self, which: int, pool: str, terms: dict[str, Any]) -> None:
        """Add a job whose id may be known, after a new one."""
        known = replace(self.order(pool, terms).job, id=self.name(which))
        batch = JobBatch((self.order("free", {"key": "A"}), JobRequest(known, b"")), None)
        if self.both(lambda store: store.get([known.id])) != [None]:
            self.both(lambda store: self.clash(store, batch))

    async def clash(self, store: Store, batch: JobBatch) -> object:
        """Return the accepted jobs; for a full pool and a known id either may be reported first."""
        try:
            (answer,) = await store.add([batch])
        except Conflict:
            return None
        return None if isinstance(answer, Refusal) else answer

    @precondition(lambda self: self.names)
    @rule(which=WHICH, pool=POOL, who=st.sampled_from([None, "x"]))
    def revive(self, which: int, pool: str, who: str | None) -> None:
        dead = self.both(lambda store: store.find(Filter(dead=True))).jobs
        name = dead[which % len(dead)].job.id if dead else self.name(which)
        run = dead[which % len(dead)].job.run if dead else name
        terms = {"key": "A", "continues": run}
        again = self.order(pool, terms, revives=name, rerun_failed=True)
        self.add(who, (again,))

    def name(self, which: int) -> str:
        """Choose a job, mostly one of the newest."""
        return self.names[-1 - which % len(self.names)]

    @precondition(lambda self: self.names)
    @rule(blocked_submitters=st.lists(WHICH, max_size=2), unwanted=st.lists(WHICH, max_size=2))
    def give_up(self, blocked_submitters: list[int], unwanted: list[int]) -> None:
        ids = [self.name(one) for one in blocked_submitters]
        self.both(lambda store: store.cancel(ids, "me", blocked_only=True))
        self.both(lambda store: store.cancel([self.name(one) for one in unwanted], "me"))

    @rule(pool=POOL, session=st.sampled_from(["s", "t"]), on_busy=st.sampled_from(list(OnBusy)))
    def take_a_turn(self, pool: str, session: str, on_busy: OnBusy) -> None:
        self.add("x", (self.order(pool, {"session": session, "on_busy": on_busy}),))

    @precondition(lambda self: self.names)
    @rule(unwanted=st.lists(WHICH, min_size=1, max_size=3), stream=st.sampled_from(["s", "t"]))
    def erase(self, unwanted: list[int], stream: str) -> None:
        names = [self.name(one) for one in unwanted]
        receipts = [Put(f"{receipts_of_run(name)}{stream}", b"") for name in (*names, "nobody")]
        self.both(lambda store: store.put([*receipts, Put("session//s", b"")]))
        self.both(
            lambda store: store.erase(
                names, [stream, inbox_of(names[0])], "me", ["session//s", "nothing"]
            )
        )
        self.both(lambda store: store.scan("", limit=10_000))

    # Running jobs

    def wanted(self, who: str, count: int, pools: tuple[str, ...] | None = None) -> ClaimRequest:
        return ClaimRequest(
            self.owners[who], tuple(range(count)), pools, frozenset({f"task:{who}"})
        )

    @rule(
        who=OWNER,
        count=st.sampled_from([1, 2, 3, 10]),
        pools=POOLS,
        rounds=st.integers(0, 3),
        fates=st.lists(FATE, min_size=1, max_size=5),
    )
    def work(
        self, who: str, count: int, pools: tuple[str, ...] | None, rounds: int, fates: list[str]
    ) -> None:
        """Run jobs batch by batch, as a worker does; some keep running."""
        wanted = self.wanted(who, count, pools)
        claims = self.replace([], wanted)
        for _ in range(rounds):
            self.clock.wait(0.5)
            fated = list(zip(claims, cycle(fates), strict=False))
            self.claims += [claim for claim, fate in fated if fate == "running"]
            claims = self.replace([self.met(*one) for one in fated if one[1] != "running"], wanted)
        self.claims += claims

    def met(self, claim: Claim, fate: str) -> Change:
        """Return the change that ends a job in the drawn way."""
        if fate == "retried":
            return Change(lifecycle.hand_back(claim.job), claim.token, wait=1.0)
        if fate in CAUSES:
            return Change(lifecycle.set_aside(claim.job, fate), claim.token)
        return self.ended(claim, Status(fate))

    def ended(self, claim: Claim, status: Status, **options: Any) -> Change:
        job = replace(claim.job, status=status, finished_at=self.clock.date, result=b"value")
        return Change(job, claim.token, **options)

    def replace(self, changes: list[Change], wanted: ClaimRequest | None) -> tuple[Claim, ...]:
        return self.both(lambda store: store.replace(changes, wanted)).claims

    def take(self, which: int) -> Claim:
        """Choose a claim; some were lost meanwhile."""
        return self.claims.pop(which % len(self.claims))

    @precondition(lambda self: self.claims)
    @rule(
        which=st.lists(WHICH, min_size=1, max_size=3),
        status=ENDS,
        stuck=st.sampled_from([False, False, False, True]),
        put=st.sampled_from([None, None, Put("d", b"v", expect=1), Put("d", b"w")]),
        who=st.sampled_from([None, "x"]),
    )
    def end(
        self, which: list[int], status: Status, stuck: bool, put: Put | None, who: str | None
    ) -> None:
        documents = () if put is None else (put,)
        changes = []
        for one in which[: len(self.claims)]:
            claim = self.take(one)
            line = LogLine(f"log of {claim.job.pool}", "end", claim.job.id.encode())
            more = {"stuck": stuck, "documents": documents, "log": (line,)}
            changes.append(self.ended(claim, status, **more))
            if stuck:
                self.stuck.append(claim.token)
        self.claims += self.replace(changes, None if who is None else self.wanted(who, 2))

    @precondition(lambda self: self.claims)
    @rule(
        which=WHICH,
        wait=st.sampled_from([None, None, 0.0, 1.0, 4.0]),
        run_in=st.sampled_from([None, -1.0, 3.0]),
        stuck=st.sampled_from([False, False, False, True]),
        who=st.sampled_from([None, "x"]),
    )
    def retry(
        self, which: int, wait: float | None, run_in: float | None, stuck: bool, who: str | None
    ) -> None:
        claim = self.take(which)
        job = lifecycle.hand_back(claim.job)
        if run_in is not None:
            run_at = self.clock.date + timedelta(seconds=run_in)
            job = replace(job, status=Status.SCHEDULED, run_at=run_at)
        if stuck:
            self.stuck.append(claim.token)
        wanted = None if who is None else self.wanted(who, 2)
        self.claims += self.replace([Change(job, claim.token, wait, stuck)], wanted)

    @precondition(lambda self: self.stuck)
    @rule(which=WHICH)
    def release(self, which: int) -> None:
        token = self.stuck.pop(which % len(self.stuck))
        self.both(lambda store: store.replace(released=[token, 12345]))

    # Owners

    def enroll(self, name: str) -> None:
        self.both(lambda store: store.enroll(owner(name)))

    @rule(which=WHICH, behind=st.sampled_from([0, 0, 0, 1]), heir=st.sampled_from([None, "x", "y"]))
    def expire_owner(self, which: int, behind: int, heir: str | None) -> None:
        """Expire an owner, which another one replaces; its jobs are retried now or later."""
        tokens = [claim.token for claim in self.claims] + self.stuck
        self.both(lambda store: store.extend(self.owners["x"], tokens))
        leases = self.both(lambda store: store.leases())
        lease = leases[which % len(leases)]
        found = self.both(lambda store: store.expire_owner(lease.owner.id, lease.renewal + behind))
        for role, name in self.owners.items():
            if name == lease.owner.id:
                self.burials += 1
                self.owners[role] = f"{role}{self.burials}"
                self.enroll(self.owners[role])
        if heir is None:
            self.claims += found
        else:
            at = self.clock.date
            jobs = [lifecycle.crash(one.job, None, True, at, proven=False) for one in found]
            changes = [Change(job, one.token) for job, one in zip(jobs, found, strict=True)]
            self.claims += self.replace(changes, self.wanted(heir, 2))

    # Time

    @rule(seconds=st.sampled_from([1.0, 1.0, 2.0, 5.0]), limit=st.sampled_from([None, 1000, 2]))
    def wait(self, seconds: float, limit: int | None) -> None:
        self.clock.wait(seconds)
        if limit is not None:
            self.both(lambda store: store.promote(limit))

    @rule(cause=st.sampled_from(CAUSES), limit=st.sampled_from([1, 1000]))
    def wake(self, cause: str, limit: int) -> None:
        self.both(lambda store: store.causes())
        self.both(lambda store: store.wake(cause, "me", limit))
        self.both(lambda store: store.promote())

    @rule(seconds=st.sampled_from([-3.0, 2.0]))
    def set_date(self, seconds: float) -> None:
        self.clock.set_date(seconds)
        self.both(lambda store: store.promote())

    # Documents, log, pruning

    @rule(
        puts=st.lists(PUT, max_size=3),
        gone=st.sampled_from("def"),
        version=VERSION,
        keep=st.sampled_from([None, 0.0, 3.0]),
        limit=st.sampled_from([1000, 1]),
    )
    def write(
        self, puts: list[Put], gone: str, version: int | None, keep: float | None, limit: int
    ) -> None:
        self.both(lambda store: store.put(puts))
        self.both(lambda store: store.put([Put(gone, None, version)]))
        if keep is not None:
            self.both(lambda store: store.prune(over(keep), limit))

    @rule(
        token=st.sampled_from([None, 0]),
        which=WHICH,
        before=st.integers(0, 12),
        stream=st.sampled_from(["s", "t", STREAM]),
    )
    def append(self, token: int | None, which: int, before: int, stream: str) -> None:
        if token is not None and self.claims:
            token = self.claims[which % len(self.claims)].token
        lines = [
            LogLine("s", "a", b"1"),
            LogLine("t", "b", b"2", token),
            LogLine("s", "c", b"3", token),
        ]
        self.both(lambda store: store.append(lines))
        self.both(lambda store: store.trim(stream, before))

    # Views

    @invariant()
    def everything_looks_the_same(self) -> None:
        self.both(lambda store: store.pools())
        self.both(lambda store: store.leases())
        self.both(lambda store: store.get(self.names))
        told = self.both(lambda store: store.read(STREAM, self.read_until))
        self.read_until = told[-1].number if told else self.read_until

    @precondition(lambda self: self.names)
    @rule(which=WHICH, pool=st.sampled_from([None, "one"]), limit=st.integers(1, 5))
    def look(self, which: int, pool: str | None, limit: int) -> None:
        seen = Filter(pool=pool, statuses=STATUSES[which % len(STATUSES)] if which % 2 else ())
        self.both(lambda store: store.count(seen))
        self.both(lambda store: self.pages(store, seen, limit))
        self.both(lambda store: store.get([self.name(which)], calls=True))
        self.both(lambda store: store.scan("", "", 10))
        self.both(lambda store: store.get_document("def"[which % 3]))
        self.both(lambda store: store.read("s", which % 5, limit))
        self.both(lambda store: store.read("log of one", which % 5, limit, "e"))

    async def pages(self, store: Store, which: Filter, limit: int) -> list[str]:
        """Return all jobs of a filter; the form of a cursor is the store's own."""
        page = await store.find(which, limit=limit)
        found = list(page.jobs)
        while page.after is not None:
            page = await store.find(which, page.after, limit)
            assert page.jobs
            found += page.jobs
        return [f"{one.job.id} {one.job.status} {one.dead}" for one in found]


class SqliteMachine(StoresMachine):
    def other(self) -> Store:
        self.folder = TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        return SqliteStore(Path(self.folder.name) / "jobs.db", self.clock)

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class PostgresMachine(StoresMachine):
    url = ""
    schemas = count(1)

    def other(self) -> Store:
        url = f"{self.url}?schema=machine_{next(self.schemas)}"
        return Renumbered(url, self.clock, lambda: (self.clock.now, self.clock.date))


TestSqlite = pytest.mark.slow(pytest.mark.timeout(300)(SqliteMachine.TestCase))
TestSqlite.settings = settings(max_examples=examples(100), stateful_step_count=40)


@pytest.fixture(scope="module")
def _server(postgres: PostgresServer) -> None:
    PostgresMachine.url = postgres.url


TestPostgres = pytest.mark.slow(pytest.mark.timeout(600)(PostgresMachine.TestCase))
TestPostgres = pytest.mark.usefixtures("_server")(TestPostgres)
TestPostgres.settings = settings(max_examples=examples(20), stateful_step_count=40)
