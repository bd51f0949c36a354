"""Timers: each fires once, in time, unless it was removed."""

from __future__ import annotations

from poolhand.rules.queue.entry import Timers


def test_due_items_are_returned_in_the_order_of_their_times() -> None:
    agenda: Timers[str] = Timers()
    for at, thing in ((3.0, "c"), (1.0, "a"), (2.0, "b"), (9.0, "z")):
        agenda.add(at, thing)
    assert list(agenda.due(3.0)) == ["a", "b", "c"]
    assert list(agenda) == ["z"]


def test_items_with_equal_times_are_returned_in_the_order_they_were_added() -> None:
    agenda: Timers[str] = Timers()
    for thing in "qwerty":
        agenda.add(1.0, thing)
    assert list(agenda.due(1.0)) == list("qwerty")


def test_no_item_is_returned_before_its_time_or_twice() -> None:
    agenda: Timers[str] = Timers()
    agenda.add(2.0, "a")
    assert list(agenda.due(1.999)) == []
    assert list(agenda.due(2.0)) == ["a"]
    assert list(agenda.due(99.0)) == []
    assert len(agenda) == 0


def test_an_item_added_again_moves_to_its_new_time() -> None:
    agenda: Timers[str] = Timers()
    agenda.add(1.0, "a")
    agenda.add(5.0, "a")
    assert len(agenda) == 1
    assert agenda.first() == agenda.at("a") == 5.0
    assert list(agenda.due(4.0)) == []
    agenda.add(4.5, "a")
    assert list(agenda.due(4.5)) == ["a"]


def test_a_removed_item_is_never_returned() -> None:
    agenda: Timers[str] = Timers()
    agenda.add(1.0, "a")
    agenda.add(2.0, "b")
    assert agenda.remove("a")
    assert not agenda.remove("a")
    assert agenda.first() == 2.0
    assert agenda.at("a") is None
    assert list(agenda.due(9.0)) == ["b"]


def test_empty_timers_have_no_first_time() -> None:
    assert Timers[str]().first() is None


def test_endless_adds_and_removes_leave_other_timers_unchanged() -> None:
    agenda: Timers[int] = Timers()
    agenda.add(500.5, -1)
    for number in range(1000):
        agenda.add(float(number), number)
        agenda.remove(number)
    assert list(agenda) == [-1]
    assert agenda.first() == 500.5
    assert list(agenda.due(1000.0)) == [-1]


def test_items_may_be_added_while_due_ones_are_returned() -> None:
    agenda: Timers[str] = Timers()
    agenda.add(1.0, "a")
    seen = []
    for thing in agenda.due(2.0):
        seen.append(thing)
        if thing == "a":
            agenda.add(1.5, "b")
            agenda.add(3.0, "c")
    assert seen == ["a", "b"]
    assert agenda.first() == 3.0
