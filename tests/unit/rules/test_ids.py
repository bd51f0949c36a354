"""Ids: unique, and sorted by creation time."""

from __future__ import annotations

from poolhand.rules.job import Ids, full_id

SALT = "0123456789ab"
OFFSET = 1_790_000_000.0


def make(ids: Ids, now: float) -> str:
    number = ids.next(now)
    return full_id(ids.head, number)


def test_an_id_has_28_characters_with_its_time_and_its_salt() -> None:
    new = make(Ids(SALT, OFFSET), 12.345)
    assert len(new) == 28
    assert SALT in new
    assert abs(int(new[:11], 16) - (OFFSET + 12.345) * 1000) <= 1


def test_ids_are_unique_and_sorted_within_and_across_milliseconds() -> None:
    ids = Ids(SALT, OFFSET)
    all_of_them = [make(ids, number / 20_000) for number in range(2000)]
    assert len(set(all_of_them)) == 2000
    assert sorted(all_of_them) == all_of_them
    assert {len(one) for one in all_of_them} == {28}


def test_ids_stay_unique_and_sorted_when_the_clock_stops_or_goes_back() -> None:
    ids = Ids(SALT, OFFSET)
    moments = (5.0, 5.005, 5.004, 5.0, -3600.0, 5.005, 5.006, 5.005)
    all_of_them = [make(ids, moment) for moment in moments for _ in range(3)]
    assert len(set(all_of_them)) == 24
    assert sorted(all_of_them) == all_of_them


def test_more_ids_than_a_millisecond_can_count_run_ahead_of_the_clock() -> None:
    ids = Ids(SALT, OFFSET)
    first = last = make(ids, 5.0)
    for _ in range(0x100000 + 2):
        new = make(ids, 5.0)
        assert new > last
        last = new
    assert int(last[:11], 16) == int(first[:11], 16) + 1
    assert make(ids, 5.001) > last
    assert len(last) == 28


def test_two_sources_never_make_the_same_id() -> None:
    one, two = Ids("a" * 12, OFFSET), Ids("b" * 12, OFFSET)
    assert not {make(one, 5.0) for _ in range(100)} & {make(two, 5.0) for _ in range(100)}
