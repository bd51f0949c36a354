"""The outcome of an attempt, for everything a job can raise."""

from __future__ import annotations

from asyncio import CancelledError
from datetime import UTC, datetime
from math import inf, nan
from typing import Any

import pytest

from poolhand.errors import GiveUp, JobFailed, JobTimedOut, RetryLater, Snooze, UsageError
from poolhand.rules.job import Status
from poolhand.rules.lifecycle import settle
from poolhand.rules.outcome import (
    NO_RETRY,
    Cancelled,
    Failed,
    Outcome,
    Retry,
    Snoozed,
    StopRequest,
    judge_cancelled,
    judge_error,
    timed_out,
)
from tests.unit.rules.floor import AT, new_job

EVERYTHING = [
    ValueError("no"),
    TimeoutError(),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration("value"),
    StopAsyncIteration(),
    ExceptionGroup("several", [ValueError(), KeyError()]),
    BaseExceptionGroup("several", [KeyboardInterrupt()]),
    GiveUp("enough"),
    RetryLater(5.0),
    Snooze(5.0),
    MemoryError(),
    RecursionError(),
]


class Asking(Exception):
    """An error with a `retry_after`, as errors of many clients have."""

    def __init__(self, retry_after: Any) -> None:
        super().__init__()
        self.retry_after = retry_after


def failed(error: BaseException, asked: StopRequest = StopRequest.NOTHING) -> Failed:
    outcome = judge_error(error, asked, "job-1")
    assert isinstance(outcome, Failed)
    return outcome


def test_an_exception_of_the_job_reaches_its_caller_as_it_is() -> None:
    for error in (
        ValueError("no"),
        TimeoutError(),
        MemoryError(),
        ExceptionGroup("g", [OSError()]),
    ):
        assert failed(error) == Failed(error)


def test_a_timeout_error_that_the_job_raised_is_not_mistaken_for_its_timeout() -> None:
    outcome = failed(TimeoutError("mine"))
    assert not isinstance(outcome.error, JobTimedOut)
    assert outcome.mark is None
    assert not isinstance(failed(OSError(), StopRequest.HARD_STOP).error, TimeoutError)


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(), StopAsyncIteration()],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_that_would_end_the_loop_becomes_job_failed_with_its_cause(
    error: BaseException,
) -> None:
    outcome = failed(error)
    assert isinstance(outcome.error, JobFailed)
    assert outcome.error.__cause__ is error
    assert outcome.error.job_id == "job-1"
    assert type(error).__name__ in str(outcome.error)


async def test_a_stop_iteration_raised_in_a_coroutine_is_reported_as_such() -> None:
    async def job() -> None:
        raise StopIteration("value")

    with pytest.raises(RuntimeError) as caught:
        await job()
    outcome = failed(caught.value)
    assert isinstance(outcome.error, JobFailed)
    assert isinstance(outcome.error.__cause__, StopIteration)


def test_any_other_runtime_error_is_unchanged() -> None:
    error = RuntimeError("loop is closed")
    error.__cause__ = ValueError()
    assert failed(error).error is error


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt(), GiveUp()], ids=repr)
def test_permanent_errors_are_not_retried(error: BaseException) -> None:
    assert failed(error).permanent


@pytest.mark.parametrize("error", [ValueError(), StopIteration(), RetryLater(1)], ids=repr)
def test_transient_errors_are_retried(error: BaseException) -> None:
    assert not failed(error).permanent


def test_retry_later_asks_for_its_wait_even_without_a_policy() -> None:
    outcome = failed(RetryLater(7.0))
    assert outcome.retry_after == 7.0
    assert outcome.on_purpose


def test_snooze_keeps_its_date_or_its_seconds() -> None:
    until = datetime(2030, 1, 1, tzinfo=UTC)
    assert judge_error(Snooze(until), StopRequest.NOTHING, "job-1") == Snoozed(until)
    assert judge_error(Snooze(5.0), StopRequest.NOTHING, "job-1") == Snoozed(5.0)


@pytest.mark.parametrize(
    ("wish", "obeyed"),
    [(5, 5.0), (0.5, 0.5), (0, 0.0), (-1, None), (nan, None), ("5", None), (True, None),
     (None, None)],
)  # fmt: skip
def test_a_valid_retry_after_of_a_foreign_error_is_used(wish: Any, obeyed: float | None) -> None:
    assert failed(Asking(wish)).retry_after == obeyed


def test_a_cancellation_without_a_request_counts_as_cancelled() -> None:
    assert judge_cancelled(StopRequest.NOTHING, "job-1") == Cancelled()


