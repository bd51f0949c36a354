"""For every strategy: no entry is lost or doubled, and the order is that of a naive queue.

The naive queue keeps everything in one list and searches all of it for every pick. Its fair rule is
decision 4 of ARCHITECTURE.md, counted in fractions of a turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolhand.rules.queue.entry import Entry
from poolhand.rules.queue.ready import Ready
from poolhand.rules.queue.strategy import (
    FairRoundRobin,
    Fifo,
    Lifo,
    Priority,
    Strategy,
    fair_round_robin,
    fifo,
    lifo,
    priority,
)
from tests.extent import examples
from tests.unit.rules.floor import new_entry

KEYS = "ABCD"


@dataclass(frozen=True)
class Add:
    key: str
    level: int
    after: int


@dataclass(frozen=True)
class Take:
    pass


@dataclass(frozen=True)
class Remove:
    which: int


Step = Add | Take | Remove

STRATEGIES = st.one_of(
    st.just(fifo()),
    st.just(lifo()),
    st.just(priority()),
    st.sampled_from([0.5, 1.0, 3.0]).map(priority),
    st.just(fair_round_robin()),
    st.dictionaries(st.sampled_from(KEYS), st.integers(1, 5)).map(
        lambda weights: fair_round_robin(weights=weights)
    ),
)
STEP = st.one_of(
    st.builds(Add, st.sampled_from(KEYS), st.integers(-1, 2), st.integers(0, 3)),
    st.builds(Add, st.sampled_from(KEYS), st.integers(-1, 2), st.integers(0, 3)),
    st.just(Take()),
    st.builds(Remove, st.integers(0, 50)),
)
# Hypothesis prefers short lists unless it is given a length.
STEPS = st.integers(0, 50).flatmap(lambda n: st.lists(STEP, min_size=n, max_size=n))


@dataclass
class Lane:
    rank: Fraction
    order: int


@dataclass
class NaiveQueue:
    """All entries in one list, in order of arrival."""

    strategy: Strategy
    entries: list[Entry] = field(default_factory=list)
    lanes: dict[str, Lane] = field(default_factory=dict)
    round: Fraction = Fraction(0)
    appearances: int = 0

    def copy(self) -> NaiveQueue:
        lanes = {key: Lane(lane.rank, lane.order) for key, lane in self.lanes.items()}
        return NaiveQueue(self.strategy, self.entries[:], lanes, self.round, self.appearances)

    def add(self, entry: Entry) -> None:
        key = entry.job.key
        if all(one.job.key != key for one in self.entries):
            lane = self.lanes.get(key)
            if lane is None:
                self.appearances += 1
                lane = self.lanes[key] = Lane(self.round, self.appearances)
            lane.rank = max(self.round, lane.rank)
        self.entries.append(entry)

    def remove(self, entry: Entry) -> None:
        self.entries.remove(entry)
        self._forget()

    def take(self) -> Entry | None:
        if not self.entries:
            return None
        best = min(range(len(self.entries)), key=self._rank)
        entry = self.entries.pop(best)
        lane = self.lanes[entry.job.key]
        self.round = lane.rank
        lane.rank += self._cost(entry.job.key)
        self._forget()
        return entry

    def drained(self) -> list[Entry]:
        queue, taken = self.copy(), []
        while (entry := queue.take()) is not None:
            taken.append(entry)
        return taken

    def _rank(self, index: int) -> tuple[Fraction | float, ...]:
        entry = self.entries[index]
        match self.strategy:
            case Fifo():
                return (index,)
            case Lifo():
                return (-index,)
            case Priority(aging=None):
                return (-entry.job.priority, index)
            case Priority(aging=seconds):
                return (entry.ready_at - entry.job.priority * (seconds or 0.0), index)
            case FairRoundRobin():
                lane = self.lanes[entry.job.key]
                return (lane.rank, lane.order, index)

    def _cost(self, key: str) -> Fraction:
        weights = self.strategy.weights if isinstance(self.strategy, FairRoundRobin) else ()
        return 1 / Fraction(dict(weights).get(key, 1))

    def _forget(self) -> None:
        """An empty lane that the round has passed starts anew when it comes back."""
        waiting = {entry.job.key for entry in self.entries}
        for key, lane in list(self.lanes.items()):
            if key not in waiting and lane.rank <= self.round:
                del self.lanes[key]


def check(ready: Ready[Entry], naive: NaiveQueue) -> None:
    found = list(ready)
    assert len(found) == len(set(found)) == ready.size == len(naive.entries)
    assert set(found) == set(naive.entries)


@pytest.mark.slow
@settings(max_examples=examples(500))
@given(STRATEGIES, STEPS)
def test_the_order_is_that_of_a_naive_queue(strategy: Strategy, steps: list[Step]) -> None:
    ready: Ready[Entry] = Ready(strategy)
    naive = NaiveQueue(strategy)
    now = 0.0
    for number, step in enumerate(steps):
        match step:
            case Add(key, level, after):
                now += after
                entry = new_entry(f"{key}{number}", key=key, priority=level, seq=number)
                entry.ready_at = now
                ready.add(entry)
                naive.add(entry)
            case Take():
                assert ready.take() is naive.take()
            case Remove(which):
                if naive.entries:
                    entry = naive.entries[which % len(naive.entries)]
                    ready.remove(entry)
                    naive.remove(entry)
        check(ready, naive)
    for expected in naive.drained():
        assert ready.take() is expected
    assert ready.take() is None
    assert ready.size == 0


@settings(max_examples=examples(200))
@given(STRATEGIES, STEPS)
def test_jobs_ahead_are_counted_in_the_order_they_will_be_served(
    strategy: Strategy, steps: list[Step]
) -> None:
    ready: Ready[Entry] = Ready(strategy)
    entries: list[Entry] = []
    now = 0.0
    for number, step in enumerate(steps):
        match step:
            case Add(key, level, after):
                now += after
                entry = new_entry(f"{key}{number}", key=key, priority=level, seq=number)
                entry.ready_at = now
                ready.add(entry)
                entries.append(entry)
            case Take():
                taken = ready.take()
                if taken is not None:
                    entries.remove(taken)
            case Remove(which):
                if entries:
                    ready.remove(entries.pop(which % len(entries)))
    ahead = {entry: ready.ahead_of(entry) for entry in entries}
    for place in range(len(entries)):
        entry_there = ready.take()
        assert entry_there is not None
        assert ahead[entry_there] == place
