"""The records that stores take and return: jobs, pools, leases, claims, documents, log lines."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, TypeVar

from msgspec import DecodeError, Struct, field, json
from msgspec.structs import replace

from poolhand.misuse import OptionsStruct
from poolhand.rules.job import SESSION_ERASED, Job, Status
from poolhand.rules.queue.gates import OnBusy
from poolhand.rules.queue.stored_desk import PoolSpec
from poolhand.rules.streams import OF_SESSIONS

T = TypeVar("T")


class LogLine(Struct, frozen=True, gc=False):
    """A line to append to a stream; with a token it is valid only under that claim."""

    stream: str
    kind: str
    body: bytes
    token: int | None = None


class LogEntry(Struct, frozen=True, gc=False):
    """A line as it is stored; the numbers of a stream have no gaps."""

    number: int
    at: datetime
    kind: str
    body: bytes


class Document(NamedTuple):
    """A document as it is stored; it expires in so many seconds by the store's clock, or never."""

    value: bytes
    version: int
    expires_in: float | None

    def read(self, kind: type[T]) -> T | None:
        """Return the value as JSON has it; None if a newer version wrote it in another form."""
        try:
            return json.decode(self.value, type=kind)
        except DecodeError:
            return None


class Put(Struct, frozen=True, gc=False):
    """A document to write if its version is still `expect` (0: it must not exist; None: any).

    Without a value it is deleted, and its version is 0. `seen` is the version that the writer read:
    a document erased since then is not written again.
    """

    key: str
    value: bytes | None
    expect: int | None = None
    ttl: float | None = None
    seen: int = 0


class Owner(Struct, frozen=True):
    """A process that holds leases: its identity, by which its host can check that it is alive.

    With `works` it runs jobs of the `pools` it serves, None for any; other owners only submit jobs.
    `catalogue` is the key of the document that lists its tasks.
    """

    id: str
    host: str
    boot: str
    pid: int
    started: str
    works: bool = False
    pools: tuple[str, ...] | None = None
    catalogue: str | None = None

    def serves(self, pool: str) -> bool:
        """Return whether this process runs jobs of a pool."""
        return self.works and (self.pools is None or pool in self.pools)


class Lease(Struct, frozen=True):
    """The state of an owner: `renewal` grows while it is alive; `held` counts the rows it owns."""

    owner: Owner
    renewal: int
    held: int
    expired: bool = False


class JobRequest(Struct, frozen=True, gc=False):
    """A job to add, with the call record that a worker needs to run it; stores do not read that.

    `job` is a draft: the store sets its times and its place. It may run after `delay` seconds or
    from `job.run_at` on; after `expires` seconds of waiting it expires. `rerun_failed`: a key whose
    job did not succeed runs again. `revives` is the id of a dead job that this one replaces.
    `on_busy` applies if a request that is alone in its batch finds its session busy. `triggers` is
    the id of the schedule whose task an operator runs with it; the audit log records that besides
    the submit.
    """

    job: Job
    call_record: bytes = field(name="brief")  # as schedules store it
    delay: float | None = None
    expires: float | None = None
    rerun_failed: bool = False
    revives: str | None = None
    on_busy: OnBusy = OnBusy.ENQUEUE
    triggers: str | None = None


class JobBatch(Struct, frozen=True):
    """Job requests that are added together or not at all.

    With `block_submitter` a job that finds the queue full waits under `owner`'s lease; without an
    owner it is refused.
    """

    requests: tuple[JobRequest, ...]
    owner: str | None = None


class Admission(StrEnum):
    """How a request was admitted: `joined` the job of its key, `blocked_submitter` (it waits)."""

    ACCEPTED = "accepted"
    JOINED = "joined"
    BLOCKED_SUBMITTER = "blocked_submitter"
    REJECTED = "rejected"


class Added(Struct, frozen=True, gc=False):
    """The result of one job request; `job` is the job that its submitter gets."""

    job: Job
    entry: Admission


class Refusal(Struct, frozen=True):
    """Why a batch was refused: "full", "no_slot", "busy", "not_dead" (the job to revive is not).

    "user": it has a turn of a session that belongs to another user, or to none. "key": its
    idempotency key stands for `holder`, which makes another call. "busy": `holder` is the turn
    that its session has.
    """

    reason: str
    pool: str
    policy: str
    running: int = 0
    waiting: int = 0
    holder: Job | None = None


class ClaimRequest(Struct, frozen=True, gc=False):
    """What an owner can run: as many jobs as it has free slots, of these pools or of all.

    Jobs that were set aside are claimed only by their `causes`, before queued ones, and never by
    causes in `refused`, even if `causes` allows any version of the call.
    """

    owner: str
    slots: tuple[int, ...]
    pools: tuple[str, ...] | None = None
    causes: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()


