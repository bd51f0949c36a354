"""The gates before the ready set: one turn at a time per session, and a job cap per key.

A new turn that finds its session busy waits, is refused, cancels the current turn, or is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Generic

from msgspec import Struct

from poolhand.rules.job import Job
from poolhand.rules.queue.entry import E, WaitingLine
from poolhand.rules.queue.ready import Ready
from poolhand.rules.queue.strategy import Lifo, Priority, Strategy, job_rank
from poolhand.rules.streams import session_of


class _Session(WaitingLine[E]):
    """The waiting turns of one session, in submit order, and the turn that holds the session."""

    __slots__ = ("holder",)

    def __init__(self, holder: E) -> None:
        super().__init__()
        self.holder = holder

    def insert(self, entry: E) -> None:
        """Insert a turn behind those that were submitted before it."""
        older = self.last
        while older is not None and older.seq > entry.seq:
            older = older.before
        self.insert_after(entry, older)


class Sessions(Generic[E]):
    """Admits one turn of a session at a time; the turn holds the session until it is final."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str | None, str], _Session[E]] = {}

    def __iter__(self) -> Iterator[E]:
        for session in self._sessions.values():
            yield from session

    def holder(self, job: Job) -> E | None:
        session = None if job.session is None else self._sessions.get((job.tenant, job.session))
        return None if session is None else session.holder

    def last(self, job: Job) -> E | None:
        """Return the last waiting turn of a session."""
        session = None if job.session is None else self._sessions.get((job.tenant, job.session))
        return None if session is None else session.last

    def enter(self, entry: E) -> bool:
        """Admit an entry, or make it wait for its turn; return whether it was admitted."""
        job = entry.job
        if job.session is None:
            return True
        session = self._sessions.get((job.tenant, job.session))
        if session is None:
            self._sessions[job.tenant, job.session] = _Session(entry)
        elif session.holder is not entry:
            session.insert(entry)
            return False
        return True

    def leave(self, entry: E) -> E | None:
        """End a turn and return the entry that is next."""
        job = entry.job
        if job.session is None:
            return None
        session = self._sessions.get((job.tenant, job.session))
        if session is None or session.holder is not entry:
            return None
        successor = session.first
        if successor is None:
            del self._sessions[job.tenant, job.session]
        else:
            session.remove(successor)
            session.holder = successor
        return successor


class Gate(Generic[E]):
    """The state of one key: `held` permits, the queued entries with a permit, the waiting without.

    The heap finds the lowest-ranked queued entry; it may hold stale items.
    """

    __slots__ = ("heap", "held", "queued", "waiting")

    def __init__(self, strategy: Strategy) -> None:
        self.held = 0
        self.queued: dict[E, int] = {}
        self.heap: list[tuple[float, float, int, E]] = []
        self.waiting: Ready[E] = Ready(strategy)

    def queue(self, entry: E, rank: tuple[float, int], number: int) -> None:
        self.queued[entry] = number
        heappush(self.heap, (-rank[0], -rank[1], number, entry))
        if len(self.heap) > 2 * len(self.queued) + 32:
            self.heap = [item for item in self.heap if self.queued.get(item[3]) == item[2]]
            heapify(self.heap)

    def worst(self) -> E | None:
        while self.heap:
            _, _, number, entry = self.heap[0]
            if self.queued.get(entry) == number:
                return entry
            heappop(self.heap)
        return None


