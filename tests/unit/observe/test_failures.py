"""Failures on the logger "poolhand": readable, escaped, and logged once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from poolhand import log_events
from poolhand.observe.events import Events, JobEnded, JobRetried, LeaseLost
from poolhand.observe.failures import (
    FailureLog,
    HeldLines,
    is_reported,
    report,
    set_aside_line,
    summary_line,
    warn,
)
from poolhand.testing import SeededRuntime
from poolhand.views import Fault, Job, Status
from tests.unit.observe.test_logs import HOSTILE
from tests.unit.pool.support import seeded

TRACE = '  File "agents.py", line 3, in ask\n    raise ValueError("no")\n'


def a_job(**fields: Any) -> Job:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    known = {"id": "j1", "pool": "p", "pool_id": "pool-1", "status": Status.FAILED, "name": "ask"}
    error = Fault("ValueError", "no", TRACE)
    return Job(**{**known, "submitted_at": at, "attempts": 4, "error": error, **fields})


@pytest.fixture
def log() -> FailureLog:
    return FailureLog(None, lambda: 0.0, Events(), throttled=False)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "poolhand"]


def test_a_retry_is_a_warning_of_one_line(
    log: FailureLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.retried(a_job(attempts=1, status=Status.SCHEDULED), 1.26)
    log.retried(a_job(attempts=2, status=Status.QUEUED), None)
    assert lines(caplog) == [
        (
            "WARNING",
            "job j1 of task 'ask' failed at attempt 1 and is retried in 1.3 s: ValueError: no",
        ),
        (
            "WARNING",
            "job j1 of task 'ask' failed at attempt 2 and is retried at once: ValueError: no",
        ),
    ]


def test_a_dead_job_is_an_error_with_its_traceback(
    log: FailureLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.died(a_job())
    ((level, text),) = lines(caplog)
    assert level == "ERROR"
    assert text.split("\n") == [
        "job j1 of task 'ask' is dead after 4 attempts: ValueError: no",
        "    Traceback (most recent call last):",
        '      File "agents.py", line 3, in ask',
        '        raise ValueError("no")',
    ]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_job_text_is_logged_without_newlines_and_control_sequences(
    log: FailureLog, caplog: pytest.LogCaptureFixture, hostile: str
) -> None:
    trace = f"{TRACE}{hostile}\n"
    job = a_job(name=hostile, error=Fault(hostile, hostile, trace))
    log.died(job)
    log.retried(job, 1.0)
    log.lease_lost(job)
    log.never_awaited(job)
    log.set_aside(job, f"task:{hostile}")
    assert len(lines(caplog)) == 5
    for _, text in lines(caplog):
        first, *rest = text.split("\n")
        assert all(part.isprintable() for part in (first, *rest))
        assert all(part.startswith("    ") for part in rest)


def test_a_long_message_is_cut(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    log.retried(a_job(error=Fault("ValueError", "x" * 2_000)), 1.0)
    ((_, text),) = lines(caplog)
    assert len(text) < 700


def test_the_logger_can_be_silenced(log: FailureLog, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, "poolhand"):
        log.died(a_job())
        log.retried(a_job(), 1.0)
    assert lines(caplog) == []


def test_the_summary_has_the_count_and_the_period() -> None:
    assert summary_line(HeldLines("x", 4321, 0, 12.2)) == (
        "and 4,321 more failures of task 'x' in the last 12 s"
    )
    assert summary_line(HeldLines("x", 1, 1, 0.1)) == (
        "and 1 more failure of task 'x' in the last 1 s; 1 job is dead"
    )


@seeded
async def test_a_burst_is_logged_in_ten_lines_and_a_summary(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    log = FailureLog(runtime.loop, runtime.monotonic, Events())
    for _ in range(30):
        log.retried(a_job(), 1.0)
    assert len(lines(caplog)) == 10
    await asyncio.sleep(11)
    assert lines(caplog)[10:] == [
        ("WARNING", "and 20 more failures of task 'ask' in the last 10 s"),
    ]
    for _ in range(12):
        log.died(a_job())
    log.close()
    assert lines(caplog)[-1] == (
        "ERROR",
        "and 2 more failures of task 'ask' in the last 1 s; 2 jobs are dead",
    )
    assert len(lines(caplog)) == 22


def test_the_log_line_of_a_parked_job_names_what_is_missing() -> None:
    job = a_job()
    assert "this worker does not have the task 'billing.charge'; start" in set_aside_line(
        job, "task:billing.charge"
    )
    assert "does not have the key 'k7'" in set_aside_line(job, "key:k7/ask")
    assert "for rate:openai" in set_aside_line(job, "rate:openai")


# Not twice


@pytest.fixture
def quiet() -> Iterator[None]:
    logger = logging.getLogger("poolhand.elsewhere")
    logger.propagate = False
    yield
    logger.propagate = True


@pytest.mark.parametrize("json", [False, True])
def test_when_events_are_logged_failures_are_not_logged_again(
    caplog: pytest.LogCaptureFixture, json: bool
) -> None:
    events = Events()
    log = FailureLog(None, lambda: 0.0, events, throttled=False)
    end = log_events(json=json, events=events)
    log.died(a_job())
    events.emit(JobEnded("p", a_job()))
    ((level, text),) = lines(caplog)
    assert level == "ERROR"
    assert "agents.py" in text
    end()
    log.died(a_job())
    assert len(lines(caplog)) == 2


def test_events_logged_by_another_logger_leave_failure_logging_on(
    caplog: pytest.LogCaptureFixture, quiet: None
) -> None:
    events = Events()
    log_events(logging.getLogger("poolhand.elsewhere"), events=events)
    FailureLog(None, lambda: 0.0, events, throttled=False).died(a_job())
    assert len(lines(caplog)) == 1


def test_a_retry_event_is_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    events = Events()
    with caplog.at_level(logging.INFO, "poolhand"):
        end = log_events(events=events)
        events.emit(JobRetried("p", a_job(status=Status.SCHEDULED)))
        events.emit(JobRetried("p", a_job(status=Status.SCHEDULED, error=None)))
        end()
    assert [level for level, _ in lines(caplog)] == ["WARNING", "INFO"]


def test_the_reported_event_types_end_with_their_last_subscriber() -> None:
    events = Events()
    end_one, end_other = report(events, (LeaseLost,)), report(events, (LeaseLost,))
    assert is_reported(events, LeaseLost)
    assert not is_reported(events, JobEnded)
    end_one()
    assert is_reported(events, LeaseLost)
    end_other()
    assert not is_reported(events, LeaseLost)


def test_a_warning_is_not_logged_when_a_subscriber_reports_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events()
    warn("lost\n it", LeaseLost, events)
    report(events, (LeaseLost,))
    warn("again", LeaseLost, events)
    assert lines(caplog) == [("WARNING", "lost\\n it")]