class Claim(Struct, frozen=True, gc=False):
    """A job that runs under a lease; tokens grow with every claim in a store."""

    job: Job
    call_record: bytes
    token: int
    slot: int = 0


class Change(Struct, frozen=True, gc=False):
    """The new state of a claimed job, valid only under its token.

    A job that waits again may run after `wait` seconds, or, without that, from its `run_at` on. One
    that is queued is first among its equals: its process was stopped, or died. A job that waits for
    a cause and has neither is set aside until it is claimed by that cause, or woken. `stuck`: the
    job is final, but its code still runs, and counts as running until `release`. Documents and
    lines are written with the change, or nothing is; those of an erased session are left out, and
    the job is marked.
    """

    job: Job
    token: int
    wait: float | None = None
    stuck: bool = False
    documents: tuple[Put, ...] = ()
    log: tuple[LogLine, ...] = ()

    @property
    def puts_back(self) -> bool:
        """Return whether the job returns to its place: its process was stopped, or died."""
        return self.job.status is Status.QUEUED and not self.wait and not self.stuck

    def without_session(self) -> Change:
        """Return the change of a turn whose session was erased while it ran."""
        job = replace(self.job, marks=(*self.job.marks, SESSION_ERASED))
        log = tuple(line for line in self.log if not line.stream.startswith(OF_SESSIONS))
        return replace(self, job=job, documents=(), log=log)


class ReplacedJob(Struct, frozen=True):
    """Which changes were written, in order, and which jobs were claimed with them."""

    made: tuple[bool, ...]
    claims: tuple[Claim, ...] = ()


class Extended(Struct, frozen=True):
    """The result of a renewal: lost tokens, and tokens of jobs whose cancellation is requested.

    An owner that is not `alive` was expired: it holds nothing any more.
    """

    alive: bool
    lost: tuple[int, ...] = ()
    cancel_requested: tuple[int, ...] = ()


class Stored(Struct, frozen=True, gc=False):
    """A stored job. `submitter_blocked`: it waits for room. `dead`: failed and not retried.

    `call_record` is read only on request.
    """

    job: Job
    submitter_blocked: bool = False
    cancel_requested: bool = False
    dead: bool = False
    call_record: bytes | None = None


class Filter(OptionsStruct, frozen=True):
    """Selects jobs: those that match everything given.

    `since` and `until` bound the time a job was submitted: from `since` on, and before `until`.
    Both need a time zone.
    """

    pool: str | None = None
    statuses: tuple[Status, ...] = ()
    name: str | None = None
    key: str | None = None
    session: str | None = None
    tenant: str | None = None
    dead: bool | None = None
    user: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    id_prefix: str | None = None


class JobPage(Struct, frozen=True):
    """A page of jobs, newest first, and the cursor of the next page, None at the end."""

    jobs: tuple[Stored, ...]
    after: int | None = None


class Promoted(Struct, frozen=True):
    """How many jobs became due or expired, and in how many seconds the next one does."""

    moved: int
    expired: int
    next_in: float | None = None


class PoolRow(Struct, frozen=True):
    """A pool as it is stored: its rules, what an operator changed, and its job counts."""

    spec: PoolSpec
    paused: bool = False
    resized: int | None = None
    running: int = 0
    queued: int = 0
    blocked: int = 0
    scheduled: int = 0
    blocked_submitters: int = 0

    @property
    def slots(self) -> int | None:
        """The cap in force."""
        return self.spec.slots if self.resized is None else self.resized


class LockHolder(Struct, frozen=True):
    """A transaction that has been open for some seconds."""

    who: str
    seconds: float


class TableSize(Struct, frozen=True):
    """One of our tables: rows, dead rows not yet vacuumed, bytes including its indexes.

    The rows are as counted by the server's statistics, which may lag behind.
    """

    name: str
    live: int
    dead: int
    bytes: int


class ServerSurvey(Struct, frozen=True):
    """What can be known of a server and our tables on it without opening a store.

    `ahead`: the seconds by which its clock is ahead of this machine's. `unsafe`: settings that let
    a crash undo what was committed. `lacking`: tables and sequences that this user may not use.
    `snapshot` and `writer`: the oldest open ones. `since`: the number of the oldest schema whose
    code works with the present one.
    """

    version: str
    role: str
    read_only: bool
    ahead: float
    autovacuum: bool
    most: int
    connections: int
    schema: str = ""
    unsafe: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    tables: tuple[TableSize, ...] = ()
    snapshot: LockHolder | None = None
    writer: LockHolder | None = None
    since: int = 0
