"""The desk: which entry is admitted, where it waits, and which is next."""

from __future__ import annotations

import pytest

from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import Policy, bounded, fail_fast, ring_buffer, unbounded
from poolhand.rules.queue.desk import Admitted, Parked, RefusedEntry, Rejected, Verdict
from poolhand.rules.queue.entry import Entry, Window
from poolhand.rules.queue.strategy import Strategy, fair_round_robin, fifo, lifo, priority
from tests.unit.rules.floor import Floor, names, new_entry

ALL = [fifo(), lifo(), priority(), priority(aging=5.0), fair_round_robin()]
TAKEN: Verdict[Entry] = Admitted()
WHEN_FULL = [
    (bounded(2), Parked()),
    (bounded(2, "drop_newest"), Rejected()),
    (bounded(2, "fail_submitter"), RefusedEntry()),
]
DROPPING = [bounded(2, "drop_oldest"), ring_buffer(2)]


def submit_all(floor: Floor, keys: str) -> list[Entry]:
    """Submit one entry per key, named after its key and its place."""
    return [floor.submit(f"{key}{n}", key=key) for n, key in enumerate(keys.split(), 1)]


def run_all(floor: Floor, count: int) -> None:
    """Let so many entries arrive and start, one after the other."""
    for number in range(count):
        floor.submit(f"running{number}")
        assert len(floor.start()) == 1


def served_keys(floor: Floor) -> str:
    return " ".join(name[0] for name in floor.serve())


def later(name: str, opens_at: float) -> Entry:
    entry = new_entry(name)
    entry.window = Window(opens_at)
    return entry


# The next entry


@pytest.mark.parametrize("starts_at_once", [True, False])
@pytest.mark.parametrize(
    ("arrivals", "drains"),
    [
        ("A B B A A B B A", "A B A B A B A B"),
        ("A A A A A B C D", "A B C D A A A A"),
        (" ".join("A" * 100 + "B" * 100), " ".join("AB" * 100)),
        (" ".join("ABBA" * 50), " ".join("AB" * 100)),
    ],
    ids=["folded", "burst", "two bursts", "long fold"],
)
def test_keys_take_turns_also_when_the_first_starts_at_once(
    arrivals: str, drains: str, starts_at_once: bool
) -> None:
    floor = Floor(fair_round_robin())
    floor.desk.paused = not starts_at_once
    started = []
    for number, key in enumerate(arrivals.split()):
        floor.submit(f"{key}{number}", key=key)
        started += [name[0] for name in names(floor.start())]
    floor.desk.resume(floor.now)
    assert " ".join([*started, *served_keys(floor).split()]) == drains


def test_a_job_that_starts_at_once_uses_a_turn_of_its_key() -> None:
    floor = Floor(fair_round_robin())
    floor.submit("A0", key="A")
    floor.start()
    submit_all(floor, "A B B")
    assert served_keys(floor) == "B A B"


def test_after_a_burst_into_a_ring_buffer_a_new_key_alternates_with_the_burst() -> None:
    floor = Floor(fair_round_robin(), ring_buffer(6))
    floor.occupy()
    submit_all(floor, "A " * 100)
    submit_all(floor, "B B B")
    assert floor.serve() == ["A98", "B1", "A99", "B2", "A100", "B3"]


def test_cancels_cost_a_key_no_turn() -> None:
    floor = Floor(fair_round_robin())
    floor.occupy()
    burst = submit_all(floor, "A " * 50)
    for entry in burst[:46]:
        floor.cancel(entry)
    submit_all(floor, "B B B B")
    assert served_keys(floor) == "A B A B A B A B"


def test_scheduled_jobs_cost_a_key_no_turn() -> None:
    floor = Floor(fair_round_robin())
    floor.occupy()
    for number in range(4):
        floor.submit(f"A{number}", key="A", opens_at=5.0)
    submit_all(floor, "B B B B")
    floor.wait_until(5.0)
    assert served_keys(floor) == "B A B A B A B A"


def test_an_eviction_leaves_its_key_its_place_in_the_round() -> None:
    floor = Floor(fair_round_robin(), ring_buffer(2))
    floor.occupy()
    submit_all(floor, "A B")
    assert floor.submit("A3", key="A").job.status is Status.QUEUED
    assert names(floor.over) == ["A1"]
    assert served_keys(floor) == "A B"


def test_a_key_whose_jobs_are_evicted_repeatedly_still_gets_its_turn() -> None:
    floor = Floor(fair_round_robin(), ring_buffer(2))
    floor.occupy()
    floor.submit("A", key="A")
    started: list[str] = []
    for number in range(10):
        floor.submit(f"other{number}", key=f"other{number}")
        floor.submit("A", key="A")
        floor.complete(floor.running[0])
        started += names(floor.start())
    assert "A" in started[:3]


