"""The desk of a pool in a store, and the specification of the pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

from msgspec import Struct

from poolhand.rules import lifecycle
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.backpressure import (
    Bounded,
    FailFast,
    OnFull,
    Policy,
    Unbounded,
)
from poolhand.rules.queue.desk import Desk
from poolhand.rules.queue.entry import E
from poolhand.rules.queue.gates import BusyResult, OnBusy, resolve_busy
from poolhand.rules.queue.idempotency import RERUN, IdempotencyKeys
from poolhand.rules.queue.strategy import Priority, Strategy
from poolhand.rules.validation import shown


class PoolSpec(Struct, frozen=True):
    """The rules of one stored pool; without `slots` it has no cap of its own."""

    name: str
    id: str
    slots: int | None = None
    queue: Strategy = Priority()
    backpressure: Policy = Unbounded()
    max_per_key: int | None = None
    key_ttl: float = 86_400.0
    max_keys: int = 100_000


SETTINGS = {
    "max_concurrent": "slots",
    "queue": "queue",
    "backpressure": "backpressure",
    "max_per_key": "max_per_key",
    "key_ttl": "key_ttl",
    "max_keys": "max_keys",
}
"""What is declared of a pool, as users name it, and the field that holds it."""


def differences(old: PoolSpec, new: PoolSpec) -> dict[str, tuple[str, str]]:
    """Return the settings in which two declarations differ, with both values as text."""
    found = {}
    for name, field in SETTINGS.items():
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            found[name] = distinct_texts(before, after)
    return found


def distinct_texts(one: object, other: object) -> tuple[str, str]:
    """Return two different values as two different texts."""
    short = str(one), str(other)
    return short if short[0] != short[1] else (shown(one), shown(other))


def pool_id(scope: str, scope_id: str, name: str) -> str:
    """Return the id of a stored pool: the same in every process that uses this name."""
    digest = sha256("\0".join((scope, scope_id, name)).encode()).hexdigest()
    return f"pool-{digest[:12]}"


def undeclared(name: str) -> PoolSpec:
    """Return the rules of a pool that is not declared: no cap, nothing refused."""
    return PoolSpec(name, pool_id("app", "", name))


NEVER = float("inf")


class StoredDesk(Desk[E]):
    """A desk driven by a store: the store, not the desk, knows when each job is due.

    `topics` gets the word "ready" whenever an entry passes the gates into the queue.
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
        self.topics: set[str] = set()

    def promote(self, entry: E, now: float) -> None:
        """Place a scheduled entry whose time has come."""
        self._due.remove(entry)
        self._place(entry, now)

    def put_back(self, entry: E, ready_at: float) -> None:
        """Queue a job whose attempt was cut off by its process, first among its equals.

        It keeps its session, its age and the permit of its key, and its lane is refunded; the
        driver vacates its slot next.
        """
        self._start_waiting(entry)
        self._ready.refund(entry.job.key)
        if not self.sessions.enter(entry):
            entry.job = lifecycle.place(entry.job, Status.BLOCKED, "session")
        elif self.gates is None or self.gates.keep(entry):
            entry.ready_at = ready_at
            self._queue(entry, first=True)
        else:
            self._pass_key_gate(entry, ready_at)

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
        if self.blocked_submitters.size:
            self._admit_blocked_submitters(now)
        return True

    def accept(self, entry: E, now: float) -> None:
        """Accept a new job, whatever the policy decides."""
        self._accept(entry, now)

    def welcome(self, now: float) -> list[E]:
        """Admit blocked submitters where there is room; return all admitted since the last call."""
        if self.blocked_submitters.size:
            self._admit_blocked_submitters(now)
        admitted, self.admitted = self.admitted, []
        return admitted

    def dismiss(self, entry: E) -> None:
        """Remove the entry of a blocked submitter; `welcome` admits those behind it."""
        self._leave_blocked_submitters(entry)

    def joined(self, job: Job, rerun: bool, now: float) -> E | None:
        """Return the entry that already owns the key of a new job."""
        owner = self._keys.find(job, now)
        return None if owner is None or (rerun and owner.job.status in RERUN) else owner

    def resolve_busy(self, job: Job, on_busy: OnBusy) -> BusyResult[E]:
        """Decide about a new job whose session may be busy."""
        return resolve_busy(
            job, on_busy, self.sessions.holder(job), lambda: self.sessions.last(job)
        )

    def succeed(self, old: StoredDesk[E], entries: Sequence[E], occupied: Iterable[str]) -> None:
        """Take over all entries of another desk of the same pool.

        `entries` are the waiting, running and blocked-submitter entries in order of arrival;
        `occupied` are the keys of all jobs in slots. If the strategy or the key cap changed,
        entries that are queued or wait for their key are placed again, in order of arrival.
        """
        self.paused, self.running, self.waiting = old.paused, old.running, old.waiting
        self.blocked_submitters, self.admitted, self.sessions = (
            old.blocked_submitters,
            old.admitted,
            old.sessions,
        )
        self._due, self._expiries, self._openings = old._due, old._expiries, old._openings
        self._arrivals = old._arrivals
        if not old._numbered:
            for self._arrivals, entry in enumerate(entries, 1):
                entry.seq = self._arrivals
        if self.rank == old.rank:
            self._ready, self.gates = old._ready, old.gates
        else:
            self._place_again(entries, occupied)
        if self._evictions is not None:
            for entry in entries:
                if entry.place is not self.blocked_submitters and entry.job.status.waiting:
                    self._evictions.enter(self._eviction_key(entry.job), entry)

    def _place_again(self, entries: Sequence[E], occupied: Iterable[str]) -> None:
        if self.gates is not None:
            for key in occupied:
                self.gates.occupy(key)
        for entry in entries:
            job = entry.job
            ready = job.status is Status.QUEUED and entry.place is not self.blocked_submitters
            if ready or job.blocked_on == "key":
                entry.before = entry.after = None
                self._pass_key_gate(entry, entry.ready_at)

    def _queue(self, entry: E, first: bool = False) -> None:
        self.topics.add("ready")
        super()._queue(entry, first)


def may_refuse(policy: Policy, may_block: bool) -> bool:
    """Return whether a policy ever refuses a new job; `may_block`: its submitter can wait."""
    match policy:
        case FailFast() | Bounded(on_full=OnFull.FAIL_SUBMITTER):
            return True
        case Bounded(on_full=OnFull.BLOCK_SUBMITTER):
            return not may_block
        case _:
            return False