def test_a_requested_cancellation_counts_as_cancelled() -> None:
    assert judge_cancelled(StopRequest.CANCEL, "job-1") == Cancelled()


@pytest.mark.parametrize(
    ("asked", "mark"),
    [(StopRequest.SOFT_STOP, "soft_timeout"), (StopRequest.HARD_STOP, "hard_timeout")],
)
def test_a_cancellation_by_a_timeout_counts_as_timed_out(asked: StopRequest, mark: str) -> None:
    outcome = judge_cancelled(asked, "job-1")
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, JobTimedOut)
    assert outcome.error.job_id == "job-1"
    assert outcome.mark == mark
    assert not outcome.permanent


@pytest.mark.parametrize("error", EVERYTHING, ids=lambda error: type(error).__name__)
def test_past_the_hard_timeout_nothing_else_counts(error: BaseException) -> None:
    outcome = failed(error, StopRequest.HARD_STOP)
    assert isinstance(outcome.error, JobTimedOut)
    assert outcome.mark == "hard_timeout"


def test_a_job_that_breaks_with_its_own_error_after_a_soft_timeout_has_failed_by_that() -> None:
    error = ValueError()
    assert failed(error, StopRequest.SOFT_STOP) == Failed(error)


@pytest.mark.parametrize("error", [RetryLater(5.0), Snooze(5.0)], ids=repr)
def test_a_cancelled_job_is_not_retried_or_snoozed_by_its_own_request(error: Exception) -> None:
    assert judge_error(error, StopRequest.CANCEL, "job-1") == Cancelled()


@pytest.mark.parametrize("error", EVERYTHING, ids=lambda error: type(error).__name__)
def test_a_cancelled_job_that_raises_is_final_without_a_retry_policy(
    error: BaseException,
) -> None:
    outcome = judge_error(error, StopRequest.CANCEL, "job-1")
    job = new_job(status=Status.RUNNING, attempts=1)
    assert settle(job, outcome, NO_RETRY, AT, 1.0, 0.5).status.terminal


@pytest.mark.parametrize("until", [-1, -0.001, inf, nan, "tomorrow", datetime(2030, 1, 1), None])  # noqa: DTZ001
def test_a_directive_with_an_invalid_value_fails_with_the_allowed_values(until: Any) -> None:
    for wish in (Snooze(until), RetryLater(until)):
        outcome = failed(wish)
        assert isinstance(outcome.error, UsageError)
        assert outcome.error.__cause__ is wish
        assert outcome.permanent
        assert "seconds" in str(outcome.error)


def test_an_error_whose_attributes_raise_is_still_judged() -> None:
    class Broken(SystemExit):
        def __str__(self) -> str:
            raise OSError

        @property
        def retry_after(self) -> float:
            raise OSError

    class Refusing(ValueError):
        @property
        def retry_after(self) -> float:
            raise OSError

    assert isinstance(failed(Broken()).error, JobFailed)
    assert failed(Refusing()).retry_after is None


@pytest.mark.parametrize("asked", list(StopRequest))
@pytest.mark.parametrize(
    "error",
    [*EVERYTHING, Asking(inf), Asking(1e300), Asking(1e15), RetryLater(inf), RetryLater(-5),
     RetryLater(nan), Snooze(inf), Snooze(1e15), Snooze(-1), Snooze(nan),
     Snooze(datetime(2030, 1, 1))],  # noqa: DTZ001
    ids=repr,
)  # fmt: skip
def test_every_exception_can_be_judged_and_settled(
    error: BaseException, asked: StopRequest
) -> None:
    outcome: Outcome = judge_error(error, asked, "job-1")
    for policy in (None, Retry()):
        job = settle(new_job(status=Status.RUNNING, attempts=1), outcome, policy, AT, 1.0, 0.5)
        assert job.status.terminal or job.status is Status.SCHEDULED
        assert (job.run_at is None) == job.status.terminal


def test_the_message_of_a_timeout_names_which_one_and_the_fix() -> None:
    text = str(timed_out("job-1", "soft_timeout").error)
    assert "job-1" in text
    assert "soft timeout" in text
    assert "more time" in text


def test_a_stronger_stop_request_overrides_a_weaker_one() -> None:
    assert StopRequest.NOTHING < StopRequest.SOFT_STOP < StopRequest.CANCEL < StopRequest.HARD_STOP
    assert not issubclass(JobTimedOut, TimeoutError | CancelledError)
