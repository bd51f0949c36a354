"""The desk: which jobs are admitted, where each one waits, and which runs next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic

from msgspec import Struct

from poolhand.rules import lifecycle
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.backpressure import (
    EvictionIndex,
    Policy,
    QueueFacts,
    Ruling,
    Unbounded,
    evicts,
    rule,
)
from poolhand.rules.queue.entry import E, Timers, WaitingLine
from poolhand.rules.queue.gates import KeyGates, Sessions
from poolhand.rules.queue.idempotency import IdempotencyKeys, may_rerun
from poolhand.rules.queue.ready import Ready
from poolhand.rules.queue.strategy import FairRoundRobin, Lifo, Strategy


class Admitted(Struct, Generic[E], frozen=True):
    """The new job is accepted; `victim` is the entry evicted for it."""

    victim: E | None = None


class Joined(Struct, Generic[E], frozen=True):
    """The new job's idempotency key already belongs to this entry, perhaps of another call."""

    entry: E


class Parked(Struct, frozen=True):
    """The queue is full: the new job's submitter is blocked until there is room."""


class Rejected(Struct, frozen=True):
    """The new job is recorded as rejected and is not queued."""


class RefusedEntry(Struct, frozen=True):
    """The new job's submitter gets an error, and nothing is stored."""


Verdict = Admitted[E] | Joined[E] | Parked | Rejected | RefusedEntry

_PARKED = Parked()
_REJECTED = Rejected()
_REFUSED = RefusedEntry()


