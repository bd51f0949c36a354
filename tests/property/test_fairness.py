"""Fairness under any arrivals, cancels, evictions and waits.

Two keys are backlogged while both have a job that only waits for a slot. While both are, neither
may get more than one turn more than the other; with weights, in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import Policy, bounded, ring_buffer, unbounded
from poolhand.rules.queue.strategy import FairRoundRobin, fair_round_robin
from tests.extent import examples
from tests.unit.rules.floor import Floor

KEYS = "ABC"


@dataclass(frozen=True)
class Arrive:
    key: str
    session: bool
    delay: int


@dataclass(frozen=True)
class Cancel:
    which: int


@dataclass(frozen=True)
class End:
    which: int
    again: bool


Step = Arrive | Cancel | End

STEP = st.one_of(
    st.builds(Arrive, st.sampled_from(KEYS), st.just(False), st.just(0)),
    st.builds(Arrive, st.sampled_from(KEYS), st.just(False), st.just(0)),
    st.builds(Arrive, st.sampled_from(KEYS), st.booleans(), st.sampled_from([0, 0, 2])),
    st.builds(Cancel, st.integers(0, 50)),
    st.builds(End, st.integers(0, 5), st.sampled_from([False, False, True])),
    st.builds(End, st.integers(0, 5), st.just(False)),
)
# Hypothesis prefers short lists unless it is given a length.
STEPS = st.integers(0, 80).flatmap(lambda n: st.lists(STEP, min_size=n, max_size=n))
CROWDED = st.lists(
    st.one_of(
        *[st.builds(Arrive, st.sampled_from(KEYS), st.just(False), st.just(0))] * 3,
        st.just(End(0, False)),
    ),
    min_size=30,
    max_size=60,
)
POLICIES = st.one_of(
    st.just(unbounded()),
    st.integers(2, 6).map(ring_buffer),
    st.integers(2, 6).map(lambda depth: bounded(depth, "drop_oldest")),
    st.integers(2, 6).map(bounded),
)
WEIGHTS = st.dictionaries(st.sampled_from(KEYS), st.integers(1, 4))


@dataclass
class Lead:
    """The lead of one key over another since both have been backlogged, in paid turns."""

    now: Fraction = Fraction(0)
    lowest: Fraction = Fraction(0)
    highest: Fraction = Fraction(0)

    def move(self, by: Fraction) -> None:
        self.now += by
        self.lowest = min(self.lowest, self.now)
        self.highest = max(self.highest, self.now)


@dataclass
class Umpire:
    """Drives a floor and watches every pair of backlogged keys."""

    floor: Floor
    weights: dict[str, int]
    leads: dict[tuple[str, str], Lead] = field(default_factory=dict)
    numbers: int = 0

    def backlogged(self) -> set[str]:
        return {entry.job.key for entry in self.floor.desk if entry.job.status is Status.QUEUED}

    def look(self) -> None:
        """Drop the pairs that are no longer both backlogged, add those that are now."""
        backlogged = self.backlogged()
        for pair in combinations(KEYS, 2):
            if backlogged.issuperset(pair):
                self.leads.setdefault(pair, Lead())
            else:
                self.leads.pop(pair, None)

    def start(self) -> None:
        """Start what can start, one by one."""
        floor = self.floor
        while (entry := floor.desk.next(floor.now)) is not None:
            floor.running.append(entry)
            key = entry.job.key
            turn = Fraction(1, self.weights.get(key, 1))
            for pair, lead in self.leads.items():
                if key in pair:
                    lead.move(turn if key == pair[0] else -turn)
                    assert lead.highest - lead.lowest <= self.allowed(pair), (pair, lead)
            self.look()

    def allowed(self, pair: tuple[str, str]) -> Fraction:
        """One turn, and the turn of the running round that one had before the other joined it."""
        turns = [Fraction(1, self.weights.get(key, 1)) for key in pair]
        return sum(turns, Fraction(0)) + (max(turns) if self.weights else 0)

    def do(self, step: Step) -> None:
        floor = self.floor
        match step:
            case Arrive(key, session, delay):
                self.numbers += 1
                floor.submit(
                    f"{key}{self.numbers}",
                    key=key,
                    session=f"session {key}" if session else None,
                    opens_at=floor.now + delay if delay else None,
                )
            case Cancel(which):
                waiting = list(floor.desk)
                if waiting:
                    floor.cancel(waiting[which % len(waiting)])
            case End(which, again):
                floor.wait_until(floor.now + 1.0)
                if floor.running:
                    entry = floor.running[which % len(floor.running)]
                    if again:
                        floor.retry(entry, after=1.0)
                    else:
                        floor.complete(entry)
        self.look()
        self.start()


def watch(policy: Policy, weights: dict[str, int], slots: int, cap: int | None) -> Umpire:
    strategy = fair_round_robin(weights=weights)
    assert isinstance(strategy, FairRoundRobin)
    return Umpire(Floor(strategy, policy, slots=slots, max_per_key=cap), weights)


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(POLICIES, st.integers(1, 3), st.sampled_from([None, None, 1, 2]), STEPS)
def test_neither_of_two_backlogged_keys_gets_more_than_one_turn_ahead(
    policy: Policy, slots: int, cap: int | None, steps: list[Step]
) -> None:
    umpire = watch(policy, {}, slots, cap)
    for step in steps:
        umpire.do(step)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.integers(2, 5), CROWDED)
def test_evictions_cost_a_key_no_turn(depth: int, steps: list[Step]) -> None:
    umpire = watch(ring_buffer(depth), {}, 1, None)
    for step in steps:
        umpire.do(step)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(POLICIES, WEIGHTS, st.integers(1, 2), STEPS)
def test_with_weights_two_backlogged_keys_share_in_proportion(
    policy: Policy, weights: dict[str, int], slots: int, steps: list[Step]
) -> None:
    umpire = watch(policy, {key: weights.get(key, 1) for key in KEYS}, slots, None)
    for step in steps:
        umpire.do(step)


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from("AB"), min_size=10, max_size=60))
def test_two_keys_alternate_strictly_for_as_long_as_both_have_jobs(arrivals: list[str]) -> None:
    floor = Floor(fair_round_robin())
    floor.desk.paused = True
    for number, key in enumerate(arrivals):
        floor.submit(f"{key}{number}", key=key)
    floor.desk.resume(floor.now)
    drained = [name[0] for name in floor.serve()]
    both = 2 * min(arrivals.count("A"), arrivals.count("B"))
    first = arrivals[0]
    other = "B" if first == "A" else "A"
    assert drained[:both] == [first, other] * (both // 2)
    assert sorted(drained) == sorted(arrivals)


@settings(max_examples=examples(100))
@given(
    st.lists(st.sampled_from(["burst"] * 4 + ["quiet"]), min_size=10, max_size=60),
    st.integers(2, 6),
)
def test_a_burst_never_pushes_a_quiet_key_out_of_a_ring_buffer(
    arrivals: list[str], depth: int
) -> None:
    floor = Floor(fair_round_robin(), ring_buffer(depth))
    floor.occupy()
    fair_share = depth // 2
    for number, key in enumerate(arrivals):
        quiet = sum(entry.job.key == "quiet" for entry in floor.desk)
        if key == "burst" or quiet < fair_share:
            floor.submit(f"{key}{number}", key=key)
    assert all(entry.job.key == "burst" for entry in floor.over)