class KeyGates(Generic[E]):
    """Lets at most `cap` jobs of a key be queued or running; the others wait in queue order.

    A job without a key needs no permit.
    """

    def __init__(self, cap: int, strategy: Strategy) -> None:
        self.cap = cap
        self._strategy = strategy
        self._jumps = isinstance(strategy, Lifo | Priority)
        self._count = 0
        self._gates: dict[str, Gate[E]] = {}

    def __iter__(self) -> Iterator[E]:
        for gate in self._gates.values():
            yield from gate.waiting

    def is_open(self, key: str) -> bool:
        if not key:
            return True
        gate = self._gates.get(key)
        return gate is None or gate.held < self.cap

    def queued(self, key: str) -> tuple[E, ...]:
        """Return the entries of a key that are queued."""
        gate = self._gates.get(key) if key else None
        return () if gate is None else tuple(gate.queued)

    def ahead_of(self, entry: E) -> int:
        gate = self._gates[entry.job.key]
        return gate.waiting.ahead_of(entry) + len(gate.queued)

    def enter(self, entry: E) -> E | None:
        """Admit an entry and return None, or return the entry that must wait instead.

        A new job that outranks a queued job of its key takes that job's permit: a key cap never
        makes an urgent job wait behind a less urgent one that has not started.
        """
        if not entry.job.key:
            return None
        gate = self._gates.get(entry.job.key)
        if gate is None:
            gate = self._gates[entry.job.key] = Gate(self._strategy)
        if gate.held < self.cap:
            gate.held += 1
            self._let_through(gate, entry)
            return None
        worst = gate.worst() if self._jumps else None
        if worst is None or self._rank(worst)[0] <= self._rank(entry)[0]:
            return entry
        del gate.queued[worst]
        self._let_through(gate, entry)
        return worst

    def wait(self, entry: E, first: bool) -> None:
        """Make an entry wait here; one that gave up its permit goes first among its equals."""
        self._gates[entry.job.key].waiting.add(entry, first)

    def forget(self, entry: E) -> None:
        """Remove an entry that waits here."""
        self._gates[entry.job.key].waiting.remove(entry)

    def start(self, entry: E) -> None:
        """Record that a queued entry started; it keeps its permit."""
        if entry.job.key:
            del self._gates[entry.job.key].queued[entry]

    def withdraw(self, entry: E) -> E | None:
        """Remove a queued entry and return the entry that gets its permit."""
        self.start(entry)
        return self.vacate(entry.job.key)

    def occupy(self, key: str) -> None:
        """Record that a job of a key runs, even beyond the cap."""
        if not key:
            return
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate(self._strategy)
        gate.held += 1

    def start_at_once(self, entry: E) -> None:
        """Record that an entry started without being queued; it takes a permit."""
        self.occupy(entry.job.key)

    def keep(self, entry: E) -> bool:
        """Queue a running entry under its permit, unless the cap was lowered below those in use.

        Its permit counts twice until its slot is vacated.
        """
        if not entry.job.key:
            return True
        gate = self._gates[entry.job.key]
        if gate.held > self.cap:
            return False
        gate.held += 1
        self._let_through(gate, entry)
        return True

    def vacate(self, key: str) -> E | None:
        """Free a permit and return the entry that gets it next."""
        if not key:
            return self.next_without_key()
        gate = self._gates[key]
        # If the cap was lowered while jobs ran, permits above it are not reused.
        successor = gate.waiting.take() if gate.held <= self.cap else None
        if successor is not None:
            self._let_through(gate, successor)
            return successor
        gate.held -= 1
        if not gate.held:
            del self._gates[key]
        return None

    def next_without_key(self) -> E | None:
        """Return an entry that waits here without a key; only an older version leaves one."""
        return None

    def _let_through(self, gate: Gate[E], entry: E) -> None:
        self._count += 1
        gate.queue(entry, self._rank(entry), self._count)

    def _rank(self, entry: E) -> tuple[float, int]:
        return job_rank(self._strategy, entry)


TURN = "turn"  # the kind of a message in the inbox of a waiting turn


class OnBusy(StrEnum):
    """What happens to a new turn whose session is busy.

    It waits; it is refused; it cancels the current turn, whose saved state remains or is rolled
    back; or it is merged into a waiting turn.
    """

    ENQUEUE = "enqueue"
    REJECT = "reject"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"
    MERGE = "merge"


class BusyAction(StrEnum):
    """The decision about a new turn."""

    ENTER = "enter"
    REFUSE = "refuse"
    REPLACE = "replace"
    JOIN = "join"


class BusyResult(Struct, Generic[E], frozen=True):
    """The decision about a new turn, and the existing turn it concerns."""

    action: BusyAction
    turn: E | None = None


def resolve_busy(
    job: Job, on_busy: OnBusy, holder: E | None, last: Callable[[], E | None]
) -> BusyResult[E]:
    """Decide about a new turn, given its session's holder; `last` is the last waiting turn."""
    if job.session is None or holder is None:
        return BusyResult(BusyAction.ENTER)
    match on_busy:
        case OnBusy.ENQUEUE:
            return BusyResult(BusyAction.ENTER)
        case OnBusy.REJECT:
            return BusyResult(BusyAction.REFUSE, holder)
        case OnBusy.INTERRUPT | OnBusy.ROLLBACK:
            return BusyResult(BusyAction.REPLACE, holder)
        case OnBusy.MERGE:
            for turn in (last(), holder):
                if turn is not None and _may_be_joined(turn.job, job):
                    return BusyResult(BusyAction.JOIN, turn)
            return BusyResult(BusyAction.ENTER)


def may_use(owner: str | None, user: str | None) -> bool:
    """Return whether a user may use a session of `owner`; None, no user, counts as a user."""
    return owner == user


def wrong_owner(jobs: Iterable[Job], owners: Mapping[str, str | None]) -> Job | None:
    """Return the first job whose session belongs to another user, None where there is none.

    `owners` maps the keys of sessions to their users. A session not in it belongs to the user of
    its first turn.
    """
    begun: dict[str, str | None] = {}
    for job in jobs:
        if job.session is not None:
            key = session_of(job.tenant, job.session)
            owner = owners[key] if key in owners else begun.setdefault(key, job.user)
            if not may_use(owner, job.user):
                return job
    return None


def _may_be_joined(turn: Job, job: Job) -> bool:
    """Return whether a turn has not started, and runs the same task."""
    return turn.status.waiting and turn.started_at is None and turn.name == job.name
