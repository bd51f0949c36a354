"""The wall: what a store promises, in four small ports behind one URL.

A store keeps and orders; who may enter, who is next and how a job changes is said by `rules`, which
every store asks; one suite of tests holds them all to it. A verb is all or nothing: what it returns
is written, what it raised has left no trace. Only a StoreError says that a store could not do it.
Verbs take durations: the store is the only clock of what it keeps. Audit records are written with
the change they tell of. Records of which there are many (`gc=False`) hold nothing that could lead
back to them, so that the garbage collector need not look through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from poolhand.rules.job import Job, Status
from poolhand.rules.meeting import OnBusy
from poolhand.rules.spec import PoolSpec


class Owner(Struct, frozen=True):
    """A process that holds leases: who it is, and how to tell on its host whether it lives.

    One that `works` runs jobs; others only submit them.
    """

    id: str
    host: str
    boot: str
    pid: int
    started: str
    works: bool = False


class Lease(Struct, frozen=True):
    """What can be seen of an owner: `renewal` grows while it lives; `holds` counts its rows."""

    owner: Owner
    renewal: int
    holds: int
    buried: bool = False


class Order(Struct, frozen=True, gc=False):
    """A job to be added, with what a worker needs to run it, which no store looks into.

    `job` is a draft: the store gives it its moments and its place. It may run after `delay` seconds
    or from `job.run_at` on; after `expires` seconds of waiting it is over. `rerun_failed`: a key
    whose job did not succeed runs again. `revives` names a dead job that this one replaces. One
    that comes alone may find its session busy: `on_busy` says what then.
    """

    job: Job
    brief: bytes
    delay: float | None = None
    expires: float | None = None
    rerun_failed: bool = False
    revives: str | None = None
    on_busy: OnBusy = OnBusy.ENQUEUE


class Batch(Struct, frozen=True):
    """Orders that come in together or not at all.

    Where a pool blocks its submitters, one without a place is parked under `owner`, or refused.
    """

    orders: tuple[Order, ...]
    owner: str | None = None


class Entry(StrEnum):
    """How an order came in: `joined` got the job its key stands for, `parked` waits to come in."""

    TAKEN = "taken"
    JOINED = "joined"
    PARKED = "parked"
    REJECTED = "rejected"


class Added(Struct, frozen=True, gc=False):
    """What became of one order; `job` is the one its submitter has now."""

    job: Job
    entry: Entry


class Refusal(Struct, frozen=True):
    """Why a batch was refused: "full", "no_slot", "busy", "not_dead" (what it was to revive)."""

    reason: str
    pool: str
    policy: str
    running: int = 0
    waiting: int = 0


class Wanted(Struct, frozen=True, gc=False):
    """What an owner would run: as many jobs as it has free slots, of these pools or of all."""

    owner: str
    slots: tuple[int, ...]
    pools: tuple[str, ...] | None = None


class Claim(Struct, frozen=True, gc=False):
    """A job that runs under a lease; the token grows with every claim of a store."""

    job: Job
    brief: bytes
    token: int
    slot: int = 0


class Put(Struct, frozen=True, gc=False):
    """A document to write if its version is still `expect` (0: there is none; None: whatever)."""

    key: str
    value: bytes
    expect: int | None = None
    ttl: float | None = None


class Line(Struct, frozen=True, gc=False):
    """An entry for a stream of the log; one with a token is good only under that claim."""

    stream: str
    kind: str
    body: bytes
    token: int | None = None


class Change(Struct, frozen=True, gc=False):
    """What became of a claimed job, good only under its token.

    A job that waits again may run after `wait` seconds, or, without that, from its `run_at` on.
    `stuck`: it is over, but its code still runs, and counts as running until `release`. Documents
    and lines are written with it, or nothing is.
    """

    job: Job
    token: int
    wait: float | None = None
    stuck: bool = False
    documents: tuple[Put, ...] = ()
    log: tuple[Line, ...] = ()


class Replaced(Struct, frozen=True):
    """Which changes were made, in their order, and what was claimed with them."""

    made: tuple[bool, ...]
    claims: tuple[Claim, ...] = ()


class Extended(Struct, frozen=True):
    """The news of a renewal: tokens no longer good, and those whose job is wished to be over.

    An owner that is not `alive` was buried: it holds nothing any more.
    """

    alive: bool
    lost: tuple[int, ...] = ()
    cancel: tuple[int, ...] = ()


class Stored(Struct, frozen=True, gc=False):
    """A job as it is kept. `parked`: it has no place yet. `dead`: it failed, nobody reran it."""

    job: Job
    parked: bool = False
    cancel_wished: bool = False
    dead: bool = False


class Filter(Struct, frozen=True):
    """Which jobs are meant: those for which everything given holds."""

    pool: str | None = None
    statuses: tuple[Status, ...] = ()
    name: str | None = None
    key: str | None = None
    session: str | None = None
    tenant: str | None = None
    dead: bool | None = None


class Page(Struct, frozen=True):
    """Some jobs, newest first, and the cursor that goes on behind them, None at the end."""

    jobs: tuple[Stored, ...]
    after: int | None = None


class Promoted(Struct, frozen=True):
    """How many jobs came due or expired, and in how many seconds the next one does."""

    moved: int
    expired: int
    next_in: float | None = None


class PoolRow(Struct, frozen=True):
    """A pool as it is kept: its rules, what an operator set, and who is where."""

    spec: PoolSpec
    paused: bool = False
    resized: int | None = None
    running: int = 0
    queued: int = 0
    blocked: int = 0
    scheduled: int = 0
    parked: int = 0

    @property
    def slots(self) -> int | None:
        """The cap in force."""
        return self.spec.slots if self.resized is None else self.resized


class StoreTransaction(Protocol):
    """Statements of the user in the store's own tables, and batches taken if it commits."""

    async def execute(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows; Unsupported where there are no tables."""

    async def add(self, batch: Batch) -> tuple[Added, ...] | Refusal:
        """Take a batch in, once committed; nobody is parked."""

    async def commit(self) -> None:
        """Make everything true at once."""

    async def roll_back(self) -> None:
        """Take everything back."""


class Insertion(Protocol):
    """Orders made ready to be written by a transaction of the user's own; used from its loop."""

    async def write(self, connection: Any) -> None:
        """Write the jobs in the transaction that is open on a connection of the user's."""


class Jobs(Protocol):
    """Jobs, their places and their leases."""

    async def declare(self, spec: PoolSpec) -> None:
        """Put the rules of a pool in force; what is queued is ranked by them."""

    async def pools(self, names: Sequence[str] | None = None) -> list[PoolRow]:
        """Return all pools, or those of these names, in the order they first appeared."""

    async def pause(self, pool: str, paused: bool, by: str) -> None:
        """Let no job of a pool be claimed, or let them again."""

    async def resize(self, pool: str, slots: int | None, by: str) -> None:
        """Give a pool another cap than its declaration, until None gives that back."""

    async def add(self, batches: Sequence[Batch]) -> list[tuple[Added, ...] | Refusal]:
        """Take batches in, each by itself; bounds, keys and sessions are decided with it."""

    async def begin(self) -> StoreTransaction:
        """Begin a transaction of the user's own; others may have to wait for its end."""

    async def insertion(self, orders: Sequence[Order]) -> Insertion:
        """Make orders ready for a transaction that is not the store's; Unsupported where none is.

        Whether they come in is decided when they are promoted, after its commit: a pool that may
        refuse is refused here, and a key that stands for another job ends one as rejected.
        """

    async def unpark(self, ids: Sequence[str]) -> list[str]:
        """Take parked orders back; return the ids of those that have come in before."""

    async def claim(self, wanted: Wanted) -> list[Claim]:
        """Hand out the best of each pool, which take turns; none goes to two, caps are kept."""

    async def replace(self, changes: Sequence[Change], wanted: Wanted | None = None) -> Replaced:
        """Write what became of claimed jobs, each if its token is good, then claim."""

    async def release(self, tokens: Sequence[int]) -> None:
        """Take back the slots of jobs that were over before their code was."""

    async def cancel(self, ids: Sequence[str], by: str) -> list[Stored | None]:
        """End jobs that wait; wish the end of those that run. None: there is no such job."""

    async def enroll(self, owner: Owner) -> None:
        """Make an owner known, that it may hold leases; one that is known is described anew."""

    async def extend(self, owner: str, tokens: Sequence[int]) -> Extended:
        """Renew all leases of an owner; hear what is lost and what is wished."""

    async def leases(self) -> list[Lease]:
        """Return all owners."""

    async def bury(self, owner: str, renewal: int) -> list[Claim]:
        """End the leases of an owner unless it renewed them since; return what it ran.

        Its parked orders are gone and its stuck slots free. Its jobs stay its own until they are
        replaced under the tokens returned; until then it can be buried again, by anybody. One that
        holds nothing more is forgotten.
        """

    async def get(self, ids: Sequence[str]) -> list[Stored | None]:
        """Return jobs by their ids, None for those that are not kept."""

    async def brief(self, id: str) -> bytes | None:
        """Return what a job was ordered with."""

    async def find(self, which: Filter, after: int | None = None, limit: int = 100) -> Page:
        """Return a page of jobs, newest first; jobs that come meanwhile move no page."""

    async def count(self, which: Filter) -> Mapping[Status, int]:
        """Count jobs by status; those with none of a status are left out. Parked do not count."""

    async def promote(self, limit: int = 1000) -> Promoted:
        """Place what is due, end what has expired."""

    async def prune(self, keep: float, limit: int = 1000) -> int:
        """Forget up to `limit` jobs over for `keep` seconds, with their streams, and old keys."""

    async def erase(self, ids: Sequence[str], streams: Sequence[str], by: str) -> list[str]:
        """Forget jobs that are over, keys and streams included, and these streams; return ids."""


class Documents(Protocol):
    """Small values under keys, each with a version that grows with every write.

    No version of a key comes twice: a new document may start above 1, behind deleted ones.
    """

    async def get_document(self, key: str) -> tuple[bytes, int] | None:
        """Return a document and its version."""

    async def put(self, puts: Sequence[Put], token: int | None = None) -> tuple[int, ...] | None:
        """Write all documents; None: a version differs or the claim is invalid, none is written."""

    async def delete(self, key: str, expect: int | None = None) -> bool:
        """Delete a document; tell whether it was there, of that version."""

    async def scan(self, prefix: str, after: str = "", limit: int = 100) -> list[str]:
        """Return keys that begin so, sorted, from behind `after` on."""


class Written(Struct, frozen=True, gc=False):
    """A line of the log as it is kept; numbers of a stream have no gaps."""

    number: int
    at: datetime
    kind: str
    body: bytes


class Log(Protocol):
    """Streams of numbered lines."""

    async def append(self, lines: Sequence[Line]) -> frozenset[int]:
        """Write lines, all but those whose claim is not good; return the tokens of these."""

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> list[Written]:
        """Return lines from behind a number on, those whose kind begins so."""

    async def trim(self, stream: str, before: int) -> int:
        """Forget the lines below a number, all but the last of the stream; return how many."""


Hint = Callable[[str], None]


class Signals(Protocol):
    """Hints between all who share a store; they may be lost, doubled or late.

    A store gives "ready" (a job can be claimed), "over" (one has ended), "entered" (a parked order
    has a place), "wish" (one shall end) and "due" (one is to be promoted) when that is written.
    """

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        """Call `hint` on the loop of the store for every signal; return what ends that."""

    def publish(self, topic: str) -> None:
        """Give a signal to everybody, oneself included; never raises, never waits."""


class Store(Jobs, Documents, Log, Signals, Protocol):
    """All ports behind one URL. A store is used from the event loop that opened it."""

    async def open(self) -> None:
        """Make the store ready: connect, check the schema, or raise a StoreError that says why."""

    async def close(self) -> None:
        """Let go of everything; what was written stays."""

    async def check(self) -> None:
        """Return if the store could take a job now, else raise the StoreError it would raise."""
