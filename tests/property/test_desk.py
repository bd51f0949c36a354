"""The desk under any sequence of events, against a naive list of everything that was brought to it.

The model knows each entry by its arrival, keeps those that wait, that run and that are over in
plain lists, and works every verdict out by looking through them. What it cannot know cheaply, the
order of the ready set, is left to `test_strategies`.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import (
    Bounded,
    FailFast,
    OnFull,
    Policy,
    RingBuffer,
    Unbounded,
    bounded,
    fail_fast,
    ring_buffer,
    unbounded,
)
from poolhand.rules.queue.desk import Admitted, Desk, Joined, Parked, RefusedEntry, Rejected
from poolhand.rules.queue.entry import Entry, IdempotencyKeys, Window
from poolhand.rules.queue.strategy import (
    FairRoundRobin,
    Priority,
    Strategy,
    fair_round_robin,
    fifo,
    lifo,
    priority,
)
from tests.extent import examples
from tests.unit.rules.floor import new_entry

KEY_TTL = 6.0
FAILURES = {Status.FAILED, Status.CANCELLED, Status.EXPIRED}

STRATEGIES = st.sampled_from(
    [
        fifo(),
        lifo(),
        priority(),
        priority(aging=2.0),
        fair_round_robin(),
        fair_round_robin(weights={"A": 2}),
    ]
)
POLICIES = st.one_of(
    st.just(unbounded()),
    st.just(fail_fast()),
    st.integers(1, 3).map(ring_buffer),
    st.integers(1, 3).map(bounded),
    st.builds(bounded, st.integers(1, 3), st.sampled_from([str(one) for one in OnFull])),
)
WHEN_FULL = {
    OnFull.BLOCK_SUBMITTER: "park",
    OnFull.DROP_OLDEST: "evict",
    OnFull.DROP_NEWEST: "reject",
    OnFull.FAIL_SUBMITTER: "refuse",
}
WHICH = st.integers(0, 50)
PUMP = st.sampled_from([True, True, True, False])

SessionKey = tuple[str | None, str]


class DeskMachine(RuleBasedStateMachine):
    """Plays the driver, badly at times: slots get stuck and starts are forgotten for a while."""

    desk: Desk[Entry]

    @initialize(
        strategy=STRATEGIES,
        policy=POLICIES,
        slots=st.sampled_from([1, 2, 3, None]),
        cap=st.sampled_from([None, None, 1, 2]),
    )
    def open(self, strategy: Strategy, policy: Policy, slots: int | None, cap: int | None) -> None:
        keys: IdempotencyKeys[Entry] = IdempotencyKeys(KEY_TTL, 1000)
        self.desk = Desk(strategy, policy, slots, keys, cap)
        self.strategy, self.policy, self.cap = strategy, policy, cap
        self.slots = self.most_slots = slots
        self.paused = False
        self.now = 0.0
        self.arrival: dict[Entry, int] = {}
        self.accepted: set[Entry] = set()
        self.waiting: list[Entry] = []
        self.live: list[Entry] = []
        self.occupants: list[Entry] = []
        self.parked: list[Entry] = []
        self.over: list[Entry] = []
        self.owners: dict[tuple[str | None, str], Entry] = {}
        self.ended_at: dict[Entry, float] = {}
        self.blocked_turns: dict[SessionKey, list[Entry]] = {}
        self.returned_early = 0
        self.retried = self.dawdled = False

    # What the driver does

    @rule(
        key=st.sampled_from(["A", "B", "C", "A", "B", ""]),
        level=st.integers(0, 2),
        session=st.sampled_from([None, None, None, "s", "t"]),
        tenant=st.sampled_from([None, None, "acme"]),
        idempotency_key=st.sampled_from([None, None, None, "k", "l"]),
        opens_in=st.sampled_from([None, None, None, 0, 2, 5]),
        closes_in=st.sampled_from([None, None, None, 1, 4]),
        rerun=st.booleans(),
    )
    def submit(
        self,
        key: str,
        level: int,
        session: str | None,
        tenant: str | None,
        idempotency_key: str | None,
        opens_in: int | None,
        closes_in: int | None,
        rerun: bool,
    ) -> None:
        number = len(self.arrival) + 1
        entry = new_entry(
            f"{key}{number}",
            key=key,
            priority=level,
            session=session,
            tenant=tenant,
            idempotency_key=idempotency_key,
        )
        if opens_in is not None or closes_in is not None:
            entry.window = Window(
                None if opens_in is None else self.now + opens_in,
                None if closes_in is None else self.now + closes_in,
            )
        self.arrival[entry] = number
        self.offer(entry, rerun)
        self.settle(True)

    @rule(burst=st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 2)), max_size=4))
    def submit_burst(self, burst: list[tuple[str, int]]) -> None:
        """Bring several that want nothing but a slot, so that the queue is seldom empty."""
        for key, level in burst:
            number = len(self.arrival) + 1
            entry = new_entry(f"{key}{number}", key=key, priority=level)
            self.arrival[entry] = number
            self.offer(entry, False)
            self.settle(True)

    @rule(session=st.sampled_from("st"), levels=st.lists(st.integers(0, 2), max_size=3))
    def submit_turns(self, session: str, levels: list[int]) -> None:
        for level in levels:
            number = len(self.arrival) + 1
            entry = new_entry(f"A{number}", key="A", priority=level, session=session)
            self.arrival[entry] = number
            self.offer(entry, False)
            self.settle(True)

    def offer(self, entry: Entry, rerun: bool) -> None:
        owner = self.owner(entry)
        joins = owner is not None and not (rerun and owner.job.status in FAILURES)
        expected = {"join"} if joins else self.rulings(entry)
        victim = self.victim(entry) if expected == {"evict"} else None
        verdict = self.desk.admit(entry, self.now, rerun)
        match verdict:
            case Joined(entry=found):
                assert "join" in expected
                assert found is owner
            case Admitted(victim=found):
                assert expected & {"take", "evict"}
                assert found is victim
                if found is not None:
                    self.waiting.remove(found)
                self.accept(entry)
                if found is not None:
                    self.end(found, Status.REJECTED)
            case Parked():
                assert "park" in expected
                self.parked.append(entry)
            case Rejected():
                assert "reject" in expected
                self.accepted.add(entry)
                self.end(entry, Status.REJECTED)
            case RefusedEntry():
                assert "refuse" in expected

    @precondition(lambda self: self.live)
    @rule(
        which=WHICH,
        status=st.sampled_from([Status.COMPLETED, Status.FAILED, Status.CANCELLED]),
        frees=st.sampled_from([True, True, True, False]),
        pump=PUMP,
    )
    def finish(self, which: int, status: Status, frees: bool, pump: bool) -> None:
        entry = self.live.pop(which % len(self.live))
        self.end(entry, status)
        if frees:
            self.vacate(entry)
        self.settle(pump)

    @precondition(lambda self: self.live)
    @rule(
        which=WHICH,
        after=st.sampled_from([0, 0, 1, 3]),
        frees=st.sampled_from([True, True, True, False]),
        pump=PUMP,
    )
    def retry(self, which: int, after: int, frees: bool, pump: bool) -> None:
        entry = self.live.pop(which % len(self.live))
        entry.job = replace(entry.job, status=Status.SCHEDULED)
        self.waiting.append(entry)
        self.retried = True
        self.desk.give_back(entry, self.now + after, self.now)
        if frees:
            self.vacate(entry)
        else:
            self.returned_early += 1
        self.settle(pump)

    @precondition(lambda self: len(self.occupants) > len(self.live))
    @rule(pump=PUMP)
    def free_stuck_slot(self, pump: bool) -> None:
        stuck = self.occupants[:]
        for entry in self.live:
            stuck.remove(entry)
        self.vacate(stuck[0])
        self.settle(pump)

    @precondition(lambda self: self.waiting)
    @rule(which=WHICH, pump=PUMP)
    def cancel(self, which: int, pump: bool) -> None:
        entry = self.waiting.pop(which % len(self.waiting))
        self.desk.remove(entry, self.now)
        self.end(entry, Status.CANCELLED)
        self.settle(pump)

    @precondition(lambda self: self.parked)
    @rule(which=WHICH, pump=PUMP)
    def withdraw(self, which: int, pump: bool) -> None:
        entry = self.parked.pop(which % len(self.parked))
        self.desk.withdraw(entry, self.now)
        self.settle(pump)

    @rule(seconds=st.integers(1, 4), pump=PUMP)
    def wait(self, seconds: int, pump: bool) -> None:
        self.now += seconds
        self.tick()
        self.settle(pump)

    @rule(slots=st.integers(1, 4), pump=PUMP)
    def resize(self, slots: int, pump: bool) -> None:
        self.slots = slots
        if self.most_slots is not None:
            self.most_slots = max(self.most_slots, slots)
        self.desk.resize(slots, self.now)
        self.settle(pump)

    @rule(pump=PUMP)
    def pause_or_resume(self, pump: bool) -> None:
        self.paused = not self.paused
        if self.paused:
            self.desk.paused = True
        else:
            self.desk.resume(self.now)
        self.settle(pump)

    # How the model follows

    def accept(self, entry: Entry) -> None:
        self.accepted.add(entry)
        self.waiting.append(entry)
        self.hold(entry)

    def end(self, entry: Entry, status: Status) -> None:
        entry.job = replace(entry.job, status=status, blocked_on=None)
        self.desk.finish(entry, self.now)
        self.over.append(entry)
        self.ended_at[entry] = self.now
        if status is Status.REJECTED:
            self.let_go(entry)

    def vacate(self, entry: Entry) -> None:
        self.occupants.remove(entry)
        self.desk.vacate(entry.job.key, self.now)

    def tick(self) -> None:
        while self.is_due():
            for entry in self.desk.tick(self.now):
                self.welcome()
                window = entry.window
                assert window is not None
                assert window.closes_at is not None
                assert window.closes_at <= self.now
                self.waiting.remove(entry)
                self.end(entry, Status.EXPIRED)
            self.welcome()

    def is_due(self) -> bool:
        at = self.desk.wake_at()
        return at is not None and at <= self.now

    def welcome(self) -> None:
        """Note which of the parked have got in: always the first."""
        for entry in self.desk.admitted:
            assert self.parked.pop(0) is entry
            self.accept(entry)
        self.desk.admitted.clear()

    def settle(self, pump: bool) -> None:
        """End a step: start what can start, unless the driver forgets it this time."""
        self.welcome()
        if pump:
            while self.start_next() or self.is_due():
                pass
            self.check_that_nobody_was_forgotten()
        else:
            self.dawdled = True
        self.check_that_sessions_went_on_in_submit_order()

    def start_next(self) -> bool:
        self.tick()
        queued = [entry for entry in self.waiting if entry.job.status is Status.QUEUED]
        ahead = {self.desk.ahead_of(entry): entry for entry in queued}
        assert sorted(ahead) == list(range(len(queued)))
        entry = self.desk.next(self.now)
        self.welcome()
        if entry is None:
            return False
        assert not self.paused
        assert self.slots is None or len(self.occupants) < self.slots
        if queued:
            assert entry is ahead[0]
        self.waiting.remove(entry)
        self.occupants.append(entry)
        self.live.append(entry)
        entry.job = replace(entry.job, status=Status.RUNNING, attempts=entry.job.attempts + 1)
        return True

    # Idempotency keys

    def owner(self, entry: Entry) -> Entry | None:
        key = entry.job.idempotency_key
        if key is None:
            return None
        for one in self.parked:
            if (one.job.tenant, one.job.idempotency_key) == (entry.job.tenant, key):
                return one
        owner = self.owners.get((entry.job.tenant, key))
        if owner is None or self.now >= self.ended_at.get(owner, self.now) + KEY_TTL:
            return None
        return owner

    def hold(self, entry: Entry) -> None:
        if entry.job.idempotency_key is not None:
            self.owners[entry.job.tenant, entry.job.idempotency_key] = entry

    def let_go(self, entry: Entry) -> None:
        key = entry.job.idempotency_key
        if key is not None and self.owners.get((entry.job.tenant, key)) is entry:
            del self.owners[entry.job.tenant, key]

    # Backpressure

    def rulings(self, entry: Entry) -> set[str]:
        """Return what the policy may decide about a newcomer."""
        match self.policy:
            case Unbounded():
                return {"take"}
            case FailFast():
                return self.fail_fast_rulings()
            case RingBuffer(max_depth=depth):
                return {"take" if self.has_place(entry, depth) else "evict"}
            case Bounded(max_depth=depth, on_full=on_full):
                return {"take" if self.has_place(entry, depth) else WHEN_FULL[on_full]}

    def fail_fast_rulings(self) -> set[str]:
        if self.slots is None:
            return {"take"}
        queued = sum(entry.job.status is Status.QUEUED for entry in self.waiting)
        if len(self.occupants) + queued >= self.slots:
            return {"refuse"}
        if len(self.occupants) + len(self.waiting) < self.slots:
            return {"take"}
        return {"take", "refuse"}  # whether those that wait for other things count is left open

    def has_place(self, entry: Entry, depth: int) -> bool:
        running, waiting = len(self.occupants), len(self.waiting)
        if self.slots is not None and running + waiting >= max(self.slots, running) + depth:
            return False
        return waiting < depth or self.starts_at_once(entry)

    def starts_at_once(self, entry: Entry) -> bool:
        window = entry.window
        return (
            not self.paused
            and (self.slots is None or len(self.occupants) < self.slots)
            and all(one.job.status is not Status.QUEUED for one in self.waiting)
            and self.parked[:1] in ([], [entry])
            and (window is None or window.opens_at is None or window.opens_at <= self.now)
            and (self.cap is None or self.permits_in_use(entry.job.key) < self.cap)
            and not self.holders(entry)
        )

    def victim(self, newcomer: Entry) -> Entry | None:
        if not self.waiting:
            return None
        groups: dict[str, list[Entry]] = defaultdict(list)
        fair = isinstance(self.strategy, FairRoundRobin)
        for entry in [*self.waiting, newcomer]:
            groups[entry.job.key if fair else ""].append(entry)
        oldest = {
            key: min(group, key=lambda one: self.arrival[one]) for key, group in groups.items()
        }
        crowded = min(groups, key=lambda key: (-len(groups[key]), self.arrival[oldest[key]]))
        return oldest[crowded]

    # Gates

    def permits_in_use(self, key: str) -> int:
        queued = (one for one in self.waiting if one.job.status is Status.QUEUED)
        return 0 if not key else sum(one.job.key == key for one in [*self.occupants, *queued])

    def holders(self, entry: Entry) -> list[Entry]:
        """Return the turns of this entry's session that have left the line of their session."""
        turn = session_of(entry)
        if turn is None:
            return []
        return [
            one
            for one in [*self.waiting, *self.live]
            if session_of(one) == turn
            and one.job.blocked_on != "session"
            and (one.job.status is not Status.SCHEDULED or one.job.attempts)
        ]

    # What must hold

    @invariant()
    def all_is_well(self) -> None:
        self.check_that_nothing_is_lost_or_doubled()
        self.check_that_the_counters_tell_the_truth()
        self.check_that_the_pool_stays_within_its_bounds()
        self.check_that_the_gates_let_through_whom_they_should_and_nobody_else()
        self.check_that_nobody_urgent_waits_for_the_permit_of_a_lesser_job()

    def check_that_nothing_is_lost_or_doubled(self) -> None:
        parts = [*self.waiting, *self.live, *self.over]
        assert len(parts) == len(set(parts)) == len(self.accepted)
        assert set(parts) == self.accepted
        found = list(self.desk)
        assert len(found) == len(set(found))
        assert set(found) == set(self.waiting)
        assert list(self.desk.blocked_submitters) == self.parked

    def check_that_the_counters_tell_the_truth(self) -> None:
        desk = self.desk
        assert desk.waiting == len(self.waiting) == desk.queued + desk.blocked + desk.scheduled
        assert desk.running == len(self.occupants)
        counts = dict.fromkeys(Status, 0)
        for entry in self.waiting:
            counts[entry.job.status] += 1
        assert counts[Status.QUEUED] == desk.queued
        assert counts[Status.BLOCKED] == desk.blocked
        assert counts[Status.SCHEDULED] == desk.scheduled

    def check_that_the_pool_stays_within_its_bounds(self) -> None:
        match self.policy:
            case RingBuffer(max_depth=depth) | Bounded(max_depth=depth):
                pass
            case _:
                return
        if self.most_slots is not None:
            bound = self.most_slots + depth + self.returned_early
            assert len(self.occupants) + len(self.waiting) <= bound
        if not self.retried and not self.dawdled:
            assert len(self.waiting) <= depth

    def check_that_the_gates_let_through_whom_they_should_and_nobody_else(self) -> None:
        for entry in self.waiting:
            assert len(self.holders(entry)) <= 1
            if entry.job.blocked_on == "session":
                assert len(self.holders(entry)) == 1
            if entry.job.blocked_on == "key":
                assert self.permits_in_use(entry.job.key) == self.cap
        if self.cap is not None:
            for key in "ABC":
                assert self.permits_in_use(key) <= self.cap

    def check_that_nobody_urgent_waits_for_the_permit_of_a_lesser_job(self) -> None:
        if not isinstance(self.strategy, Priority) or self.strategy.aging is not None:
            return
        for key in "ABC":
            mine = [entry.job for entry in self.waiting if entry.job.key == key]
            blocked = [job.priority for job in mine if job.blocked_on == "key"]
            queued = [job.priority for job in mine if job.status is Status.QUEUED]
            if blocked and queued:
                assert max(blocked) <= min(queued)

    def check_that_nobody_was_forgotten(self) -> None:
        """After all that can start has started: no slot, gate or place is free for who waits."""
        if not self.paused and (self.slots is None or len(self.occupants) < self.slots):
            assert self.desk.queued == 0
        if self.parked:
            assert self.rulings(self.parked[0]) == {"park"}
        for entry in self.waiting:
            if entry.job.status is Status.SCHEDULED:
                due_at = self.desk.due_of(entry)
                assert due_at is not None
                assert due_at > self.now

    def check_that_sessions_went_on_in_submit_order(self) -> None:
        ended = set(self.over)
        for turns in self.blocked_turns.values():
            still = [one for one in turns if one not in ended and one.job.blocked_on == "session"]
            went_on = [one for one in turns if one not in ended and one not in still]
            assert len(went_on) <= 1
            for turn in went_on:
                assert all(self.arrival[turn] < self.arrival[other] for other in still)
        self.blocked_turns = defaultdict(list)
        for entry in self.waiting:
            turn_of = session_of(entry)
            if turn_of is not None and entry.job.blocked_on == "session":
                self.blocked_turns[turn_of].append(entry)


def session_of(entry: Entry) -> SessionKey | None:
    job = entry.job
    return None if job.session is None else (job.tenant, job.session)


TestDesk = pytest.mark.slow(pytest.mark.timeout(300)(DeskMachine.TestCase))
TestDesk.settings = settings(max_examples=examples(400), stateful_step_count=50)
