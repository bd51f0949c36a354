"""The ports of a store: jobs, documents, log and signals, behind one URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from poolhand.contract.records import (
    Added,
    Change,
    Claim,
    ClaimRequest,
    Document,
    Extended,
    Filter,
    JobBatch,
    JobPage,
    JobRequest,
    Lease,
    LogEntry,
    LogLine,
    Owner,
    PoolRow,
    Promoted,
    Put,
    Refusal,
    ReplacedJob,
    Stored,
)
from poolhand.rules.job import Status
from poolhand.rules.lifecycle import Keep
from poolhand.rules.queue.stored_desk import PoolSpec

Hint = Callable[[str], None]


class StoreTransaction(Protocol):
    """The user's statements on the store's own database, and batches added when it commits."""

    async def execute(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows; Unsupported if the store has no tables."""

    async def add(self, batch: JobBatch) -> tuple[Added, ...] | Refusal:
        """Add a batch that takes effect at commit; a submitter is never blocked."""

    async def commit(self) -> None:
        """Commit everything at once."""

    async def roll_back(self) -> None:
        """Roll everything back."""


class UserInsertion(Protocol):
    """Job requests prepared for a transaction of the user's own; used from the user's loop."""

    async def write(self, connection: Any) -> None:
        """Write the jobs in the transaction that is open on the user's connection."""


