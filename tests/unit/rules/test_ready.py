"""The ready set: which entry is next."""

from __future__ import annotations

import pytest

from poolhand.rules.queue.entry import Entry
from poolhand.rules.queue.ready import Ready
from poolhand.rules.queue.strategy import Strategy, fair_round_robin, fifo, lifo, priority
from tests.unit.rules.floor import names, new_entry

ALL = [fifo(), lifo(), priority(), priority(aging=1.0), fair_round_robin()]


class Queue:
    """A ready set to which entries are added by key and priority; names count per key."""

    def __init__(self, strategy: Strategy) -> None:
        self.ready: Ready[Entry] = Ready(strategy)
        self.entries: dict[str, Entry] = {}

    def add(self, keys: str, level: int = 0, now: float = 0.0) -> None:
        for key in keys.split():
            number = sum(entry.job.key == key for entry in self.entries.values()) + 1
            entry = new_entry(f"{key}{number}", key=key, priority=level)
            self.entries[entry.job.id] = entry
            entry.ready_at = now
            self.ready.add(entry)

    def remove(self, *entry_names: str) -> None:
        for name in entry_names:
            self.ready.remove(self.entries[name])

    def take(self, count: int = 10**6) -> str:
        taken: list[str] = []
        while len(taken) < count and (entry := self.ready.take()) is not None:
            taken.append(entry.job.id)
        return " ".join(taken)

    def take_keys(self, count: int = 10**6) -> str:
        return " ".join(name.rstrip("0123456789") for name in self.take(count).split())


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_an_empty_set_has_nothing_to_give(strategy: Strategy) -> None:
    queue = Queue(strategy)
    assert queue.ready.take() is None
    queue.add("A")
    assert queue.take() == "A1"
    assert queue.ready.take() is None
    assert queue.ready.size == 0


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_a_removed_entry_is_never_served(strategy: Strategy) -> None:
    queue = Queue(strategy)
    queue.add("A A B B C")
    queue.remove("A1", "B2", "C1")
    assert queue.ready.size == 2
    assert sorted(names(queue.ready)) == ["A2", "B1"]
    assert sorted(queue.take().split()) == ["A2", "B1"]


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_jobs_ahead_are_counted_in_the_order_they_will_be_served(strategy: Strategy) -> None:
    queue = Queue(strategy)
    queue.add("A B B")
    queue.add("C", level=1)
    queue.add("A A C", now=0.5)
    queue.take(2)
    queue.add("D", level=-1, now=2.0)
    ahead = {name: queue.ready.ahead_of(queue.entries[name]) for name in names(queue.ready)}
    assert sorted(ahead, key=lambda name: ahead[name]) == queue.take().split()
    assert sorted(ahead.values()) == list(range(len(ahead)))


def test_fifo_serves_in_the_order_of_arrival() -> None:
    queue = Queue(fifo())
    queue.add("C")
    queue.add("A", level=9)
    queue.add("B A")
    assert queue.take() == "C1 A1 B1 A2"


def test_lifo_serves_the_newest_first() -> None:
    queue = Queue(lifo())
    queue.add("A B C")
    assert queue.take(1) == "C1"
    queue.add("D E")
    queue.remove("D1")
    assert queue.take() == "E1 B1 A1"


def test_the_highest_priority_goes_first_and_equals_by_arrival() -> None:
    queue = Queue(priority())
    for key, level in (("A", 0), ("B", 5), ("C", -1), ("D", 5), ("E", 0)):
        queue.add(key, level)
    assert queue.take() == "B1 D1 A1 E1 C1"


def test_strict_priorities_never_age() -> None:
    queue = Queue(priority())
    queue.add("A", now=0.0)
    queue.add("B", level=1, now=1e9)
    assert queue.take() == "B1 A1"


def test_with_aging_a_job_overtakes_when_it_has_waited_long_enough() -> None:
    queue = Queue(priority(aging=10.0))
    queue.add("A", level=0, now=0.0)
    queue.add("B", level=1, now=9.0)
    queue.add("C", level=1, now=11.0)
    queue.add("D", level=2, now=11.0)
    assert queue.take() == "D1 B1 A1 C1"


def test_with_aging_jobs_of_the_same_level_go_by_arrival() -> None:
    queue = Queue(priority(aging=1.0))
    queue.add("Z", level=1, now=0.0)
    queue.add("B", level=0, now=0.0)
    queue.add("A", level=1, now=1.0)  # B has aged to level 1
    assert queue.take() == "Z1 B1 A1"


def test_aging_uses_the_oldest_remaining_job() -> None:
    queue = Queue(priority(aging=1.0))
    queue.add("A A", level=0, now=0.0)
    queue.add("B", level=0, now=5.0)
    queue.add("C", level=1, now=3.0)
    queue.remove("A1", "A2")
    assert queue.take() == "C1 B1"


