"""Explanations: their text, and the estimated wait."""

from __future__ import annotations

import pytest

from poolhand.rules.explain import Explanation, Standing, explain
from poolhand.rules.job import TERMINAL, Job, Status
from poolhand.rules.lifecycle import place
from tests.unit.rules.floor import new_job


def blocked(on: str) -> Job:
    return place(new_job(session="chat-1", key="acme"), Status.BLOCKED, on)


@pytest.mark.parametrize(
    ("ahead", "others"), [(0, "no other"), (1, "1 other"), (2, "2 others"), (None, "no other")]
)
def test_a_queued_job_shows_the_number_of_jobs_ahead(ahead: int | None, others: str) -> None:
    found = explain(Standing(new_job(), 4, ahead=ahead))
    assert found.text == f"it waits for one of 4 slots, {others} before it"
    assert found.reason == ("behind_others" if ahead else "pool_cap")
    assert found.ahead == (ahead or 0)
    assert found.seconds is None
    assert str(found) == found.text


@pytest.mark.parametrize(("ahead", "seconds"), [(0, 2.0), (3, 2.0), (4, 4.0), (7, 4.0), (8, 6.0)])
def test_the_estimate_counts_rounds_of_slots(ahead: int, seconds: float) -> None:
    found = explain(Standing(new_job(), 4, ahead=ahead, average=2.0))
    assert found.seconds == seconds
    assert found.text.endswith(f"about {seconds:.1f} s")


def test_without_a_cap_there_is_no_word_of_slots_and_no_estimate() -> None:
    found = explain(Standing(new_job(), None, ahead=2, average=2.0))
    assert found.text == "it waits, 2 others before it"
    assert found.seconds is None


def test_a_paused_pool_is_named_as_the_reason() -> None:
    found = explain(Standing(new_job(), 4, paused=True, ahead=3, average=1.0))
    assert found == Explanation("paused", "the pool is paused; resume it", 3)


def test_a_turn_that_waits_names_its_session_and_the_job_that_holds_it() -> None:
    found = explain(Standing(blocked("session"), 4, holder="job-7", ahead=1, average=3.0))
    assert found.reason == "session_busy"
    assert found.text == "session 'chat-1' is busy with job job-7, 1 other of the session before it"
    assert found.seconds == 6.0
    assert explain(Standing(blocked("session"), 4, holder="job-7")).seconds is None


def test_a_job_that_waits_for_its_key_names_the_key_and_its_cap() -> None:
    found = explain(Standing(blocked("key"), 4, max_per_key=2, ahead=5, average=3.0))
    assert found.reason == "key_cap"
    assert found.text == "key 'acme' has all of its 2 places in use, 5 others of the key before it"
    assert found.seconds == 9.0


def test_a_scheduled_job_shows_its_time_and_a_retry_is_marked_as_one() -> None:
    fresh = new_job(status=Status.SCHEDULED)
    again = new_job(status=Status.SCHEDULED, attempts=2)
    assert explain(Standing(fresh, 4, due_in=2.25)) == Explanation(
        "scheduled", "it waits for its time in 2.2 s", None, 2.25
    )
    assert explain(Standing(again, 4, due_in=1.0)).text == "it waits for a retry in 1.0 s"
    assert explain(Standing(again, 4)).text == "it waits for a retry"


def test_an_overdue_job_has_an_estimate_of_zero() -> None:
    found = explain(Standing(new_job(status=Status.SCHEDULED), 4, due_in=-3.0))
    assert found.seconds == 0.0


def test_a_blocked_submitter_is_the_reason_whatever_the_state_of_its_job() -> None:
    found = explain(Standing(new_job(), 4, submitter_blocked=True))
    assert found.reason == "pool_full"
    assert found.text == "its submitter waits: the pool is full, no other before it"
    assert found.seconds is None


def test_a_blocked_submitter_gets_its_position_and_the_estimated_wait() -> None:
    found = explain(Standing(new_job(), 4, submitter_blocked=True, ahead=3, average=2.0))
    assert (found.ahead, found.seconds) == (3, 2.0)
    assert found.text.endswith("3 others before it, about 2.0 s")
    paused = explain(
        Standing(new_job(), 4, submitter_blocked=True, paused=True, ahead=3, average=2.0)
    )
    assert paused.seconds is None


def test_stuck_slots_are_named_and_not_counted_on() -> None:
    found = explain(Standing(new_job(), 4, stuck=3, ahead=2, average=1.0))
    assert found.text == (
        "it waits for one of 4 slots (3 of them stuck), 2 others before it, about 3.0 s"
    )
    assert explain(Standing(new_job(), 4, stuck=4, ahead=2, average=1.0)).seconds is None


def test_a_running_job_shows_its_duration_and_the_remaining_time() -> None:
    running = new_job(status=Status.RUNNING, attempts=2)
    assert explain(Standing(running, 4)).text == "it runs: attempt 2"
    assert explain(Standing(running, 4, ran=1.25)).text == "it runs: attempt 2, for 1.2 s"
    assert explain(Standing(running, 4, ran=1.0, left=9.0)).text == (
        "it runs: attempt 2, for 1.0 s, 9.0 s until its hard timeout"
    )


def test_a_running_job_names_its_attempt() -> None:
    found = explain(Standing(new_job(status=Status.RUNNING, attempts=3), 4))
    assert (found.reason, found.text) == ("running", "it runs: attempt 3")


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_a_finished_job_shows_its_outcome(status: Status) -> None:
    found = explain(Standing(new_job(status=status), 4))
    assert (found.reason, found.text) == ("over", f"it is over: {status.value}")


def test_every_state_has_an_explanation() -> None:
    reasons = {explain(Standing(new_job(status=status), 1)).reason for status in Status}
    assert reasons == {"scheduled", "key_cap", "pool_cap", "running", "over"}
