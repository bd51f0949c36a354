"""Deadlock rules: when an awaited job can never end."""

from __future__ import annotations

from poolhand.rules import deadlock
from poolhand.rules.job import Status
from poolhand.rules.queue.entry import Entry
from tests.unit.rules.floor import Floor


def lost_of(
    floor: Floor, targets: list[Entry], awaited: dict[Entry, list[Entry]], *stuck: str
) -> set[Entry]:
    return deadlock.hopeless(
        targets, deadlock.PoolFloor(floor.desk, floor.running, awaited, set(stuck))
    )


def is_hopeless(floor: Floor, entry: Entry, awaited: dict[Entry, list[Entry]]) -> bool:
    return bool(lost_of(floor, [entry], awaited))


def test_a_job_that_waits_for_one_which_needs_its_slot_is_deadlocked() -> None:
    floor = Floor(slots=1)
    outer = floor.submit("outer")
    floor.start()
    inner = floor.submit("inner")
    assert is_hopeless(floor, inner, {outer: [inner]})


def test_with_a_free_slot_the_inner_job_can_start() -> None:
    floor = Floor(slots=2)
    outer = floor.submit("outer")
    floor.start()
    inner = floor.submit("inner")
    assert not is_hopeless(floor, inner, {outer: [inner]})
    floor.start()
    assert not is_hopeless(floor, inner, {outer: [inner]})


def test_a_running_job_that_does_not_wait_prevents_a_deadlock() -> None:
    floor = Floor(slots=2)
    outer = floor.submit("outer")
    floor.submit("busy")
    floor.start()
    inner = floor.submit("inner")
    assert not is_hopeless(floor, inner, {outer: [inner]})


def test_when_all_running_jobs_wait_for_queued_ones_all_are_deadlocked() -> None:
    floor = Floor(slots=3)
    outer = [floor.submit(f"outer{n}") for n in range(3)]
    floor.start()
    inner = [floor.submit(f"inner{n}") for n in range(3)]
    awaited = {one: [other] for one, other in zip(outer, inner, strict=True)}
    assert all(is_hopeless(floor, one, awaited) for one in inner)
    assert all(is_hopeless(floor, one, awaited) for one in outer)


def test_two_jobs_that_wait_for_each_other_are_deadlocked() -> None:
    floor = Floor(slots=4)
    one, two = floor.submit("one"), floor.submit("two")
    floor.start()
    assert is_hopeless(floor, one, {one: [two], two: [one]})
    assert is_hopeless(floor, one, {one: [one]})
    assert not is_hopeless(floor, one, {one: [two]})


def test_a_job_that_waits_for_several_is_not_deadlocked_while_one_can_run() -> None:
    floor = Floor(slots=2)
    outer, busy = floor.submit("outer"), floor.submit("busy")
    floor.start()
    inner = floor.submit("inner")
    assert not is_hopeless(floor, outer, {outer: [inner, busy]})


def test_a_turn_that_waits_for_its_own_session_is_deadlocked_even_with_free_slots() -> None:
    floor = Floor(slots=9)
    outer = floor.submit("outer", session="s")
    floor.start()
    inner = floor.submit("inner", session="s")
    assert is_hopeless(floor, inner, {outer: [inner]})
    wrong_owner = floor.submit("stranger", session="t")
    assert not is_hopeless(floor, wrong_owner, {outer: [inner]})


def test_a_job_behind_its_own_key_cap_is_deadlocked_even_with_free_slots() -> None:
    floor = Floor(slots=9, max_per_key=1)
    outer = floor.submit("outer", key="A")
    floor.start()
    inner = floor.submit("inner", key="A")
    assert is_hopeless(floor, inner, {outer: [inner]})
    assert not is_hopeless(floor, floor.submit("other", key="B"), {outer: [inner]})


def test_a_key_is_not_deadlocked_while_one_of_its_holders_can_continue() -> None:
    floor = Floor(slots=9, max_per_key=2)
    outer = floor.submit("outer", key="A")
    floor.submit("busy", key="A")
    floor.start()
    inner = floor.submit("inner", key="A")
    assert not is_hopeless(floor, inner, {outer: [inner]})


def test_deadlocks_are_detected_through_chains_of_waiting_jobs() -> None:
    floor = Floor(slots=2, max_per_key=1)
    outer = floor.submit("outer", key="A")
    other = floor.submit("other", key="B", session="s")
    floor.start()
    queued = floor.submit("queued", key="C")
    turn = floor.submit("turn", key="A", session="s")
    chain = {outer: [queued], other: [turn]}
    assert turn.job.blocked_on == "session"
    assert is_hopeless(floor, turn, chain)
    assert not is_hopeless(floor, turn, {outer: [queued]})


def test_a_paused_pool_is_no_deadlock() -> None:
    floor = Floor(slots=1)
    outer = floor.submit("outer")
    floor.start()
    inner = floor.submit("inner")
    floor.desk.paused = True
    assert not is_hopeless(floor, inner, {outer: [inner]})


def test_a_scheduled_job_is_deadlocked_when_no_slot_can_become_free() -> None:
    floor = Floor(slots=1)
    outer = floor.submit("outer")
    floor.start()
    later = floor.submit("later", opens_at=5.0)
    assert later.job.status is Status.SCHEDULED
    assert is_hopeless(floor, later, {outer: [later]})
    floor.desk.resize(2, floor.now)
    assert not is_hopeless(floor, later, {outer: [later]})


def test_waiting_for_a_finished_job_is_not_a_deadlock() -> None:
    floor = Floor(slots=1)
    outer, gone = floor.submit("outer"), floor.submit("gone")
    floor.start()
    floor.cancel(gone)
    assert not is_hopeless(floor, gone, {outer: [gone]})
    assert not is_hopeless(floor, outer, {outer: [gone]})


def test_a_wait_for_several_jobs_is_not_deadlocked_while_one_can_run() -> None:
    floor = Floor(slots=9, max_per_key=1)
    outer = floor.submit("outer", key="A")
    floor.start()
    inner, other = floor.submit("inner", key="A"), floor.submit("other", key="B")
    lost = lost_of(floor, [inner, other], {outer: [inner, other]})
    assert lost == set()
    lost = lost_of(floor, [inner, other], {outer: [inner]})
    assert lost == {inner}


def test_a_stuck_slot_prevents_a_deadlock() -> None:
    floor = Floor(slots=1)
    outer = floor.submit("outer")
    floor.start()
    inner = floor.submit("inner")
    assert lost_of(floor, [inner], {outer: [inner]}) == {inner}
    assert lost_of(floor, [inner], {outer: [inner]}, "somebody") == set()
