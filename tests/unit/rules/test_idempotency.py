"""Idempotency keys: one job per key, its outcome, and when a key is forgotten."""

from __future__ import annotations

import pytest

from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import Policy, bounded, fail_fast, ring_buffer
from poolhand.rules.queue.desk import Admitted, Joined, Parked, RefusedEntry, Rejected, Verdict
from poolhand.rules.queue.entry import Entry
from poolhand.rules.queue.idempotency import IdempotencyKeys
from tests.unit.rules.floor import Floor, names, new_entry, new_job


def offer(floor: Floor, name: str, key: str = "k", rerun: bool = False) -> Verdict[Entry]:
    return floor.offer(new_entry(name, idempotency_key=key), rerun)


def finished(
    keys: IdempotencyKeys[Entry], key: str, now: float, status: Status = Status.FAILED
) -> Entry:
    entry = Entry(new_job(key, idempotency_key=key, status=status))
    keys.hold(entry)
    keys.finish(entry, now)
    return entry


def test_a_hundred_submits_of_one_key_are_one_job() -> None:
    floor = Floor()
    first = floor.submit("first", idempotency_key="k")
    for number in range(99):
        assert offer(floor, str(number)) == Joined(first)
    assert floor.serve() == ["first"]


def test_a_key_joins_its_job_wherever_it_is() -> None:
    floor = Floor(policy=bounded(1))
    first = floor.submit("first", idempotency_key="k")
    for _ in ("queued", "running", "completed"):
        assert offer(floor, "again") == Joined(first)
        if first.job.status is Status.QUEUED:
            floor.start()
        elif first.job.status is Status.RUNNING:
            floor.complete(first)
    later = floor.submit("later", idempotency_key="later", opens_at=5.0)
    assert offer(floor, "again", "later") == Joined(later)


def test_a_key_joins_the_job_of_a_blocked_submitter() -> None:
    floor = Floor(policy=bounded(1))
    floor.occupy()
    floor.submit("waits")
    parked = new_entry("parked", idempotency_key="k")
    assert floor.offer(parked) == Parked()
    assert offer(floor, "again") == Joined(parked)
    assert floor.desk.blocked_submitters.size == 1
    assert floor.serve() == ["waits", "parked"]
    assert offer(floor, "again") == Joined(parked)


def test_a_withdrawn_submit_frees_its_key() -> None:
    floor = Floor(policy=bounded(1))
    floor.occupy()
    floor.submit("waits")
    parked = floor.submit("parked", idempotency_key="k")
    floor.desk.withdraw(parked, floor.now)
    assert offer(floor, "again") == Parked()


def test_a_withdrawn_rerun_restores_the_first_outcome() -> None:
    floor = Floor(policy=bounded(1))
    first = floor.submit("first", idempotency_key="k")
    floor.start()
    floor.fail(first)
    floor.occupy()
    floor.submit("waits")
    rerun = new_entry("rerun", idempotency_key="k")
    assert floor.offer(rerun, rerun=True) == Parked()
    assert offer(floor, "again") == Joined(rerun)
    floor.desk.withdraw(rerun, floor.now)
    assert offer(floor, "again") == Joined(first)


def test_keys_are_per_tenant() -> None:
    floor = Floor()
    for tenant in (None, "acme", "zorro"):
        entry = floor.submit("one", idempotency_key="k", tenant=tenant)
        again = new_entry("two", idempotency_key="k", tenant=tenant)
        assert floor.offer(again) == Joined(entry)
    assert floor.desk.waiting == 3


def test_a_job_without_a_key_is_always_new() -> None:
    floor = Floor()
    for name in "abc":
        floor.submit(name)
    assert floor.serve() == ["a", "b", "c"]


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_a_terminal_key_returns_its_outcome_until_its_ttl_has_passed(status: Status) -> None:
    floor = Floor(key_ttl=10.0)
    first = floor.submit("first", idempotency_key="k")
    floor.start()
    floor.now = 5.0
    floor.running.remove(first)
    floor.end(first, status)
    floor.desk.vacate("", floor.now)
    floor.now = 14.9
    assert offer(floor, "again") == Joined(first)
    floor.now = 15.0
    assert isinstance(offer(floor, "again"), Admitted)


def test_the_time_of_a_key_starts_with_the_outcome_and_not_with_the_submit() -> None:
    floor = Floor(key_ttl=1.0)
    first = floor.submit("first", idempotency_key="k")
    floor.now = 100.0
    assert offer(floor, "again") == Joined(first)


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED, Status.EXPIRED])
def test_a_key_without_success_runs_again_when_asked_to(status: Status) -> None:
    floor = Floor()
    first = floor.submit("first", idempotency_key="k")
    floor.desk.remove(first, 0.0)
    floor.end(first, status)
    assert offer(floor, "no") == Joined(first)
    second = new_entry("second", idempotency_key="k")
    assert isinstance(floor.offer(second, rerun=True), Admitted)
    assert offer(floor, "again", rerun=True) == Joined(second)


