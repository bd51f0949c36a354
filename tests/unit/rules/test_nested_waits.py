"""Nested waits of stored jobs: deadlocks, and waits that only look like one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from poolhand.rules.deadlock import WaitGraph, WorkerSlots, never_finishing
from poolhand.rules.job import Job, Status


def job(id: str, status: Status = Status.QUEUED, **fields: Any) -> Job:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    known = {"pool": "p", "pool_id": "pool-1", "submitted_at": at, **fields}
    return Job(id=id, status=status, **known)


def graph(*workers: WorkerSlots, jobs: tuple[Job, ...] = (), **facts: Any) -> WaitGraph:
    known = {"open_pools": frozenset(), "capped": {}, "holders": {}, **facts}
    return WaitGraph({one.id: one for one in jobs}, workers, **known)


def full(*waits: tuple[str, str], slots: int | None = None) -> WorkerSlots:
    running: dict[str, tuple[str, ...]] = {
        waiter: (awaited,) if awaited else () for waiter, awaited in waits
    }
    return WorkerSlots(len(waits) if slots is None else slots, ("p",), running)


def test_a_job_whose_slots_are_all_held_by_waiting_jobs_is_deadlocked() -> None:
    world = graph(full(("o1", "i1"), ("o2", "i2")), jobs=(job("i1"), job("i2")))
    assert never_finishing(world, ["i1", "i2"]) == {"i1", "i2"}


def test_a_job_that_waits_in_a_child_holds_its_slot() -> None:
    worker, jobs = full(("o1", ""), ("o2", "i2")), (job("i1"), job("i2"))
    world = graph(worker, jobs=jobs, apart=(("o1", "i1"),))
    assert sorted(world.waits()) == [("o1", "i1"), ("o2", "i2")]
    assert never_finishing(world, ["i1", "i2"]) == {"i1", "i2"}
    assert never_finishing(graph(worker, jobs=jobs), ["i1", "i2"]) == set()


def test_one_job_that_does_not_wait_is_enough() -> None:
    world = graph(full(("o1", "i1"), ("busy", "")), jobs=(job("i1"),))
    assert never_finishing(world, ["i1"]) == set()


def test_a_free_or_stuck_slot_is_enough() -> None:
    world = graph(full(("o1", "i1"), slots=2), jobs=(job("i1"),))
    assert never_finishing(world, ["i1"]) == set()
    stuck = WorkerSlots(1, ("p",), {"o1": ("i1",)}, stuck=1)
    assert never_finishing(graph(stuck, jobs=(job("i1"),)), ["i1"]) == set()


def test_a_worker_of_another_pool_does_not_help() -> None:
    other = WorkerSlots(5, ("q",), {})
    world = graph(full(("o1", "i1")), other, jobs=(job("i1"),))
    assert never_finishing(world, ["i1"]) == {"i1"}


def test_an_open_pool_prevents_a_deadlock() -> None:
    world = graph(full(("o1", "i1")), jobs=(job("i1"),), open_pools=frozenset({"p"}))
    assert never_finishing(world, ["i1"]) == set()


def test_a_pool_that_no_worker_serves_is_no_deadlock() -> None:
    world = graph(full(("o1", "i1")), jobs=(job("i1", pool="unserved"),))
    assert never_finishing(world, ["i1"]) == set()


def test_free_slots_do_not_prevent_a_deadlock_when_waiting_jobs_hold_the_cap() -> None:
    facts = {"open_pools": frozenset({"p"}), "capped": {"p": ("o1",)}}
    world = graph(full(("o1", "i1"), slots=9), jobs=(job("i1"),), **facts)
    assert never_finishing(world, ["i1"]) == {"i1"}
    facts["capped"] = {"p": ("o1", "elsewhere")}
    world = graph(full(("o1", "i1"), slots=9), jobs=(job("i1"),), **facts)
    assert never_finishing(world, ["i1"]) == set()


def test_waiting_for_a_running_or_finished_job_is_not_a_deadlock() -> None:
    for status in (Status.RUNNING, Status.COMPLETED, Status.FAILED):
        world = graph(full(("o1", "i1")), jobs=(job("i1", status),))
        assert never_finishing(world, ["i1"]) == set()


def test_jobs_that_wait_for_each_other_are_deadlocked() -> None:
    jobs = (job("a", Status.RUNNING), job("b", Status.RUNNING))
    world = graph(full(("a", "b"), ("b", "a"), slots=9), jobs=jobs)
    assert never_finishing(world, ["a", "b"]) == {"a", "b"}


def test_a_turn_behind_the_session_of_the_job_that_awaits_it_is_deadlocked() -> None:
    turn = job("i1", Status.BLOCKED, blocked_on="session", session="s")
    world = graph(full(("o1", "i1"), slots=9), jobs=(turn,), holders={"i1": ("o1",)})
    assert never_finishing(world, ["i1"]) == {"i1"}
    assert never_finishing(graph(full(("o1", "i1")), jobs=(turn,)), ["i1"]) == set()


def test_a_job_that_waits_for_a_worker_with_its_task_is_no_deadlock() -> None:
    aside = job("i1", Status.SCHEDULED, waits_for="task:x")
    assert never_finishing(graph(full(("o1", "i1")), jobs=(aside,)), ["i1"]) == set()
    delayed = job("i1", Status.SCHEDULED)
    assert never_finishing(graph(full(("o1", "i1")), jobs=(delayed,)), ["i1"]) == {"i1"}


def test_waiting_for_an_unknown_job_is_not_a_deadlock() -> None:
    assert never_finishing(graph(full(("o1", "gone"))), ["gone"]) == set()
