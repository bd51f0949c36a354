"""The port of jobs: their places, their leases, and transactions they come in by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from poolhand.contract.records import (
    Added,
    Change,
    Claim,
    ClaimRequest,
    Extended,
    Filter,
    JobBatch,
    JobPage,
    JobRequest,
    Lease,
    Owner,
    PoolRow,
    Promoted,
    Refusal,
    ReplacedJob,
    Stored,
)
from poolhand.rules.job import Status
from poolhand.rules.queue.pool_spec import PoolSpec
from poolhand.rules.retention import Keep


class StoreTransaction(Protocol):
    """Statements of the user in the store's own tables, and batches taken if it commits."""

    async def execute(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows; Unsupported where there are no tables."""

    async def add(self, batch: JobBatch) -> tuple[Added, ...] | Refusal:
        """Take a batch in, once committed; nobody is parked."""

    async def commit(self) -> None:
        """Make everything true at once."""

    async def roll_back(self) -> None:
        """Take everything back."""


class UserInsertion(Protocol):
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

    async def add(self, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]:
        """Take batches in, each by itself; bounds, keys and sessions are decided with it."""

    async def begin(self) -> StoreTransaction:
        """Begin a transaction of the user's own; others may have to wait for its end."""

    async def insertion(self, orders: Sequence[JobRequest]) -> UserInsertion:
        """Make orders ready for a transaction that is not the store's; Unsupported where none is.

        Whether they come in is decided when they are promoted, after its commit: a pool that may
        refuse is refused here, and a key that stands for another job ends one as rejected.
        """

    async def unpark(self, ids: Sequence[str]) -> list[str]:
        """Take parked orders back; return the ids of those that have come in before."""

    async def claim(self, wanted: ClaimRequest) -> list[Claim]:
        """Hand out the best of each pool, which take turns; none goes to two, caps are kept."""

    async def replace(
        self, changes: Sequence[Change], wanted: ClaimRequest | None = None
    ) -> ReplacedJob:
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

    async def find(self, which: Filter, after: int | None = None, limit: int = 100) -> JobPage:
        """Return a page of jobs, newest first; jobs that come meanwhile move no page."""

    async def count(self, which: Filter) -> Mapping[Status, int]:
        """Count jobs by status; those with none of a status are left out. Parked do not count."""

    async def causes(self) -> Mapping[str, Mapping[str, int]]:
        """Count the jobs that wait for something else than a time or a slot, by pool and cause."""

    async def wake(self, cause: str, by: str, limit: int = 1000) -> int:
        """Let the oldest jobs that wait for a cause be promoted now; return how many."""

    async def users_of(self, sessions: Sequence[str]) -> Mapping[str, str | None]:
        """Return whose sessions are, by the keys of their documents; those not begun are left out.

        A session belongs to the user of its first accepted turn, or to none if that had none, until
        it is erased, its document expires, or neither that nor a job of it is kept any more.
        """

    async def promote(self, limit: int = 1000) -> Promoted:
        """Place what is due, end what has expired."""

    async def prune(self, keep: Keep, limit: int = 1000) -> int:
        """Forget up to `limit` jobs that are over, as `keep` says, with their streams; and keys.

        With the last job of a run go its journal and its receipts.
        """

    async def unheld(self, free: bool = False) -> list[tuple[str, str]]:
        """Return the sessions that no job holds and yet are closed, each with its pool before it.

        There are none unless something broke; with `free` their next turns go on.
        """

    async def erase(
        self, ids: Sequence[str], streams: Sequence[str], by: str, documents: Sequence[str] = ()
    ) -> list[str]:
        """Forget jobs that are over, as `prune` does, and these streams and documents; return ids.

        What a claimed job has seen of a session that goes so can no longer be written.
        """