@pytest.mark.parametrize(
    ("arrivals", "drains"),
    [
        ("A B B A A B B A", "A B A B A B A B"),
        ("A A A A A B C D", "A B C D A A A A"),
        ("B A A A", "B A A A"),
        ("A B C A B C", "A B C A B C"),
    ],
)
def test_keys_take_turns(arrivals: str, drains: str) -> None:
    queue = Queue(fair_round_robin())
    queue.add(arrivals)
    assert queue.take_keys() == drains


@pytest.mark.parametrize(
    "arrivals",
    [
        ["A"] * 100 + ["B"] * 100,
        ["A", "B"] * 100,
        ["A"] + ["B"] * 100 + ["A"] * 99,
        ["A", "B", "B", "A"] * 50,
        ["A"] * 50 + ["B"] * 100 + ["A"] * 50,
    ],
    ids=["burst", "alternating", "late", "folded", "split"],
)
def test_two_keys_with_100_jobs_alternate_strictly(arrivals: list[str]) -> None:
    queue = Queue(fair_round_robin())
    queue.add(" ".join(arrivals))
    assert queue.take_keys() == " ".join("AB" * 100)


def test_within_a_key_jobs_are_served_first_come_first_served() -> None:
    queue = Queue(fair_round_robin())
    queue.add("A", level=0)
    queue.add("A", level=9)
    queue.add("B A B")
    assert queue.take() == "A1 B1 A2 B2 A3"


def test_a_key_that_joins_in_the_middle_is_served_in_the_running_round() -> None:
    queue = Queue(fair_round_robin())
    queue.add("A A A A B B B B")
    assert queue.take_keys(3) == "A B A"
    queue.add("C C")
    assert queue.take_keys() == "B C A B C A B"


def test_a_key_that_joins_late_does_not_make_up_for_the_turns_it_missed() -> None:
    queue = Queue(fair_round_robin())
    queue.add("A " * 100)
    queue.take(50)
    queue.add("B " * 50)
    assert queue.take_keys(10) == "B A B A B A B A B A"


def test_a_lane_that_rejoins_gets_no_extra_turn() -> None:
    queue = Queue(fair_round_robin())
    queue.add("A B B B B")
    assert queue.take_keys(1) == "A"
    queue.add("A")
    assert queue.take_keys() == "B A B B B"


def test_a_lane_that_empties_and_refills_gets_its_turn_in_every_round() -> None:
    queue = Queue(fair_round_robin())
    queue.add("B " * 6)
    drained = []
    for _ in range(5):
        queue.add("A")
        drained.append(queue.take_keys(2))
    assert drained == ["B A"] * 5


def test_a_lane_that_was_idle_for_rounds_is_served_next() -> None:
    queue = Queue(fair_round_robin())
    queue.add("A B B B B B B")
    assert queue.take_keys(4) == "A B B B"
    queue.add("A A")
    assert queue.take_keys() == "A B A B B"


def test_entries_that_leave_cost_their_lane_no_turn() -> None:
    queue = Queue(fair_round_robin())
    queue.add("A A A A A B B B")
    queue.remove("A1", "A2", "A3")
    assert queue.take() == "A4 B1 A5 B2 B3"


def test_a_lane_emptied_by_removals_rejoins_where_it_was() -> None:
    queue = Queue(fair_round_robin())
    queue.add("A B A B")
    assert queue.take(1) == "A1"
    queue.remove("A2")
    queue.add("A")
    assert queue.take() == "B1 A3 B2"


def test_a_key_of_weight_three_gets_three_turns_per_round() -> None:
    queue = Queue(fair_round_robin(weights={"A": 3}))
    queue.add("A " * 12 + "B " * 4)
    drained = queue.take_keys().split()
    for end in range(1, len(drained) + 1):
        turns = drained[:end]
        assert abs(turns.count("A") - 3 * turns.count("B")) <= 3
    assert drained[:4].count("A") == drained[4:8].count("A") == 3


def test_a_key_of_weight_one_half_gets_every_second_round() -> None:
    queue = Queue(fair_round_robin(weights={"A": 0.5}))
    queue.add("A A A B B B B B B")
    assert queue.take_keys() == "A B B A B B A B B"


def test_lanes_served_long_ago_are_dropped() -> None:
    queue = Queue(fair_round_robin())
    queue.add("A " * 500)
    for number in range(200):
        queue.add(f"k{number}x")
        queue.take(2)
    assert set(names(queue.ready)) == set(queue.take().split())
    assert queue.ready.size == 0
    queue.add("B A k7x")
    assert len(queue.take().split()) == 3


def test_endless_adds_and_removes_do_not_affect_other_entries() -> None:
    for strategy in ALL:
        queue = Queue(strategy)
        queue.add("A B")
        for number in range(500):
            entry = new_entry(key=f"k{number % 100}", priority=number % 90)
            entry.ready_at = 0.0
            queue.ready.add(entry)
            queue.ready.remove(entry)
        assert sorted(queue.take().split()) == ["A1", "B1"]