class Store(Protocol):
    """All ports behind one URL. A store is used only from the event loop that opened it."""

    @property
    def place(self) -> str:
        """The location to show to users: the full path of its file, or its server."""

    async def open(self) -> None:
        """Prepare the store: connect and check the schema, or raise a StoreError that says why."""

    async def close(self) -> None:
        """Release everything; stored data remains, unless the store is in memory."""

    async def check(self) -> None:
        """Raise the StoreError that a submit would raise now; return if a job can be accepted."""

    # Jobs, their pools and their leases

    async def declare(self, spec: PoolSpec) -> None:
        """Apply the rules of a pool; jobs already queued are ranked by them."""

    async def pools(self, names: Sequence[str] | None = None) -> list[PoolRow]:
        """Return all pools, or those with these names, in the order they first appeared."""

    async def set_pool(
        self,
        pool: str,
        by: str,
        *,
        paused: bool | None = None,
        slots: int | None = None,
        declared: bool = False,
    ) -> None:
        """Change a pool: pause it, so that none of its jobs are claimed, or resume it.

        `slots` overrides the declared cap, `declared` restores it.
        """

    async def add(self, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]:
        """Add batches, each by itself; bounds, keys and sessions are decided in the same step."""

    async def begin(self) -> StoreTransaction:
        """Begin a transaction of the user's own; other writers may have to wait for its end."""

    async def insertion(self, requests: Sequence[JobRequest]) -> UserInsertion:
        """Prepare requests for a transaction on a connection that is not the store's.

        Unsupported for stores without such transactions. Admission is decided when the jobs are
        promoted, after the commit: a pool that may refuse is refused here, and a request whose key
        belongs to another job ends as rejected.
        """

    async def replace(
        self,
        changes: Sequence[Change] = (),
        wanted: ClaimRequest | None = None,
        released: Sequence[int] = (),
    ) -> ReplacedJob:
        """Write the new states of claimed jobs, each if its token is valid, then claim.

        The best job of each pool is claimed in turn; no job is claimed twice, caps are respected.
        `released` are the tokens of jobs that were final before their code stopped: it has stopped
        now, so their slots are free.
        """

    async def cancel(
        self, ids: Sequence[str], by: str, blocked_only: bool = False
    ) -> list[Stored | None]:
        """Cancel waiting jobs; request cancellation of running ones. None: there is no such job.

        A request whose submitter is blocked is withdrawn, and not stored any more. `blocked_only`:
        only those; admitted jobs are returned as they are.
        """

    async def enroll(self, owner: Owner) -> None:
        """Register an owner, so that it may hold leases; update one that is registered."""

    async def extend(self, owner: str, tokens: Sequence[int]) -> Extended:
        """Renew all leases of an owner; return lost tokens and requested cancellations."""

    async def leases(self) -> list[Lease]:
        """Return all owners."""

    async def expire_owner(self, owner: str, renewal: int) -> list[Claim]:
        """Expire the leases of an owner unless it renewed them since; return its running jobs.

        Its blocked submitters' requests are removed and its stuck slots freed. Its jobs remain its
        own until they are replaced under the returned tokens; until then any process can expire it
        again. An owner that holds nothing is deleted.
        """

    async def get(self, ids: Sequence[str], calls: bool = False) -> list[Stored | None]:
        """Return jobs by their ids, None for those that are not stored; with `calls` their calls.

        A call is the call record that a job was submitted with.
        """

    async def find(self, which: Filter, after: int | None = None, limit: int = 100) -> JobPage:
        """Return a page of jobs, newest first; jobs added meanwhile do not shift later pages."""

    async def count(self, which: Filter) -> Mapping[Status, int]:
        """Count jobs by status, without zero counts and without those of blocked submitters."""

    async def causes(self) -> Mapping[str, Mapping[str, int]]:
        """Count jobs that wait for a cause (neither a time nor a slot), by pool and cause."""

    async def wake(self, cause: str, by: str, limit: int = 1000) -> int:
        """Make the oldest jobs that wait for a cause due now; return how many."""

    async def users_of(self, sessions: Sequence[str]) -> Mapping[str, str | None]:
        """Return the users of sessions, by the keys of their documents, without new sessions.

        A session belongs to the user of its first accepted turn, or to none if that turn had none,
        until it is erased, its document expires, or neither the document nor a job of it is stored.
        """

    async def promote(self, limit: int = 1000) -> Promoted:
        """Queue jobs that are due, expire jobs that are overdue."""

    async def prune(self, keep: Keep, limit: int = 1000) -> int:
        """Delete up to `limit` finished jobs as `keep` says, with their streams, and expired keys.

        The last job of a run is deleted with the run's journal and receipts.
        """

    async def unheld(self, free: bool = False) -> list[tuple[str, str]]:
        """Return sessions that are blocked although no job holds them, as (pool, session) pairs.

        There are none unless something broke; with `free` their next turns are queued.
        """

    async def erase(
        self, ids: Sequence[str], streams: Sequence[str], by: str, documents: Sequence[str] = ()
    ) -> list[str]:
        """Delete finished jobs, as `prune` does, and these streams and documents; return the ids.

        A claimed job can no longer write the state of a session that is erased here.
        """

    # Documents: small values under keys, each with a version that grows with every write. A version
    # of a key is never reused: a new document may start above 1, after deleted ones.

    async def get_document(self, key: str) -> Document | None:
        """Return a document, None if there is none."""

    async def put(
        self, puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
    ) -> tuple[int, ...] | None:
        """Write or delete all documents, write log lines with them, and return the new versions.

        None: a version differs, a document was erased, or the claim is invalid; nothing is written.
        """

    async def scan(self, prefix: str, after: str = "", limit: int = 100) -> list[str]:
        """Return the keys with this prefix, sorted, starting after `after`."""

    # Log: streams of numbered lines

    async def append(self, lines: Sequence[LogLine]) -> frozenset[int]:
        """Append lines, except those whose claim is invalid; return the tokens of the latter."""

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> list[LogEntry]:
        """Return the lines after a number whose kind begins with `kind`."""

    async def trim(self, stream: str, before: int) -> int:
        """Delete the lines below a number, except the stream's last line; return how many."""

    # Signals: hints between all processes that share a store; they may be lost, duplicated or late.
    # A store publishes after the commit: "ready" (a job can be claimed), "over" (a job is final),
    # "entered" (a blocked submitter's job was admitted), "wish" (a cancellation was requested) and
    # "due" (a job is to be promoted).

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        """Call `hint` on the store's loop for every signal; return a function that unsubscribes."""

    def publish(self, topic: str) -> None:
        """Send a signal to all processes, this one included; never raises, never waits."""
