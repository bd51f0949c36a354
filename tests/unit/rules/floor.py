"""A floor: drives a desk as a pool does, without a clock, a loop or a slot of its own."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec.structs import replace

from poolhand.rules.job import Job, Status
from poolhand.rules.queue.backpressure import Policy, unbounded
from poolhand.rules.queue.desk import Admitted, Desk, Rejected, Verdict
from poolhand.rules.queue.entry import Entry, IdempotencyKeys, Window
from poolhand.rules.queue.strategy import Strategy, fifo

AT = datetime(2026, 1, 1, tzinfo=UTC)


def new_job(
    name: str = "job",
    *,
    status: Status = Status.QUEUED,
    key: str = "",
    priority: int = 0,
    session: str | None = None,
    tenant: str | None = None,
    idempotency_key: str | None = None,
    attempts: int = 0,
) -> Job:
    return Job(
        id=name,
        pool="pool",
        pool_id="pool-1",
        status=status,
        submitted_at=AT,
        key=key,
        priority=priority,
        session=session,
        tenant=tenant,
        idempotency_key=idempotency_key,
        attempts=attempts,
    )


def new_entry(
    name: str = "job",
    *,
    key: str = "",
    priority: int = 0,
    session: str | None = None,
    tenant: str | None = None,
    idempotency_key: str | None = None,
    seq: int = 0,
) -> Entry:
    entry = Entry(
        new_job(
            name,
            key=key,
            priority=priority,
            session=session,
            tenant=tenant,
            idempotency_key=idempotency_key,
        )
    )
    entry.seq = seq
    return entry


def names(entries: Iterable[Entry]) -> list[str]:
    return [entry.job.id for entry in entries]


class Floor:
    """Brings entries to a desk, runs what it gives out and tells it what became of them.

    Nothing starts by itself: `start` starts what can, `serve` starts and completes one after the
    other. Entries are named by the caller.
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        policy: Policy | None = None,
        *,
        slots: int | None = 1,
        max_per_key: int | None = None,
        key_ttl: float = 1000.0,
        max_keys: int = 1000,
    ) -> None:
        keys: IdempotencyKeys[Entry] = IdempotencyKeys(key_ttl, max_keys)
        self.desk: Desk[Entry] = Desk(
            strategy or fifo(), policy or unbounded(), slots, keys, max_per_key
        )
        self.now = 0.0
        self.running: list[Entry] = []
        self.over: list[Entry] = []

    def submit(
        self,
        name: str,
        *,
        key: str = "",
        priority: int = 0,
        session: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
        opens_at: float | None = None,
        closes_at: float | None = None,
    ) -> Entry:
        """Bring a new entry to the desk and return it, whatever the verdict was."""
        entry = new_entry(
            name,
            key=key,
            priority=priority,
            session=session,
            tenant=tenant,
            idempotency_key=idempotency_key,
        )
        if opens_at is not None or closes_at is not None:
            entry.window = Window(opens_at, closes_at)
        self.offer(entry)
        return entry

    def offer(self, entry: Entry, rerun: bool = False) -> Verdict[Entry]:
        """Bring an entry to the desk and do what its verdict asks for."""
        verdict = self.desk.admit(entry, self.now, rerun)
        match verdict:
            case Admitted(victim=victim) if victim is not None:
                self.end(victim, Status.REJECTED)
            case Rejected():
                self.end(entry, Status.REJECTED)
            case _:
                pass
        return verdict

    def start(self) -> list[Entry]:
        """Start what can start and return it in that order."""
        started = []
        while (entry := self.desk.next(self.now)) is not None:
            entry.job = replace(
                entry.job, status=Status.RUNNING, attempts=entry.job.attempts + 1, blocked_on=None
            )
            self.running.append(entry)
            started.append(entry)
        return started

    def occupy(self) -> Entry:
        """Let an entry of a key of its own take a slot."""
        blocker = self.submit("blocker", key="blocker")
        assert self.start() == [blocker]
        return blocker

    def complete(self, entry: Entry) -> None:
        self.running.remove(entry)
        self.end(entry, Status.COMPLETED)
        self.desk.vacate(entry.job.key, self.now)

    def fail(self, entry: Entry) -> None:
        self.running.remove(entry)
        self.end(entry, Status.FAILED)
        self.desk.vacate(entry.job.key, self.now)

    def retry(self, entry: Entry, after: float = 0.0) -> None:
        """Let a running entry fail and wait for its next attempt."""
        self.running.remove(entry)
        entry.job = replace(entry.job, status=Status.SCHEDULED)
        self.desk.give_back(entry, self.now + after, self.now)
        self.desk.vacate(entry.job.key, self.now)

    def cancel(self, entry: Entry) -> None:
        """Take a waiting entry out."""
        self.desk.remove(entry, self.now)
        self.end(entry, Status.CANCELLED)

    def wait_until(self, now: float) -> list[Entry]:
        """Move the clock and return what has expired by then."""
        self.now = now
        late = self.desk.tick(now)
        for entry in late:
            self.end(entry, Status.EXPIRED)
        return late

    def end(self, entry: Entry, status: Status) -> None:
        entry.job = replace(entry.job, status=status, blocked_on=None)
        self.desk.finish(entry, self.now)
        self.over.append(entry)

    def serve(self) -> list[str]:
        """Start and complete everything, the oldest running first; return the names as started."""
        served = []
        while (started := names(self.start())) or self.running:
            served += started
            if self.running:
                self.complete(self.running[0])
        return served