def test_a_job_that_takes_over_a_permit_takes_over_its_place_in_the_round() -> None:
    floor = Floor(fair_round_robin(), max_per_key=1)
    floor.occupy()
    first, *_ = submit_all(floor, "A A B")
    floor.cancel(first)
    assert served_keys(floor) == "A B"


def test_weights_give_a_key_more_turns() -> None:
    floor = Floor(fair_round_robin(weights={"A": 2}))
    floor.desk.paused = True
    submit_all(floor, "A " * 6 + "B " * 3)
    floor.desk.resume(floor.now)
    drained = served_keys(floor).split()
    for start in (0, 3, 6):
        assert sorted(drained[start : start + 3]) == ["A", "A", "B"]


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_a_paused_desk_gives_out_nothing(strategy: Strategy) -> None:
    floor = Floor(strategy)
    floor.desk.paused = True
    submit_all(floor, "A B")
    assert floor.start() == []
    floor.desk.resume(floor.now)
    assert len(floor.serve()) == 2


@pytest.mark.parametrize("slots", [1, 3, None])
def test_running_jobs_never_exceed_the_slots(slots: int | None) -> None:
    floor = Floor(slots=slots)
    submit_all(floor, "A " * 5)
    assert len(floor.start()) == min(5, slots or 5)
    assert floor.desk.has_slot == (slots is None)


def test_a_resized_desk_fills_its_new_slots_and_leaves_running_jobs_alone() -> None:
    floor = Floor(slots=1)
    submit_all(floor, "A " * 6)
    floor.start()
    floor.desk.resize(3, floor.now)
    assert len(floor.start()) == 2
    floor.desk.resize(1, floor.now)
    assert floor.desk.running == 3
    floor.complete(floor.running[0])
    floor.complete(floor.running[0])
    assert floor.start() == []
    floor.complete(floor.running[0])
    assert len(floor.start()) == 1


# Backpressure


@pytest.mark.parametrize(("policy", "verdict"), WHEN_FULL, ids=str)
def test_a_full_desk_answers_by_its_policy(policy: Policy, verdict: Verdict[Entry]) -> None:
    floor = Floor(policy=policy)
    verdicts = []
    for number in range(5):
        verdicts.append(floor.offer(new_entry(str(number))))
        floor.start()
    assert verdicts == [TAKEN, TAKEN, TAKEN, verdict, verdict]
    assert (floor.desk.running, floor.desk.waiting) == (1, 2)


@pytest.mark.parametrize("policy", DROPPING, ids=str)
def test_a_dropping_policy_pushes_the_oldest_waiting_job_out(policy: Policy) -> None:
    floor = Floor(policy=policy)
    for name in "abcdef":
        floor.submit(name)
        floor.start()
    assert names(floor.over) == ["b", "c", "d"]
    assert all(entry.job.status is Status.REJECTED for entry in floor.over)
    assert floor.serve() == ["e", "f"]


def test_lifo_serves_the_newest_first_with_or_without_a_session() -> None:
    floor = Floor(lifo())
    first = floor.submit("first", session="s")
    floor.start()
    floor.submit("second", session="s")
    floor.submit("third")
    floor.submit("fourth", session="t")
    floor.submit("fifth")
    floor.complete(first)
    assert floor.serve() == ["fifth", "fourth", "third", "second"]


@pytest.mark.parametrize("policy", DROPPING, ids=str)
@pytest.mark.parametrize("strategy", [fifo(), lifo(), priority()], ids=str)
def test_the_oldest_job_is_evicted_whatever_its_rank_and_waiting_state(
    policy: Policy, strategy: Strategy
) -> None:
    floor = Floor(strategy, policy, max_per_key=1)
    floor.occupy()
    floor.submit("scheduled", priority=9, opens_at=50.0)
    floor.submit("queued", key="A", priority=9)
    floor.submit("blocked", key="A")
    assert names(floor.over) == ["scheduled"]
    floor.submit("new", key="B")
    assert names(floor.over) == ["scheduled", "queued"]
    assert sorted(floor.serve()) == ["blocked", "new"]


