"""The desk of a stored pool: it can be queried first, and its rules can change while in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic

from poolhand.rules.job import Job, Status
from poolhand.rules.queue.backpressure import (
    Bounded,
    FailFast,
    OnFull,
    Policy,
    QueueFacts,
    Ruling,
    rule,
)
from poolhand.rules.queue.desk import RERUN, Desk
from poolhand.rules.queue.entry import E
from poolhand.rules.queue.idempotency import IdempotencyKeys
from poolhand.rules.queue.on_busy import BusyResult, OnBusy, meet
from poolhand.rules.queue.strategy import Strategy

NEVER = float("inf")


class StoredDesk(Desk[E]):
    """A desk driven by a store: the store, not the desk, knows when each job is due.

    `news` gets the word "ready" whenever an entry passes the gates into the queue.
    """

    def __init__(
        self,
        strategy: Strategy,
        policy: Policy,
        slots: int | None,
        keys: IdempotencyKeys[E],
        max_per_key: int | None = None,
    ) -> None:
        super().__init__(strategy, policy, slots, keys, max_per_key)
        self.rank = (strategy, max_per_key)
        self.news: set[str] = set()

    def promote(self, entry: E, now: float) -> None:
        """Place a scheduled entry whose time has come."""
        self._due.remove(entry)
        self._place(entry, now)

    def set_aside(self, entry: E, now: float) -> None:
        """Park a job that was not started under its cause, without a time, and refund its lane.

        It keeps its session; the driver vacates its slot, and thereby the permit of its key.
        """
        self._start_waiting(entry)
        self._due.add(NEVER, entry)
        self._ready.refund(entry.job.key)

    def take_aside(self, entry: E, now: float) -> bool:
        """Start an entry that was set aside, if a slot and a permit of its key are free."""
        if self.paused or not self.has_slot:
            return False
        if self.gates is not None and not self.gates.is_open(entry.job.key):
            return False
        self._due.remove(entry)
        self._stop_waiting(entry)
        self.running += 1
        if self.gates is not None:
            self.gates.start_at_once(entry)
        self._ready.charge(entry.job.key)
        if self.parked.size:
            self._admit_parked(now)
        return True

    def accept(self, entry: E, now: float) -> None:
        """Accept a new job, whatever the policy decides."""
        self._accept(entry, now)

    def welcome(self, now: float) -> list[E]:
        """Admit blocked submitters where there is room; return all admitted since the last call."""
        if self.parked.size:
            self._admit_parked(now)
        admitted, self.admitted = self.admitted, []
        return admitted

    def dismiss(self, entry: E) -> None:
        """Remove the entry of a blocked submitter; `welcome` admits those behind it."""
        self._leave_parking(entry)

    def joined(self, job: Job, rerun: bool, now: float) -> E | None:
        """Return the entry that already owns the key of a new job."""
        owner = self._keys.find(job, now)
        return None if owner is None or (rerun and owner.job.status in RERUN) else owner

    def meet(self, job: Job, on_busy: OnBusy) -> BusyResult[E]:
        """Decide about a new job whose session may be busy."""
        return meet(job, on_busy, self.sessions.holder(job), lambda: self.sessions.last(job))

    def facts(self, entry: E, now: float) -> QueueFacts:
        """Return the facts that the ruling on a new job depends on."""
        return self._facts(entry, now)

    def succeed(self, old: StoredDesk[E], entries: Sequence[E], occupied: Iterable[str]) -> None:
        """Take over all entries of another desk of the same pool.

        `entries` are the waiting, running and blocked-submitter entries in order of arrival;
        `occupied` are the keys of all jobs in slots. If the strategy or the key cap changed,
        entries that are queued or wait for their key are placed again, in order of arrival.
        """
        self.paused, self.running, self.waiting = old.paused, old.running, old.waiting
        self.parked, self.admitted, self.sessions = old.parked, old.admitted, old.sessions
        self._due, self._expiries, self._openings = old._due, old._expiries, old._openings
        self._arrivals = old._arrivals
        if not old._numbered:
            for self._arrivals, entry in enumerate(entries, 1):
                entry.seq = self._arrivals
        if self.rank == old.rank:
            self._ready, self.gates = old._ready, old.gates
        else:
            self._place_again(entries, occupied)
        if self._crowd is not None:
            for entry in entries:
                if entry.place is not self.parked and entry.job.status.waiting:
                    self._crowd.enter(self._crowd_key(entry.job), entry)

    def _place_again(self, entries: Sequence[E], occupied: Iterable[str]) -> None:
        if self.gates is not None:
            for key in occupied:
                self.gates.occupy(key)
        for entry in entries:
            job = entry.job
            ready = job.status is Status.QUEUED and entry.place is not self.parked
            if ready or job.blocked_on == "key":
                entry.before = entry.after = None
                self._pass_key_gate(entry, entry.ready_at)

    def _queue(self, entry: E) -> None:
        self.news.add("ready")
        super()._queue(entry)


def may_refuse(policy: Policy, may_park: bool) -> bool:
    """Return whether a policy ever refuses a new job; `may_park`: its submitter can wait."""
    match policy:
        case FailFast() | Bounded(on_full=OnFull.FAIL_SUBMITTER):
            return True
        case Bounded(on_full=OnFull.BLOCK_SUBMITTER):
            return not may_park
        case _:
            return False


class Trial(Generic[E]):
    """Checks for new jobs, one after the other, whether a desk would refuse them; changes nothing.

    Only for pools that may refuse: they evict nothing, so each accepted job only adds to the
    waiting ones. Once one job could start at once, no later one can: that job is before them.
    """

    def __init__(self, desk: StoredDesk[E], now: float) -> None:
        self.waiting = desk.waiting
        self._desk = desk
        self._now = now
        self._scheduled = 0
        self._queued = False
        self._keys: set[tuple[str | None, str]] = set()

    def refuses(self, entry: E, rerun: bool) -> bool:
        """Return whether a new job would be refused, given that those before it were accepted."""
        job = entry.job
        key = None if job.idempotency_key is None else (job.tenant, job.idempotency_key)
        if key in self._keys or self._desk.joined(job, rerun, self._now) is not None:
            return False
        facts = self._desk.facts(entry, self._now)
        at_once = facts.at_once and not self._queued
        scheduled = facts.scheduled + self._scheduled
        facts = QueueFacts(facts.running, self.waiting, facts.slots, at_once, scheduled)
        if rule(self._desk.policy, facts) is not Ruling.TAKE:
            return True
        self._queued = self._queued or at_once
        self.waiting += 1
        opens_at = None if entry.window is None else entry.window.opens_at
        self._scheduled += opens_at is not None and opens_at > self._now
        if key is not None:
            self._keys.add(key)
        return False
