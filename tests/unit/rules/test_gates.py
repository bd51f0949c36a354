"""Gates: one turn per session, a limited number of jobs per key."""

from __future__ import annotations

import pytest

from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import ring_buffer
from poolhand.rules.queue.entry import Entry
from poolhand.rules.queue.gates import KeyGates, Sessions
from poolhand.rules.queue.strategy import Strategy, fair_round_robin, fifo, lifo, priority
from tests.unit.rules.floor import Floor, names, new_entry

ALL = [fifo(), lifo(), priority(), priority(aging=5.0), fair_round_robin()]


def where(entry: Entry) -> str:
    return f"{entry.job.status} {entry.job.blocked_on or ''}".strip()


def test_a_session_runs_one_turn_at_a_time() -> None:
    floor = Floor(slots=4)
    turns = [floor.submit(name, session="s") for name in "abc"]
    assert names(floor.start()) == ["a"]
    assert [where(turn) for turn in turns] == ["running", "blocked session", "blocked session"]
    floor.complete(turns[0])
    assert names(floor.start()) == ["b"]


def test_other_sessions_run_concurrently() -> None:
    floor = Floor(slots=4)
    floor.submit("s1", session="s")
    floor.submit("s2", session="s")
    floor.submit("t1", session="t")
    floor.submit("free")
    assert names(floor.start()) == ["s1", "t1", "free"]


def test_sessions_are_per_tenant() -> None:
    floor = Floor(slots=4)
    for tenant in (None, "acme", "zorro"):
        floor.submit(str(tenant), session="s", tenant=tenant)
    assert names(floor.start()) == ["None", "acme", "zorro"]


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_inside_a_session_submit_order_beats_the_strategy(strategy: Strategy) -> None:
    floor = Floor(strategy)
    floor.occupy()
    for level, name in enumerate("abcd"):
        floor.submit(name, session="s", priority=level)
    assert floor.serve() == list("abcd")


def test_a_retry_keeps_its_session_while_it_waits() -> None:
    floor = Floor(slots=4)
    first = floor.submit("first", session="s")
    second = floor.submit("second", session="s")
    floor.start()
    floor.retry(first, after=10.0)
    assert floor.start() == []
    assert (where(first), where(second)) == ("scheduled", "blocked session")
    floor.wait_until(10.0)
    assert names(floor.start()) == ["first"]
    floor.complete(first)
    assert names(floor.start()) == ["second"]


def test_a_turn_that_leaves_before_it_ran_passes_its_session_on() -> None:
    floor = Floor(slots=1)
    floor.occupy()
    turns = [floor.submit(name, session="s") for name in "abc"]
    floor.cancel(turns[1])
    floor.cancel(turns[0])
    assert where(turns[2]) == "queued"
    assert floor.serve() == ["c"]


def test_a_delayed_turn_blocks_no_other_and_is_served_first_when_due() -> None:
    floor = Floor(slots=4)
    floor.submit("later", session="s", opens_at=5.0)
    now = floor.submit("now", session="s")
    floor.submit("last", session="s")
    assert names(floor.start()) == ["now"]
    floor.wait_until(5.0)
    floor.complete(now)
    assert names(floor.start()) == ["later"]


def test_an_evicted_turn_passes_its_session_to_the_job_that_evicted_it() -> None:
    floor = Floor(policy=ring_buffer(1))
    floor.occupy()
    victim = floor.submit("victim", session="s")
    newcomer = floor.submit("newcomer", session="s")
    assert where(victim) == "rejected"
    assert where(newcomer) == "queued"
    assert floor.serve() == ["newcomer"]


def test_an_entry_without_a_session_passes_and_holds_nothing() -> None:
    sessions: Sessions[Entry] = Sessions()
    entry = new_entry()
    assert sessions.enter(entry)
    assert sessions.holder(entry.job) is None
    assert sessions.leave(entry) is None


def test_a_session_is_free_again_when_its_last_turn_is_over() -> None:
    sessions: Sessions[Entry] = Sessions()
    one, two = (new_entry(name, session="s", seq=seq) for seq, name in enumerate("ab"))
    assert sessions.enter(one)
    assert not sessions.enter(two)
    assert list(sessions) == [two]
    assert sessions.leave(two) is None
    assert sessions.holder(two.job) is one
    assert sessions.leave(one) is two
    assert sessions.leave(two) is None
    assert sessions.holder(one.job) is None


def test_max_per_key_jobs_of_a_key_run_at_once() -> None:
    floor = Floor(slots=9, max_per_key=2)
    jobs = [floor.submit(f"{key}{number}", key=key) for key in "AB" for number in range(3)]
    assert names(floor.start()) == ["A0", "A1", "B0", "B1"]
    assert where(jobs[2]) == "blocked key"
    floor.complete(jobs[1])
    assert names(floor.start()) == ["A2"]


def test_the_cap_of_a_key_holds_until_the_slot_is_really_free() -> None:
    floor = Floor(slots=9, max_per_key=1)
    stuck = floor.submit("stuck", key="A")
    floor.submit("next", key="A")
    floor.start()
    floor.end(stuck, Status.FAILED)
    assert floor.start() == []
    floor.desk.vacate("A", floor.now)
    assert names(floor.start()) == ["next"]


def test_a_job_behind_its_key_cap_does_not_block_other_keys() -> None:
    floor = Floor(slots=2, max_per_key=1)
    for name in ("A1", "A2", "A3", "B1"):
        floor.submit(name, key=name[0])
    assert names(floor.start()) == ["A1", "B1"]