def test_a_key_with_success_is_never_run_again() -> None:
    floor = Floor()
    first = floor.submit("first", idempotency_key="k")
    floor.serve()
    assert offer(floor, "again", rerun=True) == Joined(first)


def test_the_outcome_of_a_rerun_replaces_the_first_one() -> None:
    floor = Floor(key_ttl=10.0)
    first = floor.submit("first", idempotency_key="k")
    floor.start()
    floor.fail(first)
    floor.now = 8.0
    second = new_entry("second", idempotency_key="k")
    floor.offer(second, rerun=True)
    floor.serve()
    floor.now = 17.0  # the first outcome is long past
    assert offer(floor, "again") == Joined(second)


@pytest.mark.parametrize("policy", [bounded(1, "drop_oldest"), ring_buffer(1)], ids=str)
def test_an_evicted_job_frees_its_key(policy: Policy) -> None:
    floor = Floor(policy=policy)
    floor.occupy()
    victim = floor.submit("victim", idempotency_key="k")
    floor.submit("newcomer")
    assert victim.job.status is Status.REJECTED
    assert isinstance(offer(floor, "again"), Admitted)


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        (bounded(1, "drop_newest"), Rejected()),
        (bounded(1, "fail_submitter"), RefusedEntry()),
        (fail_fast(), RefusedEntry()),
    ],
    ids=str,
)
def test_a_rejected_job_leaves_no_key_behind(policy: Policy, verdict: Verdict[Entry]) -> None:
    floor = Floor(policy=policy)
    floor.occupy()
    floor.submit("waits")
    assert offer(floor, "first") == verdict
    assert offer(floor, "second") == verdict
    floor.serve()
    assert isinstance(offer(floor, "third"), Admitted)
    assert floor.serve() == ["third"]


def test_a_rejected_rerun_keeps_the_first_outcome() -> None:
    floor = Floor(policy=bounded(1, "drop_newest"))
    first = floor.submit("first", idempotency_key="k")
    floor.start()
    floor.fail(first)
    floor.occupy()
    floor.submit("waits")
    assert offer(floor, "rerun", rerun=True) == Rejected()
    assert offer(floor, "again") == Joined(first)


def test_only_the_newest_finished_keys_are_kept() -> None:
    keys: IdempotencyKeys[Entry] = IdempotencyKeys(1000.0, 2)
    for name in "abc":
        finished(keys, name, 0.0)
    assert keys.find(new_job(idempotency_key="a"), 0.0) is None
    assert keys.find(new_job(idempotency_key="b"), 0.0) is not None
    assert keys.find(new_job(idempotency_key="c"), 0.0) is not None
    assert len(keys) == 2


def test_the_keys_of_live_jobs_are_never_dropped() -> None:
    keys: IdempotencyKeys[Entry] = IdempotencyKeys(1.0, 1)
    living = [new_entry(name, idempotency_key=name) for name in "abcd"]
    for entry in living:
        keys.hold(entry)
    finished(keys, "x", 0.0)
    finished(keys, "y", 0.0)
    found = [keys.find(entry.job, 1e9) for entry in living]
    assert names(entry for entry in found if entry is not None) == list("abcd")


def test_reruns_of_one_key_do_not_push_out_another() -> None:
    keys: IdempotencyKeys[Entry] = IdempotencyKeys(1000.0, 2)
    other = finished(keys, "other", 0.0)
    for moment in range(1, 6):
        finished(keys, "k", float(moment))
    assert keys.find(other.job, 6.0) is other
    assert keys.find(new_job(idempotency_key="k"), 6.0) is not None


def test_a_job_without_a_key_asks_for_nothing() -> None:
    keys: IdempotencyKeys[Entry] = IdempotencyKeys(1000.0, 2)
    entry = new_entry()
    keys.hold(entry)
    keys.finish(entry, 0.0)
    keys.reserve(entry)
    keys.release(entry)
    assert keys.find(entry.job, 0.0) is None
    assert len(keys) == 0


def test_a_new_ttl_and_limit_apply_at_once() -> None:
    keys: IdempotencyKeys[Entry] = IdempotencyKeys(100.0, 100)
    entries = [finished(keys, key, 0.0) for key in "abc"]
    keys.limit(5.0, 2, 0.0)
    assert [keys.stands_for(entry, 0.0) for entry in entries] == [False, True, True]
    last = finished(keys, "d", 10.0)
    assert keys.stands_for(last, 14.0)
    assert [keys.stands_for(entry, 100.0) for entry in (*entries, last)] == [False] * 4


def test_a_key_stands_for_the_last_job_that_held_it() -> None:
    keys: IdempotencyKeys[Entry] = IdempotencyKeys(10.0, 100)
    old, new = finished(keys, "k", 0.0), new_entry("new", idempotency_key="k")
    assert keys.stands_for(old, 9.0)
    keys.hold(new)
    assert not keys.stands_for(old, 9.0)
    assert keys.stands_for(new, 900.0)
    assert not keys.stands_for(new_entry("none"), 0.0)
