"""What goes over the wall about jobs, pools and leases."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from poolhand.contract.documents import Put
from poolhand.contract.log import LogLine
from poolhand.misuse import OptionsStruct
from poolhand.rules.job import SESSION_ERASED, Job, Status
from poolhand.rules.queue.on_busy import OnBusy
from poolhand.rules.queue.pool_spec import PoolSpec
from poolhand.rules.streams import OF_SESSIONS


class Owner(Struct, frozen=True):
    """A process that holds leases: who it is, and how to tell on its host whether it lives.

    One that `works` runs jobs of the `pools` it serves, None for any; others only submit them.
    `catalogue` names the document with the tasks that it has.
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
        """Tell whether this process runs jobs of a pool."""
        return self.works and (self.pools is None or pool in self.pools)


class Lease(Struct, frozen=True):
    """What can be seen of an owner: `renewal` grows while it lives; `holds` counts its rows."""

    owner: Owner
    renewal: int
    holds: int
    buried: bool = False


class JobRequest(Struct, frozen=True, gc=False):
    """A job to be added, with what a worker needs to run it, which no store looks into.

    `job` is a draft: the store gives it its moments and its place. It may run after `delay` seconds
    or from `job.run_at` on; after `expires` seconds of waiting it is over. `rerun_failed`: a key
    whose job did not succeed runs again. `revives` names a dead job that this one replaces. One
    that comes alone may find its session busy: `on_busy` says what then. `triggers` is the id of
    the schedule whose task an operator runs with it; the audit has that beside its submit.
    """

    job: Job
    brief: bytes
    delay: float | None = None
    expires: float | None = None
    rerun_failed: bool = False
    revives: str | None = None
    on_busy: OnBusy = OnBusy.ENQUEUE
    triggers: str | None = None


class JobBatch(Struct, frozen=True):
    """Orders that come in together or not at all.

    Where a pool blocks its submitters, one without a place is parked under `owner`, or refused.
    """

    orders: tuple[JobRequest, ...]
    owner: str | None = None


class Admission(StrEnum):
    """How an order came in: `joined` got the job its key stands for, `parked` waits to come in."""

    TAKEN = "taken"
    JOINED = "joined"
    PARKED = "parked"
    REJECTED = "rejected"


class Added(Struct, frozen=True, gc=False):
    """What became of one order; `job` is the one its submitter has now."""

    job: Job
    entry: Admission


class Refusal(Struct, frozen=True):
    """Why a batch was refused: "full", "no_slot", "busy", "not_dead" (what it was to revive).

    "user": it has a turn of a session that belongs to another user, or to none.
    """

    reason: str
    pool: str
    policy: str
    running: int = 0
    waiting: int = 0


class ClaimRequest(Struct, frozen=True, gc=False):
    """What an owner would run: as many jobs as it has free slots, of these pools or of all.

    Jobs that were set aside are claimed only by their `causes`, before those that are queued; not
    by those that it has `refused`, whatever version of a call the causes allow.
    """

    owner: str
    slots: tuple[int, ...]
    pools: tuple[str, ...] | None = None
    causes: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()


class Claim(Struct, frozen=True, gc=False):
    """A job that runs under a lease; the token grows with every claim of a store."""

    job: Job
    brief: bytes
    token: int
    slot: int = 0


class Change(Struct, frozen=True, gc=False):
    """What became of a claimed job, good only under its token.

    A job that waits again may run after `wait` seconds, or, without that, from its `run_at` on. One
    that waits for a cause and has neither is set aside until it is claimed by that, or woken.
    `stuck`: it is over, but its code still runs, and counts as running until `release`. Documents
    and lines are written with it, or nothing is; those of a session that was erased are left out,
    and the job is marked.
    """

    job: Job
    token: int
    wait: float | None = None
    stuck: bool = False
    documents: tuple[Put, ...] = ()
    log: tuple[LogLine, ...] = ()

    def without_session(self) -> Change:
        """Return what becomes of a turn whose session was erased while it ran."""
        job = replace(self.job, marks=(*self.job.marks, SESSION_ERASED))
        log = tuple(line for line in self.log if not line.stream.startswith(OF_SESSIONS))
        return replace(self, job=job, documents=(), log=log)


class ReplacedJob(Struct, frozen=True):
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


class Filter(OptionsStruct, frozen=True):
    """Which jobs are meant: those for which everything given holds.

    `since` and `until` are about when a job was submitted: from the first moment on, and before the
    second. Both have a time zone.
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