class Desk(Generic[E]):
    """The pure state machine behind every pool and store: it only decides and remembers.

    A waiting entry is in exactly one place: scheduled (its time has not come), blocked (its session
    or its key is busy) or queued (it only waits for a slot). Every change moves the affected
    entries at once, so no wake-up can be lost. `now` is the driver's clock and never goes back.
    The driver runs the entries that `next` returns, then calls `finish` or `give_back`, and
    `vacate` when the slot is really free. It reads `admitted` for entries of blocked submitters
    that were admitted, and calls `tick` at `wake_at`, or when `late` holds entries that expired
    before they could run. `taken` is the verdict on a new job that evicted no other.
    """

    def __init__(
        self,
        strategy: Strategy,
        policy: Policy,
        slots: int | None,
        keys: IdempotencyKeys[E],
        max_per_key: int | None = None,
    ) -> None:
        self.policy = policy
        self.slots = slots
        self.paused = False
        self.running = 0
        self.waiting = 0
        self.blocked_submitters: WaitingLine[E] = WaitingLine()
        self.admitted: list[E] = []
        self.late: list[E] = []
        self.sessions: Sessions[E] = Sessions()
        self.gates: KeyGates[E] | None = (
            None if max_per_key is None else KeyGates(max_per_key, strategy)
        )
        self._keys = keys
        self._ready: Ready[E] = Ready(strategy)
        self._due: Timers[E] = Timers()
        self._expiries: Timers[E] = Timers()
        self._openings: Timers[E] = Timers()
        self._evictions: EvictionIndex[E] | None = EvictionIndex() if evicts(policy) else None
        self._by_key = isinstance(strategy, FairRoundRobin)
        self._bounded = not isinstance(policy, Unbounded)
        # Lanes keep their own order; only these need the order of arrival across all lanes.
        gated = self._evictions is not None or self.gates is not None
        self._numbered = gated or isinstance(strategy, Lifo)
        self._plain = not self._bounded and not self._numbered
        self.limit = float("inf") if slots is None else slots
        self.taken: Admitted[E] = Admitted()
        self._arrivals = 0

    def __iter__(self) -> Iterator[E]:
        """Iterate over all waiting entries."""
        yield from self._ready
        yield from self.sessions
        if self.gates is not None:
            yield from self.gates
        yield from self._due

    @property
    def queued(self) -> int:
        return self._ready.size

    @property
    def scheduled(self) -> int:
        return len(self._due)

    @property
    def blocked(self) -> int:
        return self.waiting - self._ready.size - len(self._due)

    @property
    def backlog(self) -> int:
        """Count the jobs that only need a slot; with one free, blocked submitters do not count."""
        return self._ready.size + (0 if self.has_slot else self.blocked_submitters.size)

    @property
    def has_slot(self) -> bool:
        return self.running < self.limit

    def admit(self, entry: E, now: float, rerun: bool = False) -> Verdict[E]:
        """Decide about a new job and place it; `rerun`: a key without success may run again."""
        job = entry.job
        if self._plain and entry.window is None and job.session is job.idempotency_key is None:
            # The fast path of nearly every job: no bound, no key, no session, no gate.
            self.waiting += 1
            entry.ready_at = now
            self._ready.add(entry)
            return self.taken
        if job.idempotency_key is not None:
            owner = self._keys.find(job, now)
            if owner is not None and not (rerun and may_rerun(owner, entry)):
                return Joined(owner)
        if self._numbered or job.session is not None:
            self._arrivals += 1
            entry.seq = self._arrivals
        ruling = rule(self.policy, self._facts(entry, now)) if self._bounded else Ruling.TAKE
        match ruling:
            case Ruling.TAKE:
                self._accept(entry, now)
                return self.taken
            case Ruling.EVICT:
                victim = self._victim(entry)
                # In this order: otherwise the victim's lane could be empty in between and lose
                # its rank.
                self._accept(entry, now)
                self.remove(victim, now)
                return Admitted(victim)
            case Ruling.PARK:
                self._block_submitter(entry, now)
                return _PARKED
            case Ruling.REJECT:
                return _REJECTED
            case Ruling.REFUSE:
                return _REFUSED

    def next(self, now: float) -> E | None:
        """Remove and return the entry that runs next; it takes a slot."""
        if self.paused or self.running >= self.limit:
            return None
        entry = self._ready.take()
        while entry is not None and entry.window is not None and entry.window.closed(now):
            self._keep_late(entry, now)
            entry = self._ready.take()
        if entry is None:
            return None
        if self._evictions is None and entry.window is None:
            self.waiting -= 1
        else:
            self._stop_waiting(entry)
        self.running += 1
        if self.gates is not None:
            self.gates.start(entry)
        if self.blocked_submitters.size:
            self._admit_blocked_submitters(now)
        return entry

    def finish(self, entry: E, now: float) -> None:
        """Record that a job is final: start its session's next turn and the TTL of its key.

        A driver may skip this for a job that has neither.
        """
        if entry.job.idempotency_key is not None:
            self._keys.finish(entry, now)
        successor = self.sessions.leave(entry)
        if successor is not None:
            self._pass_key_gate(successor, now)
        if self.blocked_submitters.size:
            self._admit_blocked_submitters(now)

    def give_back(self, entry: E, opens_at: float, now: float) -> None:
        """Let a job wait for its next attempt, without admission; it keeps its session."""
        self._start_waiting(entry)
        if opens_at > now:
            self._due.add(opens_at, entry)
        else:
            self._place(entry, now)

    def vacate(self, key: str, now: float) -> None:
        """Free a slot, and the permit of the key whose job was in it."""
        self.running -= 1
        if self.gates is not None:
            self._requeue(self.gates.vacate(key))
        if self.blocked_submitters.size:
            self._admit_blocked_submitters(now)

    def remove(self, entry: E, now: float) -> None:
        """Remove a waiting entry from its place; the driver then reports its new status."""
        match entry.job.status:
            case Status.QUEUED:
                if self.gates is not None:
                    self._requeue(self.gates.withdraw(entry))
                self._ready.remove(entry)
            case Status.BLOCKED if entry.job.blocked_on == "key" and self.gates is not None:
                self.gates.forget(entry)
            case Status.BLOCKED:
                entry.place.remove(entry)
            case _:
                self._due.remove(entry)
        self._stop_waiting(entry)
        if self.blocked_submitters.size:
            self._admit_blocked_submitters(now)

    def withdraw(self, entry: E, now: float) -> None:
        """Remove the entry of a blocked submitter, and release its idempotency key."""
        self._leave_blocked_submitters(entry)
        self._admit_blocked_submitters(now)

    def withdraw_all(self) -> list[E]:
        """Remove the entries of all blocked submitters."""
        gone = list(self.blocked_submitters)
        for entry in gone:
            self._leave_blocked_submitters(entry)
        return gone

    def resume(self, now: float) -> None:
        """Return entries from `next` again."""
        self.paused = False
        self._admit_blocked_submitters(now)

    def tick(self, now: float) -> list[E]:
        """Queue entries that are due; remove and return entries that have expired."""
        for entry in self._due.due(now):
            self._place(entry, now)
        for entry in list(self._expiries.due(now)):
            self.remove(entry, now)
            self.late.append(entry)
        self._openings.drop_due(now)
        if self.blocked_submitters.size:
            self._admit_blocked_submitters(now)
        late, self.late = self.late, []
        return late

    def wake_at(self) -> float | None:
        """Return when `tick` has something to do next; the time may be in the past."""
        moments = (self._due.first(), self._expiries.first(), self._openings.first())
        return min((moment for moment in moments if moment is not None), default=None)

    def resize(self, slots: int | None, now: float) -> None:
        """Change the number of slots; running entries keep theirs."""
        self.slots = slots
        self.limit = float("inf") if slots is None else slots
        self._admit_blocked_submitters(now)

    def ahead_of(self, entry: E) -> int:
        """Count the entries that run before a queued one."""
        return self._ready.ahead_of(entry)

    def holders_of_key(self, key: str, running: Iterable[E]) -> Iterator[E]:
        """Iterate over the entries that hold the permits of a key."""
        yield from (one for one in running if one.job.key == key)
        if self.gates is not None:
            yield from self.gates.queued(key)

    def due_of(self, entry: E) -> float | None:
        return self._due.at(entry)

    def _facts(self, entry: E, now: float) -> QueueFacts:
        at_once = self._starts_at_once(entry, now)
        return QueueFacts(self.running, self.waiting, self.slots, at_once, len(self._due))

    def _starts_at_once(self, entry: E, now: float) -> bool:
        first_in_line = not self.blocked_submitters.size or self.blocked_submitters.first is entry
        if self.paused or self._ready.size or not self.has_slot or not first_in_line:
            return False
        window, job = entry.window, entry.job
        if window is not None and window.opens_at is not None and window.opens_at > now:
            return False
        gate_open = self.gates is None or self.gates.is_open(job.key)
        return gate_open and self.sessions.holder(job) is None

    def _accept(self, entry: E, now: float) -> None:
        self._keys.hold(entry)
        self._start_waiting(entry)
        window = entry.window
        if window is not None and window.opens_at is not None and window.opens_at > now:
            entry.job = lifecycle.place(entry.job, Status.SCHEDULED)
            self._due.add(window.opens_at, entry)
        else:
            self._place(entry, now)

    def _place(self, entry: E, now: float) -> None:
        """Move an entry through the session and key gates, as far as they are open."""
        if self.sessions.enter(entry):
            self._pass_key_gate(entry, now)
        else:
            entry.job = lifecycle.place(entry.job, Status.BLOCKED, "session")

    def _pass_key_gate(self, entry: E, now: float) -> None:
        entry.ready_at = now
        if self.gates is None:
            self._queue(entry)
            return
        behind = self.gates.enter(entry)
        if behind is not entry:
            self._queue(entry)
        if behind is not None:
            if behind is not entry:
                self._ready.remove(behind)
            self.gates.wait(behind, first=behind is not entry)
            behind.job = lifecycle.place(behind.job, Status.BLOCKED, "key")

    def _block_submitter(self, entry: E, now: float) -> None:
        self._keys.reserve(entry)
        self.blocked_submitters.append(entry)
        window = entry.window
        if window is not None and window.opens_at is not None and window.opens_at > now:
            # When its time comes it could start at once: then a free slot may be enough.
            self._openings.add(window.opens_at, entry)

    def _leave_blocked_submitters(self, entry: E) -> None:
        self.blocked_submitters.remove(entry)
        self._openings.remove(entry)
        self._keys.release(entry)

    def _keep_late(self, entry: E, now: float) -> None:
        """Store an entry that had expired when it was next, so that `tick` reports it."""
        if self.gates is not None:
            self._requeue(self.gates.withdraw(entry))
        self._stop_waiting(entry)
        self.late.append(entry)
        if self.blocked_submitters.size:
            self._admit_blocked_submitters(now)

    def _requeue(self, entry: E | None) -> None:
        if entry is not None:
            self._queue(entry)

    def _queue(self, entry: E, first: bool = False) -> None:
        if entry.job.status is not Status.QUEUED:
            entry.job = lifecycle.place(entry.job, Status.QUEUED)
        self._ready.add(entry, first)

    def _start_waiting(self, entry: E) -> None:
        self.waiting += 1
        if self._evictions is not None:
            self._evictions.enter(self._eviction_key(entry.job), entry)
        if entry.window is not None and entry.window.closes_at is not None:
            self._expiries.add(entry.window.closes_at, entry)

    def _stop_waiting(self, entry: E) -> None:
        self.waiting -= 1
        if self._evictions is not None:
            self._evictions.leave(self._eviction_key(entry.job), entry)
        if entry.window is not None:
            self._expiries.remove(entry)

    def _victim(self, newcomer: E) -> E:
        assert self._evictions is not None
        return self._evictions.victim(self._eviction_key(newcomer.job))

    def _eviction_key(self, job: Job) -> str:
        return job.key if self._by_key else ""

    def _admit_blocked_submitters(self, now: float) -> None:
        """Admit entries of blocked submitters, first come first served, while there is room."""
        while (entry := self.blocked_submitters.first) is not None:
            if rule(self.policy, self._facts(entry, now)) is not Ruling.TAKE:
                return
            self._leave_blocked_submitters(entry)
            self._accept(entry, now)
            self.admitted.append(entry)