def test_a_fair_strategy_evicts_from_the_key_with_the_most_jobs() -> None:
    floor = Floor(fair_round_robin(), ring_buffer(4))
    floor.occupy()
    submit_all(floor, "quiet A A B")
    floor.submit("new", key="B")  # A has 2, and so has B with the new entry; A's is older
    assert names(floor.over) == ["A2"]
    floor.submit("newer", key="B")
    assert names(floor.over) == ["A2", "B4"]
    floor.submit("other", key="C")
    assert names(floor.over) == ["A2", "B4", "new"]
    assert "quiet1" in floor.serve()


@pytest.mark.parametrize("policy", DROPPING, ids=str)
def test_a_running_job_is_never_evicted(policy: Policy) -> None:
    floor = Floor(policy=policy)
    runs = floor.submit("runs")
    floor.start()
    submit_all(floor, "A " * 20)
    assert runs.job.status is Status.RUNNING


@pytest.mark.parametrize("policy", DROPPING, ids=str)
def test_a_shrunk_desk_with_an_empty_queue_accepts_a_new_job(policy: Policy) -> None:
    floor = Floor(policy=policy, slots=5)
    run_all(floor, 5)
    floor.desk.resize(1, floor.now)
    assert floor.offer(new_entry("new")) == TAKEN


def test_four_parallel_submits_on_an_idle_fail_fast_pool_of_four_are_all_accepted() -> None:
    floor = Floor(policy=fail_fast(), slots=4)
    verdicts = [floor.offer(new_entry(str(number))) for number in range(5)]
    assert verdicts == [TAKEN] * 4 + [RefusedEntry()]
    assert len(floor.start()) == 4
    floor.complete(floor.running[0])
    assert floor.offer(new_entry("again")) == TAKEN


def test_a_fail_fast_pool_never_refuses_while_a_slot_is_free_and_no_job_is_queued() -> None:
    floor = Floor(policy=fail_fast())
    assert floor.offer(later("tomorrow", 86_400.0)) == TAKEN
    assert floor.offer(new_entry("now")) == TAKEN
    assert names(floor.start()) == ["now"]


def test_depth_counts_queued_blocked_and_scheduled_jobs() -> None:
    floor = Floor(policy=bounded(3, "drop_newest"), slots=1, max_per_key=1)
    floor.submit("running", key="A")
    floor.start()
    floor.submit("blocked", key="A")
    floor.submit("queued", key="B")
    floor.submit("scheduled", opens_at=9.0)
    assert (floor.desk.queued, floor.desk.blocked, floor.desk.scheduled) == (1, 1, 1)
    assert floor.offer(new_entry("one too many", key="C")) == Rejected()


def test_a_job_that_can_start_at_once_is_accepted_although_the_queue_is_full() -> None:
    floor = Floor(policy=bounded(1, "drop_newest"), slots=2)
    floor.submit("turn 1", session="s")
    floor.start()
    floor.submit("turn 2", session="s")
    assert floor.offer(new_entry("turn 3", session="s")) == Rejected()
    assert floor.offer(new_entry("free")) == TAKEN
    assert names(floor.start()) == ["free"]


def test_retries_are_requeued_without_admission_and_count_against_new_jobs() -> None:
    floor = Floor(policy=bounded(1, "drop_newest"), slots=2)
    run_all(floor, 2)
    floor.submit("third")
    for entry in list(floor.running):
        floor.retry(entry, after=9.0)
        floor.start()
    assert (floor.desk.running, floor.desk.waiting) == (1, 2)
    assert floor.offer(new_entry("new")) == Rejected()
    floor.complete(floor.running[0])
    assert floor.offer(new_entry("new")) == TAKEN


def test_an_unbounded_desk_takes_everything() -> None:
    floor = Floor(policy=unbounded())
    assert all(floor.offer(new_entry()) == TAKEN for _ in range(1000))


# Parked submitters


def full_floor() -> Floor:
    floor = Floor(policy=bounded(1))
    run_all(floor, 1)
    floor.submit("queued")
    return floor


def test_blocked_submitters_are_admitted_in_order_one_per_freed_place() -> None:
    floor = full_floor()
    for name in "abc":
        floor.submit(name)
    assert names(floor.desk.blocked_submitters) == ["a", "b", "c"]
    floor.complete(floor.running[0])
    assert names(floor.start()) == ["queued"]
    assert names(floor.desk.admitted) == ["a"]
    floor.desk.admitted.clear()
    floor.complete(floor.running[0])
    assert names(floor.start()) == ["a"]
    assert names(floor.desk.admitted) == ["b"]


def test_new_submits_queue_behind_blocked_submitters() -> None:
    floor = full_floor()
    floor.submit("parked")
    floor.complete(floor.running[0])
    assert floor.offer(new_entry("newcomer")) == Parked()
    assert floor.serve() == ["queued", "parked", "newcomer"]