def test_an_urgent_new_job_takes_the_permit_of_a_queued_one_of_lower_priority() -> None:
    floor = Floor(priority(), slots=1, max_per_key=1)
    floor.occupy()
    lesser = floor.submit("lesser", key="A", priority=0)
    other = floor.submit("other", key="B", priority=1)
    urgent = floor.submit("urgent", key="A", priority=9)
    assert (where(lesser), where(urgent), where(other)) == ("blocked key", "queued", "queued")
    assert floor.serve() == ["urgent", "other", "lesser"]


def test_the_least_of_the_queued_jobs_gives_up_its_permit() -> None:
    floor = Floor(priority(), slots=1, max_per_key=2)
    floor.occupy()
    for name, level in (("five", 5), ("three", 3), ("four", 4)):
        floor.submit(name, key="A", priority=level)
    assert floor.serve() == ["five", "four", "three"]


def test_a_new_job_of_equal_priority_takes_no_permit() -> None:
    for strategy in (fifo(), priority(), fair_round_robin()):
        floor = Floor(strategy, slots=1, max_per_key=1)
        floor.occupy()
        first = floor.submit("first", key="A")
        second = floor.submit("second", key="A")
        assert (where(first), where(second)) == ("queued", "blocked key")


def test_a_running_job_never_gives_up_its_permit() -> None:
    floor = Floor(priority(), slots=2, max_per_key=1)
    running = floor.submit("running", key="A", priority=0)
    floor.start()
    urgent = floor.submit("urgent", key="A", priority=9)
    assert where(urgent) == "blocked key"
    assert floor.start() == []
    floor.complete(running)
    assert floor.start() == [urgent]


def test_a_job_that_gave_up_its_permit_keeps_its_place_among_equals() -> None:
    floor = Floor(priority(), slots=1, max_per_key=1)
    floor.occupy()
    for name, level in (("first", 0), ("second", 0), ("urgent", 5)):
        floor.submit(name, key="A", priority=level)
    assert floor.serve() == ["urgent", "first", "second"]


def test_jobs_without_a_permit_get_one_in_queue_order() -> None:
    floor = Floor(priority(), slots=1, max_per_key=1)
    floor.submit("running", key="A", priority=9)
    floor.start()
    for name, level in (("b", 1), ("c", 1), ("a", 2), ("d", 0)):
        floor.submit(name, key="A", priority=level)
    assert floor.serve() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_lifo_holds_inside_a_key_with_a_cap(cap: int) -> None:
    floor = Floor(lifo(), slots=1, max_per_key=cap)
    floor.occupy()
    for name in "abcdef":
        floor.submit(name, key="A")
    assert floor.serve() == list("fedcba")


def test_a_queued_job_that_leaves_passes_its_permit_on() -> None:
    floor = Floor(slots=1, max_per_key=1)
    floor.occupy()
    first = floor.submit("first", key="A")
    second = floor.submit("second", key="A")
    floor.cancel(first)
    assert where(second) == "queued"
    assert floor.serve() == ["second"]


def test_a_job_that_leaves_while_it_waits_for_its_key_takes_no_permit_with_it() -> None:
    floor = Floor(slots=1, max_per_key=1)
    floor.occupy()
    for name in "abc":
        floor.submit(name, key="A")
    floor.cancel(next(entry for entry in floor.desk if entry.job.id == "b"))
    assert floor.serve() == ["a", "c"]


def test_a_retry_needs_a_key_permit_again() -> None:
    floor = Floor(slots=4, max_per_key=1)
    first = floor.submit("first", key="A")
    floor.submit("second", key="A")
    floor.start()
    floor.retry(first, after=5.0)
    assert names(floor.start()) == ["second"]
    floor.wait_until(5.0)
    assert where(first) == "blocked key"
    floor.complete(floor.running[0])
    assert names(floor.start()) == ["first"]


def test_a_turn_passes_the_gate_of_its_session_first_and_then_that_of_its_key() -> None:
    floor = Floor(slots=9, max_per_key=1)
    first = floor.submit("first", key="A", session="s")
    floor.submit("other", key="A")
    floor.start()
    second = floor.submit("second", key="A", session="s")
    assert where(second) == "blocked session"
    floor.running.remove(first)
    floor.end(first, Status.COMPLETED)
    assert where(second) == "blocked key"
    floor.desk.vacate("A", floor.now)
    assert names(floor.start()) == ["other"]
    floor.complete(floor.running[0])
    assert names(floor.start()) == ["second"]


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_the_jobs_of_the_key_ahead_are_counted(strategy: Strategy) -> None:
    floor = Floor(strategy, slots=1, max_per_key=2)
    floor.occupy()
    for number in range(6):
        floor.submit(str(number), key="A", priority=-number)
    assert floor.desk.gates is not None
    ahead = {
        entry.job.id: floor.desk.gates.ahead_of(entry)
        for entry in floor.desk
        if entry.job.status is Status.BLOCKED
    }
    served = floor.serve()
    assert ahead == {name: served.index(name) for name in ahead}
    assert len(ahead) == 4


def test_a_gate_without_jobs_is_open() -> None:
    gates: KeyGates[Entry] = KeyGates(1, fifo())
    assert gates.is_open("A")
    entry = new_entry(key="A", seq=1)
    assert gates.enter(entry) is None
    assert not gates.is_open("A")
    assert gates.queued("A") == (entry,)
    gates.start(entry)
    assert gates.queued("A") == ()
    assert gates.vacate("A") is None
    assert gates.is_open("A")
    assert gates.queued("B") == ()
