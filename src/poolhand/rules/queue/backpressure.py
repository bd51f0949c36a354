"""Backpressure: what happens to a submit when the pool is full, and which job is evicted."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, StrEnum, auto
from heapq import heapify, heappop, heappush
from typing import Generic

from msgspec import Struct

from poolhand.misuse import explain_misuse
from poolhand.rules.queue.entry import E
from poolhand.rules.validation import (
    COUNT,
    SECONDS,
    OptionRule,
    Seconds,
    not_allowed,
    raise_faults,
    shown,
    to_seconds,
)

_DEPTH = OptionRule(COUNT.fits, f"{COUNT.text} (use fail_fast() for a pool that keeps no queue)")


class OnFull(StrEnum):
    """What a bounded queue does with a job when it is full."""

    BLOCK_SUBMITTER = "block_submitter"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    FAIL_SUBMITTER = "fail_submitter"


class Unbounded(Struct, frozen=True, tag="unbounded", tag_field="kind"):
    """Queue everything."""

    def __str__(self) -> str:
        return "unbounded"


class Bounded(Struct, frozen=True, tag="bounded", tag_field="kind"):
    """Queue up to `max_depth` waiting jobs."""

    max_depth: int
    on_full: OnFull = OnFull.BLOCK_SUBMITTER
    wait_timeout: float | None = None

    def __str__(self) -> str:
        return f"bounded({self.max_depth}, {self.on_full})"


class FailFast(Struct, frozen=True, tag="fail_fast", tag_field="kind"):
    """Have no queue."""

    def __str__(self) -> str:
        return "fail_fast"


class RingBuffer(Struct, frozen=True, tag="ring_buffer", tag_field="kind"):
    """Keep the newest `max_depth` waiting jobs."""

    max_depth: int

    def __str__(self) -> str:
        return f"ring_buffer({self.max_depth})"


Policy = Unbounded | Bounded | FailFast | RingBuffer


class Ruling(Enum):
    """The decision about a new job."""

    TAKE = auto()
    PARK = auto()
    EVICT = auto()
    REJECT = auto()
    REFUSE = auto()


class QueueFacts(Struct, frozen=True):
    """The facts a ruling depends on. `slots` is None without a cap; `at_once`: it could start now.

    `scheduled` counts the waiting jobs whose time has not come.
    """

    running: int
    waiting: int
    slots: int | None
    at_once: bool
    scheduled: int = 0


def rule(policy: Policy, facts: QueueFacts) -> Ruling:
    """Decide about a new job; every store and every pool calls this function."""
    match policy:
        case Unbounded():
            return Ruling.TAKE
        case FailFast():
            wanting = facts.running + facts.waiting - facts.scheduled
            free = facts.slots is None or wanting < facts.slots
            return Ruling.TAKE if free else Ruling.REFUSE
        case RingBuffer(max_depth=depth):
            return Ruling.TAKE if _has_place(depth, facts) else Ruling.EVICT
        case Bounded(max_depth=depth, on_full=on_full):
            return Ruling.TAKE if _has_place(depth, facts) else _WHEN_FULL[on_full]


_WHEN_FULL = {
    OnFull.BLOCK_SUBMITTER: Ruling.PARK,
    OnFull.DROP_OLDEST: Ruling.EVICT,
    OnFull.DROP_NEWEST: Ruling.REJECT,
    OnFull.FAIL_SUBMITTER: Ruling.REFUSE,
}


def _has_place(depth: int, facts: QueueFacts) -> bool:
    # Retries return without admission and may fill the queue beyond its depth; the sum of both
    # bounds stops new jobs that could start at once from growing the pool past them.
    # A pool that shrinks may run more jobs than it has slots: those count as places too.
    places = None if facts.slots is None else max(facts.slots, facts.running) + depth
    within = places is None or facts.running + facts.waiting < places
    return within and (facts.at_once or facts.waiting < depth)


def capacity(policy: Policy) -> int | None:
    """Return how many jobs may wait, None without a bound."""
    match policy:
        case Unbounded():
            return None
        case FailFast():
            return 0
        case RingBuffer(max_depth=depth) | Bounded(max_depth=depth):
            return depth


def evicts(policy: Policy) -> bool:
    """Return whether this policy ever evicts a waiting job."""
    return isinstance(policy, RingBuffer) or (
        isinstance(policy, Bounded) and policy.on_full is OnFull.DROP_OLDEST
    )


def drop_name(policy: Policy) -> str:
    """Return the name under which a job dropped by this policy is recorded."""
    return policy.on_full.value if isinstance(policy, Bounded) else "ring_buffer"


def drop_reason(policy: Policy) -> str:
    """Return the reason recorded for a job dropped by this policy."""
    if isinstance(policy, Bounded):
        return f"{policy.on_full.value}_queue_full"
    return "ring_buffer_drop_oldest"


def unbounded() -> Policy:
    """Queue everything; memory is the only bound."""
    return Unbounded()


@explain_misuse
def bounded(
    max_depth: int,
    on_full: str = OnFull.BLOCK_SUBMITTER,
    wait_timeout: Seconds | None = None,
) -> Policy:
    """Let at most `max_depth` jobs wait; `on_full` decides what happens to the next one.

    `wait_timeout` limits how many seconds a blocked submitter waits before PoolFull.
    """
    faults, seconds = _DEPTH.faults("max_depth", max_depth), to_seconds(wait_timeout)
    if on_full not in list(OnFull):
        names = ", ".join(repr(str(one)) for one in OnFull)
        faults.append(not_allowed("on_full", on_full, f"one of {names}"))
    elif seconds is not None and on_full != OnFull.BLOCK_SUBMITTER:
        faults.append(f"wait_timeout={seconds!r} needs on_full='block_submitter'")
    faults += SECONDS.or_none().faults("wait_timeout", seconds)
    raise_faults(f"bounded({shown(max_depth)})", faults)
    return Bounded(max_depth, OnFull(on_full), seconds)


@explain_misuse
def queue(
    max_depth: int | None = None,
    on_full: str | None = None,
    wait_timeout: float | None = None,
) -> Policy:
    """Queue jobs: like `bounded` with a depth; with None the queue has no bound and is never full.

    `on_full` None blocks the submitter.
    """
    when_full = OnFull.BLOCK_SUBMITTER if on_full is None else on_full
    if max_depth is not None:
        return bounded(max_depth, when_full, wait_timeout)
    # An unbounded queue is never full, but its options are still validated.
    bounded(1, when_full, wait_timeout)
    return Unbounded()


def fail_fast() -> Policy:
    """Refuse work unless a slot is free for it."""
    return FailFast()


@explain_misuse
def ring_buffer(max_depth: int) -> Policy:
    """Keep the newest `max_depth` waiting jobs and drop the oldest."""
    raise_faults(f"ring_buffer({shown(max_depth)})", _DEPTH.faults("max_depth", max_depth))
    return RingBuffer(max_depth)


class Backpressure:
    """All backpressure policies under one name."""

    queue = staticmethod(queue)
    unbounded = staticmethod(unbounded)
    bounded = staticmethod(bounded)
    fail_fast = staticmethod(fail_fast)
    ring_buffer = staticmethod(ring_buffer)


# A policy can be given by name alone only if it needs no depth.
POLICIES = {"unbounded": unbounded, "queue": unbounded, "fail_fast": fail_fast}


class KeyIndex(Struct, frozen=True):
    """The number of waiting jobs of a key, and the arrival number of the oldest one."""

    key: str
    waiting: int
    oldest: int


def key_to_evict(newcomer: str, indexes: Iterable[KeyIndex]) -> str:
    """Return the key whose oldest job is evicted for a new job: the key with most waiting jobs.

    The new job counts for its key; of two keys with equally many the one with the oldest job loses.
    """

    def claim(index: KeyIndex) -> tuple[int, int]:
        return (-index.waiting - (index.key == newcomer), index.oldest)

    return min(indexes, key=claim).key


class _Queue(Generic[E]):
    """The waiting entries of one key, oldest first; the heap may hold stale items."""

    __slots__ = ("heap", "waiting")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, E]] = []
        self.waiting: dict[E, int] = {}


class EvictionIndex(Generic[E]):
    """Counts waiting entries per key and finds the oldest of the key with the most."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue[E]] = {}
        self._most: list[tuple[int, int, int, str]] = []
        self._count = 0

    def enter(self, key: str, entry: E) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue()
        self._count += 1
        queue.waiting[entry] = self._count
        heappush(queue.heap, (entry.seq, self._count, entry))
        self._note(key, queue)

    def leave(self, key: str, entry: E) -> None:
        queue = self._queues[key]
        del queue.waiting[entry]
        if queue.waiting:
            self._note(key, queue)
        else:
            del self._queues[key]

    def victim(self, newcomer: str) -> E:
        """Return the entry that a new job of that key evicts."""
        keys = {self._top(), newcomer} & self._queues.keys()
        indexes = [self._key_index(key) for key in keys]
        return _oldest(self._queues[key_to_evict(newcomer, indexes)])

    def _key_index(self, key: str) -> KeyIndex:
        queue = self._queues[key]
        return KeyIndex(key, len(queue.waiting), _oldest(queue).seq)

    def _note(self, key: str, queue: _Queue[E]) -> None:
        if len(queue.heap) > 2 * len(queue.waiting) + 32:
            queue.heap = [item for item in queue.heap if queue.waiting.get(item[2]) == item[1]]
            heapify(queue.heap)
        self._count += 1
        heappush(self._most, (-len(queue.waiting), _oldest(queue).seq, self._count, key))
        if len(self._most) > 4 * len(self._queues) + 64:
            self._rebuild()

    def _top(self) -> str:
        """Return the key with most waiting entries, and drop stale heap items on the way."""
        while True:
            size, seq, _, key = self._most[0]
            queue = self._queues.get(key)
            if queue is not None and (-len(queue.waiting), _oldest(queue).seq) == (size, seq):
                return key
            heappop(self._most)

    def _rebuild(self) -> None:
        self._most = [
            (-len(queue.waiting), _oldest(queue).seq, number, key)
            for number, (key, queue) in enumerate(self._queues.items())
        ]
        heapify(self._most)


def _oldest(queue: _Queue[E]) -> E:
    while True:
        _, number, entry = queue.heap[0]
        if queue.waiting.get(entry) == number:
            return entry
        heappop(queue.heap)
