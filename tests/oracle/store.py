"""The memory store: all data in this process."""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from poolhand.contract import (
    Added,
    Change,
    Claim,
    ClaimRequest,
    Document,
    Extended,
    Filter,
    Hint,
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
    UserInsertion,
)
from poolhand.errors import Unavailable, Unsupported
from poolhand.rules import audit
from poolhand.rules.job import Status
from poolhand.rules.lifecycle import Keep
from poolhand.rules.queue.stored_desk import PoolSpec
from poolhand.rules.receipts import receipts_of_run
from poolhand.rules.streams import streams_of_document
from poolhand.runtime import Runtime
from poolhand.stores.sql.tables import check_page
from tests.oracle.books import Books
from tests.oracle.documents import MemoryDocuments
from tests.oracle.intake import Intake
from tests.oracle.leases import Leases
from tests.oracle.rows import Pool
from tests.oracle.transaction import MemoryTransaction


class OracleStore:
    """A whole store on one event loop; the desks of its pools decide, its books hold the data."""

    place = "memory://"

    def __init__(self, runtime: Runtime) -> None:
        self._loop: AbstractEventLoop | None = None
        self._books = Books(runtime)
        self._documents = MemoryDocuments()
        self._intake = Intake(self._books)
        self._leases = Leases(self._books, self._documents)
        self._now = runtime.monotonic
        self._hints: dict[object, Hint] = {}

    async def open(self) -> None:
        self._loop = get_running_loop()

    async def close(self) -> None:
        self._loop = None
        self._hints.clear()

    async def check(self) -> None:
        if self._loop is None:
            raise Unavailable("the memory store is not open; await open() first")

    # Pools

    async def declare(self, spec: PoolSpec) -> None:
        self._books.begin()
        pool = self._books.pools.get(spec.name)
        if pool is None:
            self._books.act(audit.CREATE, self._books.open(Pool(spec)), "", "")
        elif pool.spec != spec:
            self._books.declare(pool, spec)
        self._commit()

    async def pools(self, names: Sequence[str] | None = None) -> list[PoolRow]:
        pools = self._books.pools
        return [pool.row() for name, pool in pools.items() if names is None or name in names]

    async def set_pool(
        self,
        pool: str,
        by: str,
        *,
        paused: bool | None = None,
        slots: int | None = None,
        declared: bool = False,
    ) -> None:
        books = self._books
        books.begin()
        kept = books.known(pool)
        if paused is not None:
            books.act(audit.PAUSE if paused else audit.RESUME, kept, by, "")
            kept.desk.paused = paused
        if slots is not None or declared:
            books.act(audit.RESIZE, kept, by, "" if slots is None else str(slots))
            kept.resized = slots
            kept.desk.resize(kept.slots, books.now)
        books.freed.add(kept)
        books.welcome(kept)
        self._commit()

    # Jobs

    async def add(self, batches: Sequence[JobBatch]) -> list[tuple[Added, ...] | Refusal]:
        self._books.begin()
        living = self._leases.living
        answers = self._intake.take([(batch, living(batch.owner)) for batch in batches])
        self._commit()
        return answers

    async def begin(self) -> MemoryTransaction:
        return MemoryTransaction(self, self._intake)

    async def insertion(self, orders: Sequence[JobRequest]) -> UserInsertion:
        raise Unsupported("submit_in: memory:// has no tables to write to; use postgresql://")

    async def replace(
        self,
        changes: Sequence[Change] = (),
        wanted: ClaimRequest | None = None,
        released: Sequence[int] = (),
    ) -> ReplacedJob:
        self._books.begin()
        made = tuple([self._leases.change(change) for change in changes])
        self._leases.release(released)
        claims = () if wanted is None else tuple(self._leases.claim(wanted))
        self._commit()
        return ReplacedJob(made, claims)

    async def cancel(
        self, ids: Sequence[str], by: str, blocked_only: bool = False
    ) -> list[Stored | None]:
        self._books.begin()
        if blocked_only:
            rows = [self._books.rows.get(id) for id in ids]
            blocked = [row for row in rows if row is not None and row.submitter_blocked]
            found = [None if row is None or row in blocked else row.stored() for row in rows]
            self._books.withdraw(*dict.fromkeys(blocked))
        else:
            found = [self._cancel(id, by) for id in ids]
        self._commit()
        return found

    def _cancel(self, id: str, by: str) -> Stored | None:
        row = self._books.rows.get(id)
        if row is None:
            return None
        if row.submitter_blocked:
            self._books.withdraw(row)
            return None
        self._books.cancel(row, by)
        return row.stored()

    # Owners

    async def enroll(self, owner: Owner) -> None:
        self._leases.enroll(owner)

    async def extend(self, owner: str, tokens: Sequence[int]) -> Extended:
        return self._leases.extend(owner, tokens)

    async def leases(self) -> list[Lease]:
        return self._leases.all()

    async def expire_owner(self, owner: str, renewal: int) -> list[Claim]:
        self._books.begin()
        claims = self._leases.expire_owner(owner, renewal)
        self._commit()
        return claims

    # Views

    async def get(self, ids: Sequence[str], calls: bool = False) -> list[Stored | None]:
        rows = map(self._books.rows.get, ids)
        return [None if row is None else row.stored(calls) for row in rows]

    async def find(self, which: Filter, after: int | None = None, limit: int = 100) -> JobPage:
        check_page(after, limit)
        numbered, newest = self._books.numbered, self._books.numbers
        if after is not None:
            newest = min(newest, after - 1)
        oldest = next(iter(numbered), newest + 1)
        rows = map(numbered.get, range(newest, oldest - 1, -1))
        fitting = (
            row for row in rows if row and not row.submitter_blocked and row.is_one_of(which)
        )
        found = list(islice(fitting, limit + 1))
        last = found[limit - 1].number if len(found) > limit else None
        return JobPage(tuple([row.stored() for row in found[:limit]]), last)

    async def count(self, which: Filter) -> Mapping[Status, int]:
        rows = self._books.rows.values()
        return Counter(
            row.job.status for row in rows if not row.submitter_blocked and row.is_one_of(which)
        )

    async def users_of(self, sessions: Sequence[str]) -> Mapping[str, str | None]:
        # Its jobs have no users, so every user may use every session.
        return {}

    # Time

    async def causes(self) -> Mapping[str, Mapping[str, int]]:
        found: dict[str, dict[str, int]] = {}
        rows = self._books.numbered.values()
        jobs = (row.job for row in rows if row.job.status is Status.SCHEDULED)
        for job in sorted(jobs, key=lambda job: (job.pool, job.waits_for or "")):
            if job.waits_for is not None:
                counts = found.setdefault(job.pool, {})
                counts[job.waits_for] = counts.get(job.waits_for, 0) + 1
        return found

    async def wake(self, cause: str, by: str, limit: int = 1000) -> int:
        self._books.begin()
        woken = self._books.wake(cause, by, limit)
        self._commit()
        return woken

    async def promote(self, limit: int = 1000) -> Promoted:
        books = self._books
        books.begin()
        moved = books.promote(limit)
        expired = books.expire(limit)
        for pool in books.pools.values():
            books.welcome(pool)
        self._commit()
        return Promoted(moved, expired, books.next_in())

    async def prune(self, keep: Keep, limit: int = 1000) -> int:
        self._books.begin()
        for key in self._documents.sweep(self._books.now):
            self._books.log.forget(streams_of_document(key))
        count = self._books.prune(keep, limit)
        self._forget_runs()
        return count

    async def unheld(self, free: bool = False) -> list[tuple[str, str]]:
        return []

    async def erase(
        self, ids: Sequence[str], streams: Sequence[str], by: str, documents: Sequence[str] = ()
    ) -> list[str]:
        self._books.begin()
        self._books.log.forget(streams)
        gone = self._books.erase(ids, by)
        self._forget_runs()
        self._documents.erase(documents, self._books.now)
        return gone

    def _forget_runs(self) -> None:
        for run in self._books.forgotten_runs():
            self._documents.forget_all(receipts_of_run(run))

    # Documents and log

    async def get_document(self, key: str) -> Document | None:
        return self._documents.get(key, self._now())

    async def put(
        self, puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
    ) -> tuple[int, ...] | None:
        if token is not None and not self._leases.is_good(token):
            return None
        versions = self._documents.put(puts, self._now())
        if versions is not None and log:
            self._books.begin()
            self._books.log.append(log, self._books.at)
        return versions

    async def scan(self, prefix: str, after: str = "", limit: int = 100) -> list[str]:
        return self._documents.scan(prefix, after, limit, self._now())

    async def append(self, lines: Sequence[LogLine]) -> frozenset[int]:
        asked = {line.token for line in lines if line.token is not None}
        lost = frozenset(token for token in asked if not self._leases.is_good(token))
        self._books.begin()
        self._books.log.append([one for one in lines if one.token not in lost], self._books.at)
        return lost

    async def read(
        self, stream: str, after: int = 0, limit: int = 1000, kind: str = ""
    ) -> list[LogEntry]:
        return self._books.log.read(stream, after, limit, kind)

    async def trim(self, stream: str, before: int) -> int:
        return self._books.log.trim(stream, before)

    # Signals

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        place = object()
        self._hints[place] = hint

        def end() -> None:
            self._hints.pop(place, None)

        return end

    def publish(self, topic: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            for place in self._hints:
                self._loop.call_soon(self._tell, place, topic)

    def _tell(self, place: object, topic: str) -> None:
        hint = self._hints.get(place)
        if hint is not None:
            hint(topic)

    def _commit(self) -> None:
        """End a verb: send its topics."""
        for topic in self._books.news():
            self.publish(topic)
