"""Timers: each fires once, in time, unless it was removed."""

from __future__ import annotations

from poolhand.rules.queue.entry import Timers


def test_what_is_due_comes_up_in_the_order_of_its_moments() -> None:
    agenda: Timers[str] = Timers()
    for at, thing in ((3.0, "c"), (1.0, "a"), (2.0, "b"), (9.0, "z")):
        agenda.add(at, thing)
    assert list(agenda.due(3.0)) == ["a", "b", "c"]
    assert list(agenda) == ["z"]


def test_things_of_one_moment_come_up_in_the_order_they_were_added() -> None:
    agenda: Timers[str] = Timers()
    for thing in "qwerty":
        agenda.add(1.0, thing)
    assert list(agenda.due(1.0)) == list("qwerty")


def test_nothing_comes_up_before_its_moment_or_twice() -> None:
    agenda: Timers[str] = Timers()
    agenda.add(2.0, "a")
    assert list(agenda.due(1.999)) == []
    assert list(agenda.due(2.0)) == ["a"]
    assert list(agenda.due(99.0)) == []
    assert len(agenda) == 0


def test_a_thing_added_again_moves_to_its_new_moment() -> None:
    agenda: Timers[str] = Timers()
    agenda.add(1.0, "a")
    agenda.add(5.0, "a")
    assert len(agenda) == 1
    assert agenda.first() == agenda.at("a") == 5.0
    assert list(agenda.due(4.0)) == []
    agenda.add(4.5, "a")
    assert list(agenda.due(4.5)) == ["a"]


def test_what_was_taken_off_never_comes_up() -> None:
    agenda: Timers[str] = Timers()
    agenda.add(1.0, "a")
    agenda.add(2.0, "b")
    assert agenda.remove("a")
    assert not agenda.remove("a")
    assert agenda.first() == 2.0
    assert agenda.at("a") is None
    assert list(agenda.due(9.0)) == ["b"]


def test_an_empty_agenda_has_no_first_moment() -> None:
    assert Timers[str]().first() is None


def test_arming_and_disarming_for_ever_leaves_the_living_untouched() -> None:
    agenda: Timers[int] = Timers()
    agenda.add(500.5, -1)
    for number in range(1000):
        agenda.add(float(number), number)
        agenda.remove(number)
    assert list(agenda) == [-1]
    assert agenda.first() == 500.5
    assert list(agenda.due(1000.0)) == [-1]


def test_things_may_be_added_while_the_due_ones_are_taken_off() -> None:
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
