"""The lifecycle of a job: which transitions are allowed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from poolhand.errors import GiveUp
from poolhand.rules import lifecycle
from poolhand.rules.job import WAITING, Fault, Job, Status
from poolhand.rules.outcome import Cancelled, Completed, Failed, Outcome, Retry, Snoozed
from tests.unit.rules.floor import AT, new_job

LATER = AT + timedelta(seconds=60)
TWICE = Retry(attempts=2, first=10, jitter=0)
LEGAL = {
    Status.SCHEDULED: WAITING | {Status.CANCELLED, Status.EXPIRED, Status.REJECTED},
    Status.BLOCKED: WAITING | {Status.CANCELLED, Status.EXPIRED, Status.REJECTED},
    Status.QUEUED: WAITING | {Status.RUNNING, Status.CANCELLED, Status.EXPIRED, Status.REJECTED},
    Status.RUNNING: {Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.SCHEDULED},
}


def started(job: Job, at: datetime = AT, waited: float = 0.5) -> Job:
    return lifecycle.start(job, at, waited)


def running(attempts: int = 1, **fields: Any) -> Job:
    job = new_job(**fields)
    for _ in range(attempts):
        job = started(job)
    return job


def settled(outcome: Outcome, policy: Retry | None = None, attempts: int = 1) -> Job:
    return lifecycle.settle(running(attempts), outcome, policy, LATER, 2.0, 0.0)


@pytest.mark.parametrize("status", sorted(WAITING))
def test_every_change_of_a_waiting_job_is_legal(status: Status) -> None:
    job = new_job(status=status)
    reached = {
        lifecycle.place(job, Status.SCHEDULED).status,
        lifecycle.place(job, Status.BLOCKED, "key").status,
        lifecycle.place(job, Status.QUEUED).status,
        lifecycle.cancel(job, AT).status,
        lifecycle.expire(job, AT).status,
        lifecycle.reject(job, "why", "who", AT).status,
    }
    assert reached == LEGAL[status] - {Status.RUNNING}


def test_every_end_of_an_attempt_is_legal() -> None:
    assert started(new_job()).status is Status.RUNNING
    outcomes: list[Outcome] = [
        Completed(1),
        Cancelled(),
        Snoozed(1.0),
        Failed(OSError()),
        Failed(OSError(), on_purpose=True),
    ]
    assert {settled(outcome).status for outcome in outcomes} == LEGAL[Status.RUNNING]


def test_a_blocked_job_names_what_it_waits_for_and_a_moved_one_no_longer() -> None:
    blocked = lifecycle.place(new_job(), Status.BLOCKED, "session")
    assert blocked.blocked_on == "session"
    assert lifecycle.place(blocked, Status.BLOCKED, "key").blocked_on == "key"
    for moved in (
        lifecycle.place(blocked, Status.QUEUED),
        lifecycle.cancel(blocked, AT),
        lifecycle.expire(blocked, AT),
        lifecycle.reject(blocked, "why", "who", AT),
    ):
        assert moved.blocked_on is None


def test_a_job_that_does_not_move_stays_the_same_record() -> None:
    job = lifecycle.place(new_job(), Status.BLOCKED, "key")
    assert lifecycle.place(job, Status.BLOCKED, "key") is job


def test_a_start_counts_the_attempt_and_notes_when_and_after_which_wait() -> None:
    job = running()
    assert (job.attempts, job.started_at, job.waited, job.run_at) == (1, AT, 0.5, None)
    assert started(job, LATER, 1.5).attempts == 2


def test_a_completed_job_has_a_result_and_no_error() -> None:
    failed_before = lifecycle.with_fault(running(2), Fault("OSError", "no"))
    job = lifecycle.settle(failed_before, Completed("value"), None, LATER, 2.0, 0.0)
    assert (job.status, job.result, job.error) == (Status.COMPLETED, "value", None)
    assert (job.finished_at, job.ran, job.attempts) == (LATER, 2.0, 2)


def test_a_job_without_a_policy_is_not_retried() -> None:
    job = settled(Failed(OSError()))
    assert (job.status, job.finished_at, job.run_at) == (Status.FAILED, LATER, None)


def test_a_failed_attempt_is_retried_after_its_backoff_until_the_attempts_are_used_up() -> None:
    again = settled(Failed(OSError()), TWICE, attempts=1)
    assert (again.status, again.run_at) == (Status.SCHEDULED, LATER + timedelta(seconds=10))
    assert again.finished_at is None
    assert again.attempts == 1
    dead = settled(Failed(OSError()), TWICE, attempts=2)
    assert (dead.status, dead.run_at) == (Status.FAILED, None)


def test_permanent_errors_are_not_retried() -> None:
    policy = Retry(give_up_on=(KeyError,))
    wrapped = RuntimeError()
    wrapped.__cause__ = KeyError()
    for failed in (
        Failed(GiveUp(), permanent=True), Failed(KeyError()), Failed(wrapped),
    ):  # fmt: skip
        assert settled(failed, policy).status is Status.FAILED
    assert settled(Failed(LookupError()), policy).status is Status.SCHEDULED


def test_a_retry_after_is_respected() -> None:
    job = settled(Failed(OSError(), retry_after=90.0), Retry(jitter=0))
    assert job.run_at == LATER + timedelta(seconds=90)


def test_a_job_that_asks_for_a_retry_gets_it_without_a_policy_but_not_for_ever() -> None:
    wish = Failed(OSError(), on_purpose=True, retry_after=3.0)
    job = settled(wish)
    assert job.status is Status.SCHEDULED
    assert job.run_at is not None
    assert job.run_at >= LATER + timedelta(seconds=3)
    assert settled(wish, attempts=100).status is Status.FAILED
    assert settled(wish, Retry(attempts=1)).status is Status.FAILED


def test_a_snooze_costs_no_attempt() -> None:
    job = settled(Snoozed(30.0), TWICE, attempts=2)
    assert (job.status, job.attempts) == (Status.SCHEDULED, 1)
    assert job.run_at == LATER + timedelta(seconds=30)


def test_a_snooze_until_a_past_date_retries_soon_without_spinning() -> None:
    for until in (AT, LATER, 0.0, 0.01):
        assert settled(Snoozed(until)).run_at == LATER + timedelta(seconds=0.1)
    until = datetime(2030, 1, 1, tzinfo=UTC)
    assert settled(Snoozed(until)).run_at == until


def test_a_wait_beyond_a_century_is_cut_to_a_century() -> None:
    run_at = settled(Snoozed(1e17)).run_at
    assert run_at is not None
    assert timedelta(days=99 * 365) < run_at - LATER < timedelta(days=101 * 365)


def test_a_timeout_leaves_its_mark_once() -> None:
    job = lifecycle.mark(running(), "soft_timeout")
    failed = Failed(OSError(), mark="hard_timeout")
    job = lifecycle.settle(job, failed, None, LATER, 1.0, 0.0)
    assert job.marks == ("soft_timeout", "hard_timeout")
    assert lifecycle.mark(job, "soft_timeout") is job


def test_a_cancelled_attempt_is_never_retried() -> None:
    assert settled(Cancelled(), Retry()).status is Status.CANCELLED


def test_a_rejected_job_records_the_reason_and_the_policy() -> None:
    job = lifecycle.reject(new_job(), "drop_oldest_queue_full", "drop_oldest", LATER)
    assert (job.rejection_reason, job.rejection_policy) == ("drop_oldest_queue_full", "drop_oldest")
    assert (job.status, job.finished_at) == (Status.REJECTED, LATER)


def test_a_change_leaves_the_old_record_as_it_was() -> None:
    job = new_job()
    started(job)
    lifecycle.cancel(job, AT)
    assert job == new_job()


def test_the_identity_of_a_job_never_changes() -> None:
    fields = {"key": "acme", "priority": 3, "session": "s", "tenant": "t", "idempotency_key": "k"}
    job = lifecycle.settle(running(2, **fields), Failed(OSError()), Retry(), LATER, 1.0, 0.0)
    for name, value in fields.items():
        assert getattr(job, name) == value
    assert (job.id, job.pool_id, job.submitted_at) == ("job", "pool-1", AT)


def test_a_job_that_is_handed_back_in_good_order_has_used_no_attempt() -> None:
    job = lifecycle.hand_back(running(2))
    assert (job.status, job.attempts, job.crashes) == (Status.QUEUED, 1, 0)
    assert job.finished_at is None


def crashed(job: Job, policy: Retry | None = None, proven: bool = False, rerun: bool = True) -> Job:
    return lifecycle.crash(job, policy, rerun, LATER, proven)


def test_a_crash_costs_an_attempt_and_is_counted() -> None:
    job = crashed(running())
    assert (job.status, job.attempts, job.crashes) == (Status.QUEUED, 1, 1)
    assert job.finished_at is None


@pytest.mark.parametrize("proven", [True, False])
def test_a_crash_with_other_running_jobs_is_never_the_last_attempt(proven: bool) -> None:
    job = new_job()
    for _ in range(lifecycle.CRASHES_IN_COMPANY):
        assert not lifecycle.runs_alone(job, Retry(attempts=2))
        job = crashed(started(job), Retry(attempts=2), proven)
        assert job.status is Status.QUEUED
    assert lifecycle.runs_alone(job, Retry(attempts=2))


@pytest.mark.parametrize("policy", [None, Retry(attempts=1)])
def test_a_job_with_one_attempt_runs_alone_once_more_after_a_crash(
    policy: Retry | None,
) -> None:
    job = crashed(started(new_job()), policy)
    assert (job.status, lifecycle.runs_alone(job, policy)) == (Status.QUEUED, True)
    assert crashed(started(job), policy, proven=True).status is Status.FAILED
    spared = crashed(started(job), policy, proven=False)
    assert spared.status is Status.QUEUED, "its worker died, and took its process along"
    error = lifecycle.settle(started(job), Failed(ValueError()), policy, LATER, 2.0, 0.0)
    assert error.status is Status.FAILED, "an error is final, also in the run after a crash"


def test_a_job_stopped_by_its_worker_is_requeued_unless_it_is_non_repeatable() -> None:
    job = lifecycle.cut_short(running(), True, LATER)
    assert (job.status, job.attempts, job.finished_at) == (Status.QUEUED, 0, None)
    job = lifecycle.cut_short(running(), False, LATER)
    assert (job.status, job.attempts, job.finished_at) == (Status.FAILED, 1, LATER)


def test_a_proven_crash_while_running_alone_is_final_when_no_attempts_are_left() -> None:
    job = crashed(crashed(started(new_job()), Retry()), Retry())
    again = crashed(started(job), Retry(attempts=3), proven=True)
    assert (again.status, again.attempts) == (Status.QUEUED, 2)
    last = crashed(started(again), Retry(attempts=3), proven=True)
    assert (last.status, last.finished_at, last.crashes) == (Status.FAILED, LATER, 4)


def test_without_a_policy_the_first_proven_crash_while_running_alone_is_final() -> None:
    job = crashed(started(crashed(started(new_job()))))
    assert crashed(started(job), proven=True).status is Status.FAILED


def test_a_job_with_too_many_unproven_crashes_fails() -> None:
    job, crashes = new_job(), 0
    while job.status is Status.QUEUED:
        job = crashed(started(job), Retry(attempts=4), proven=False)
        crashes += 1
    assert job.status is Status.FAILED
    assert crashes == 4 + lifecycle.MOST_CRASHES_UNPROVEN


def test_a_job_that_must_not_repeat_fails_with_its_first_crash() -> None:
    job = crashed(running(), Retry(), rerun=False)
    assert (job.status, job.finished_at, job.crashes) == (Status.FAILED, LATER, 1)


def test_an_orderly_stop_leaves_the_crash_count_unchanged() -> None:
    job = lifecycle.hand_back(started(crashed(running())))
    assert (job.attempts, job.crashes) == (1, 1)