def test_a_cancelled_job_admits_a_blocked_submitter() -> None:
    floor = full_floor()
    queued = next(iter(floor.desk))
    parked = floor.submit("parked")
    floor.cancel(queued)
    assert floor.desk.admitted == [parked]
    assert parked.job.status is Status.QUEUED


def test_an_expired_job_admits_a_blocked_submitter() -> None:
    floor = Floor(policy=bounded(1))
    floor.occupy()
    expiring = floor.submit("expiring", closes_at=5.0)
    parked = floor.submit("parked")
    assert floor.wait_until(5.0) == [expiring]
    assert floor.desk.admitted == [parked]


def test_a_new_slot_admits_blocked_submitters() -> None:
    floor = full_floor()
    for name in "abc":
        floor.submit(name)
    floor.desk.resize(3, floor.now)
    assert names(floor.start()) == ["queued", "a"]
    assert names(floor.desk.admitted) == ["a", "b"]
    assert names(floor.desk.blocked_submitters) == ["c"]


def test_a_cancelled_blocked_submitter_leaves_at_once_and_the_others_move_up() -> None:
    floor = full_floor()
    _, b, _ = (floor.submit(name) for name in "abc")
    floor.desk.withdraw(b, floor.now)
    assert names(floor.desk.blocked_submitters) == ["a", "c"]
    assert floor.serve() == ["queued", "a", "c"]


def test_a_withdrawn_submit_admits_a_later_one_that_can_start_at_once() -> None:
    floor = Floor(policy=bounded(1), slots=2)
    floor.submit("turn 1", session="s")
    floor.start()
    floor.submit("turn 2", session="s")
    turn = floor.submit("turn 3", session="s")
    floor.submit("free")
    assert names(floor.desk.blocked_submitters) == ["turn 3", "free"]
    floor.desk.withdraw(turn, floor.now)
    assert names(floor.start()) == ["free"]


def test_a_resumed_desk_admits_blocked_submitters_for_which_a_slot_is_free() -> None:
    floor = Floor(policy=bounded(1))
    floor.submit("tomorrow", opens_at=86_400.0)
    floor.desk.paused = True
    floor.submit("parked")
    assert floor.desk.blocked_submitters.size == 1
    floor.desk.resume(floor.now)
    assert names(floor.start()) == ["parked"]


def test_a_released_session_admits_a_blocked_turn_although_its_slot_is_stuck() -> None:
    floor = Floor(policy=bounded(1), slots=2)
    stuck = floor.submit("stuck", session="s")
    floor.start()
    floor.submit("tomorrow", opens_at=86_400.0)
    floor.submit("turn", session="s")
    assert floor.desk.blocked_submitters.size == 1
    floor.end(stuck, Status.FAILED)
    assert names(floor.start()) == ["turn"]


# Time


def test_a_delayed_job_is_queued_when_its_time_has_come_and_not_before() -> None:
    floor = Floor()
    delayed = floor.submit("delayed", opens_at=5.0)
    assert floor.desk.scheduled == 1
    assert floor.desk.due_of(delayed) == floor.desk.wake_at() == 5.0
    assert floor.wait_until(4.9) == []
    assert floor.start() == []
    floor.wait_until(5.0)
    assert (floor.desk.scheduled, floor.desk.queued) == (0, 1)
    assert floor.start() == [delayed]
    assert floor.desk.wake_at() is None


def test_a_delay_in_the_past_is_no_delay() -> None:
    floor = Floor()
    floor.now = 10.0
    assert floor.submit("late", opens_at=10.0).job.status is Status.QUEUED


def test_delayed_jobs_are_queued_in_the_order_of_their_times() -> None:
    floor = Floor()
    for name, opens_at in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        floor.submit(name, opens_at=opens_at)
    floor.wait_until(9.0)
    assert floor.serve() == ["a", "b", "c"]


@pytest.mark.parametrize("place", ["queued", "scheduled", "session", "key"])
def test_a_job_expires_in_every_waiting_state(place: str) -> None:
    floor = Floor(slots=9, max_per_key=1)
    floor.submit("holder", key="A", session="s")
    floor.start()
    floor.desk.paused = place == "queued"
    entry = floor.submit(
        "expires",
        key="A" if place == "key" else "B",
        session="s" if place == "session" else None,
        opens_at=99.0 if place == "scheduled" else None,
        closes_at=5.0,
    )
    assert place in (entry.job.status, entry.job.blocked_on)
    assert floor.desk.wake_at() == 5.0
    assert floor.wait_until(4.9) == []
    assert floor.wait_until(5.0) == [entry]
    assert floor.desk.waiting == 0
    floor.desk.resume(floor.now)
    assert floor.start() == []


