"""Eviction: which waiting entry is dropped."""

from __future__ import annotations

from poolhand.rules.queue.backpressure import EvictionIndex
from poolhand.rules.queue.entry import Entry
from tests.unit.rules.floor import new_entry


class Room:
    """An index whose entries are named by key and order of arrival."""

    def __init__(self, arrivals: str = "") -> None:
        self.crowd: EvictionIndex[Entry] = EvictionIndex()
        self.entries: dict[str, Entry] = {}
        for key in arrivals.split():
            self.enter(key)

    def enter(self, key: str) -> None:
        seq = len(self.entries) + 1
        entry = new_entry(f"{key}{seq}", key=key, seq=seq)
        self.entries[entry.job.id] = entry
        self.crowd.enter(key, entry)

    def leave(self, name: str) -> None:
        entry = self.entries[name]
        self.crowd.leave(entry.job.key, entry)

    def come_back(self, name: str) -> None:
        entry = self.entries[name]
        self.crowd.enter(entry.job.key, entry)

    def victim(self, newcomer: str) -> str:
        return self.crowd.victim(newcomer).job.id


def test_the_oldest_job_of_the_key_with_the_most_jobs_is_evicted() -> None:
    assert Room("A B B C").victim("D") == "B2"


def test_the_new_job_counts_for_its_key() -> None:
    assert Room("A A B B B").victim("B") == "B3"
    assert Room("A B B").victim("B") == "B2"
    assert Room("A A A B B").victim("B") == "A1"


def test_two_equally_crowded_keys_lose_the_oldest_job_among_them() -> None:
    assert Room("B A A B").victim("C") == "B1"
    assert Room("A B B").victim("A") == "A1"
    assert Room("B A B").victim("A") == "B1"


def test_a_new_job_of_a_new_key_is_never_evicted_itself() -> None:
    assert Room("A B C").victim("D") == "A1"


def test_a_quiet_key_is_never_evicted_by_a_bursting_one() -> None:
    room = Room("quiet A A A")
    for _ in range(100):
        victim = room.victim("A")
        assert victim != "quiet1"
        room.leave(victim)
        room.enter("A")


def test_jobs_that_left_are_not_counted() -> None:
    room = Room("A A A B B")
    room.leave("A1")
    room.leave("A3")
    assert room.victim("C") == "B4"


def test_a_job_that_returns_for_a_retry_keeps_its_age() -> None:
    room = Room("A A B B")
    room.leave("B3")
    room.leave("A1")
    room.enter("A")
    assert room.victim("C") == "A2"
    room.come_back("A1")
    assert room.victim("C") == "A1"


def test_many_jobs_coming_and_going_do_not_change_the_choice() -> None:
    room = Room("A B")
    for number in range(300):
        room.enter("C" if number % 3 else "B")
        room.leave(list(room.entries)[-1])
    assert room.victim("D") == "A1"
    assert room.victim("B") == "B2"
