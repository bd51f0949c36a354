"""When a stored job may run: delays by the store's clock, `run_at` by the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from poolhand.rules.job import Job, Status
from poolhand.rules.queue.entry import Window, arrival, comeback, seconds

AT = datetime(2030, 1, 1, tzinfo=UTC)
NOW = 500.0
MINUTE = timedelta(minutes=1)


def a_job(status: Status = Status.QUEUED, run_at: datetime | None = None) -> Job:
    return Job(
        id="j",
        pool="chat",
        pool_id="p",
        status=status,
        submitted_at=AT - MINUTE,
        run_at=run_at,
    )


def test_a_job_without_timing_options_may_start_at_once() -> None:
    job, window, by_wall = arrival(a_job(), None, None, NOW, AT)
    assert (job.submitted_at, job.run_at, job.expires_at) == (AT, None, None)
    assert (window, by_wall) == (None, False)


def test_a_delay_follows_the_monotonic_clock_and_is_shown_as_a_date() -> None:
    job, window, by_wall = arrival(a_job(), 60.0, None, NOW, AT)
    assert (window, by_wall) == (Window(NOW + 60), False)
    assert job.run_at == AT + MINUTE


def test_a_delay_takes_precedence_over_run_at() -> None:
    job, window, by_wall = arrival(a_job(run_at=AT - MINUTE), 60.0, None, NOW, AT)
    assert (job.run_at, window, by_wall) == (AT + MINUTE, Window(NOW + 60), False)


@pytest.mark.parametrize("away", [MINUTE, -MINUTE], ids=["later", "past"])
def test_run_at_follows_the_wall_clock(away: timedelta) -> None:
    job, window, by_wall = arrival(a_job(run_at=AT + away), None, None, NOW, AT)
    assert (window, by_wall) == (Window(NOW + away.total_seconds()), True)
    assert job.run_at == AT + away


def test_expires_follows_the_monotonic_clock() -> None:
    job, window, by_wall = arrival(a_job(), None, 60.0, NOW, AT)
    assert (window, by_wall) == (Window(None, NOW + 60), False)
    assert job.expires_at == AT + MINUTE


@pytest.mark.parametrize(("wait", "status"), [(0.0, Status.QUEUED), (3.0, Status.SCHEDULED)])
def test_a_requeued_job_waits_for_its_delay(wait: float, status: Status) -> None:
    job, pause, by_wall = comeback(a_job(Status.SCHEDULED, AT), wait, AT)
    assert (job.status, pause, by_wall) == (status, wait, False)


def test_without_a_delay_a_requeued_job_waits_until_its_run_at() -> None:
    job, pause, by_wall = comeback(a_job(Status.SCHEDULED, AT + MINUTE), None, AT)
    assert (job.status, pause, by_wall) == (Status.SCHEDULED, 60.0, True)
    job, pause, by_wall = comeback(a_job(Status.SCHEDULED, AT - MINUTE), None, AT)
    assert (job.status, pause, by_wall) == (Status.QUEUED, -60.0, True)


def test_dates_are_stored_as_utc_seconds() -> None:
    assert seconds(datetime(1970, 1, 2, tzinfo=UTC)) == 86_400.0