def test_all_overdue_jobs_expire_together_in_the_order_of_their_times() -> None:
    floor = Floor(max_per_key=1)
    floor.occupy()
    for name, closes_at in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("z", 9.0)):
        floor.submit(name, key="A", session=f"session {name}", closes_at=closes_at)
    assert names(floor.wait_until(5.0)) == ["a", "b", "c"]
    assert names(floor.desk) == ["z"]
    assert floor.desk.queued == 1


def test_a_job_that_has_started_does_not_expire() -> None:
    floor = Floor()
    floor.submit("starts", closes_at=5.0)
    floor.start()
    assert floor.wait_until(99.0) == []
    assert floor.desk.wake_at() is None


def test_an_expired_job_is_never_started() -> None:
    floor = Floor()
    floor.occupy()
    floor.submit("expired", closes_at=5.0)
    floor.submit("fresh")
    floor.now = 6.0
    floor.complete(floor.running[0])
    assert names(floor.start()) == ["fresh"]


def test_an_expired_job_of_a_blocked_submitter_is_never_started() -> None:
    floor = full_floor()
    floor.submit("parked", closes_at=5.0)
    floor.now = 6.0
    assert floor.serve() == ["queued"]
    floor.wait_until(6.0)
    assert names(floor.over).count("parked") == 1


def test_the_start_time_of_a_blocked_submit_is_not_missed_between_checks() -> None:
    floor = Floor(policy=bounded(1), slots=2, max_per_key=1)
    floor.submit("holder", key="A")
    floor.start()
    floor.submit("blocked", key="A")
    parked = floor.submit("parked", key="B", opens_at=5.0)
    assert names(floor.desk.blocked_submitters) == ["parked"]
    floor.now = 6.0
    assert floor.desk.wake_at() == 5.0
    floor.wait_until(6.0)
    assert floor.start() == [parked]
    assert floor.desk.wake_at() is None


def test_a_withdrawn_submit_has_no_timer_left() -> None:
    floor = Floor(policy=bounded(1), slots=2, max_per_key=1)
    floor.submit("holder", key="A")
    floor.start()
    floor.submit("blocked", key="A")
    parked = floor.submit("parked", key="B", opens_at=5.0)
    floor.desk.withdraw(parked, floor.now)
    assert floor.desk.wake_at() is None


def test_a_retry_waits_for_its_time_and_goes_to_the_end_of_the_queue() -> None:
    floor = Floor()
    first = floor.submit("first")
    floor.start()
    floor.submit("second")
    floor.retry(first)
    assert floor.serve() == ["second", "first"]
    again = floor.submit("again")
    floor.start()
    floor.retry(again, after=5.0)
    assert again.job.status is Status.SCHEDULED
    assert floor.desk.wake_at() == 5.0
    floor.wait_until(5.0)
    assert floor.start() == [again]


# Counting


def test_every_waiting_job_is_counted_and_found_in_one_place() -> None:
    floor = Floor(slots=1, max_per_key=1)
    floor.submit("running", key="A", session="s")
    floor.start()
    floor.submit("session", key="A", session="s")
    floor.submit("key", key="A")
    floor.submit("queued", key="B")
    floor.submit("scheduled", opens_at=5.0)
    desk = floor.desk
    assert (desk.queued, desk.blocked, desk.scheduled, desk.waiting) == (1, 2, 1, 4)
    assert sorted(names(desk)) == ["key", "queued", "scheduled", "session"]
    for entry in list(desk):
        floor.cancel(entry)
    assert (desk.queued, desk.blocked, desk.scheduled, desk.waiting) == (0, 0, 0, 0)
    assert list(desk) == []


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_the_jobs_ahead_of_a_queued_job_are_served_before_it(strategy: Strategy) -> None:
    floor = Floor(strategy)
    floor.occupy()
    entries = submit_all(floor, "A A B A C")
    ahead = {entry.job.id: floor.desk.ahead_of(entry) for entry in entries}
    assert floor.serve() == sorted(ahead, key=lambda name: ahead[name])


def test_the_holders_of_a_key_are_its_running_and_queued_jobs() -> None:
    floor = Floor(slots=1, max_per_key=2)
    floor.submit("running", key="A")
    floor.start()
    for name in ("queued", "blocked"):
        floor.submit(name, key="A")
    floor.submit("other", key="B")
    assert names(floor.desk.holders_of_key("A", floor.running)) == ["running", "queued"]
