"""Log lines: one per event, readable, and safe from text of jobs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from poolhand import Pool, log_events, wait
from poolhand.observe.events import (
    CallbackFailed,
    DeadlockFound,
    DrainSlow,
    Events,
    JobEnded,
    JobStarted,
    PoolResized,
    SlotStuck,
    StatsTaken,
    SubmitRefused,
)
from poolhand.testing import SeededRuntime
from poolhand.views import Event, Fault, Job, Status
from tests.unit.pool.support import seeded

HOSTILE = [
    "two\nlines",
    "carriage\rreturn",
    "job ended pool=other\nERROR poolhand all is lost",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "bell\x07 backspace\x08 null\x00 delete\x7f",
    "8-bit \x9b31m control \x85 next line",
    "line\u2028separator\u2029paragraph",
    "right\u202eto left",
    "\ud800 lone surrogate",
    'quotes " and \' and \\',
    'key="a" other=b',
    "tabs\tand\x0bmore\x0c",
    "é ü 漢",
]  # fmt: skip


class Page(logging.Handler):
    """Keeps log records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        formatter = logging.Formatter("%(message)s")
        return [formatter.format(record) for record in self.records]


@pytest.fixture
def page() -> Iterator[Page]:
    handler = Page()
    logger = logging.getLogger("poolhand.test-logs")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def open_log(*, as_json: bool = False) -> Events:
    events = Events()
    log_events(logging.getLogger("poolhand.test-logs"), json=as_json, events=events)
    return events


def a_job(**fields: Any) -> Job:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    known = {"id": "j1", "pool": "p", "pool_id": "pool-1", "status": Status.RUNNING}
    return Job(**{**known, "submitted_at": at, **fields})


# One line


@seeded
async def test_every_event_is_one_line_that_a_person_can_read(
    runtime: SeededRuntime, page: Page
) -> None:
    async def broken() -> None:
        raise LookupError("no such thing")

    async with Pool("reviews", runtime=runtime, events=open_log()) as pool:
        good = await pool.with_options(key="acme").submit(asyncio.sleep, 1)
        bad = await pool.submit(broken)
        await wait([good, bad])
    more = {line for line in page.lines if line.count("\n")}
    assert all("job ended" in line and bad.id in line for line in more)
    assert page.lines[0].startswith("pool started pool=reviews pool_id=pool-")
    (start,) = (line for line in page.lines if "job started" in line and good.id in line)
    assert start.startswith(f"job started pool=reviews job={good.id} ")
    assert " status=running key=acme attempt=1 slot=worker-000" in start
    (end,) = (line for line in page.lines if "job ended" in line and bad.id in line)
    assert "status=failed" in end
    assert "error='LookupError: no such thing'" in end
    assert page.lines[-1].startswith("pool drained pool=reviews submitted=2 completed=1 failed=1")


def test_fields_without_a_value_are_left_out(page: Page) -> None:
    open_log().emit(JobStarted("p", a_job(), "worker-000"))
    assert page.lines == ["job started pool=p job=j1 status=running slot=worker-000"]


def test_numbers_are_short_and_zero_is_a_number(page: Page) -> None:
    events = open_log()
    events.emit(DrainSlow("p", 0, 3, 1 / 3))
    events.emit(PoolResized("p", 1, 12))
    assert page.lines == [
        "drain slow pool=p waiting=0 running=3 seconds_left=0.333333",
        "pool resized pool=p before=1 after=12 why=asked",
    ]


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (CallbackFailed("p", "on_dead", "OSError"), logging.WARNING),
        (DeadlockFound("p", "a", "b"), logging.WARNING),
        (DrainSlow("p", 1, 1, 1.0), logging.WARNING),
        (SlotStuck("p", a_job(), "worker-000"), logging.WARNING),
        (SubmitRefused("p", "PH-POL-001", "bounded"), logging.WARNING),
        (JobEnded("p", a_job(status=Status.FAILED)), logging.ERROR),
        (JobEnded("p", a_job(status=Status.COMPLETED)), logging.INFO),
        (JobEnded("p", a_job(status=Status.CANCELLED)), logging.INFO),
        (JobStarted("p", a_job(), "worker-000"), logging.INFO),
        (StatsTaken("p", 1, 1, 1, 1, 1), logging.DEBUG),
    ],
    ids=lambda value: type(value).__name__,
)
def test_events_that_need_attention_are_logged_as_warnings(
    page: Page, event: Event, level: int
) -> None:
    open_log().emit(event)
    assert [record.levelno for record in page.records] == [level]


def test_lines_go_to_the_poolhand_logger_by_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events()
    end = log_events(events=events)
    with caplog.at_level(logging.INFO, "poolhand"):
        events.emit(PoolResized("p", 1, 2))
        end()
        events.emit(PoolResized("p", 2, 3))
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("poolhand", "pool resized pool=p before=1 after=2 why=asked")
    ]


def test_a_disabled_level_logs_nothing(page: Page) -> None:
    logger = logging.getLogger("poolhand.test-logs")
    logger.setLevel(logging.WARNING)
    open_log().emit(PoolResized("p", 1, 2))
    assert page.lines == []


# JSON


def test_json_is_one_object_per_line(page: Page) -> None:
    events = open_log(as_json=True)
    events.emit(JobEnded("p", a_job(status=Status.FAILED, ran=0.25, error=Fault("E", "why"))))
    events.emit(DrainSlow("p", 0, 3, 0.5))
    first, second = (json.loads(line) for line in page.lines)
    assert first["event"] == "job_ended"
    assert (first["pool"], first["job"], first["status"]) == ("p", "j1", "failed")
    assert (first["ran"], first["error"]) == (0.25, "E: why")
    assert second == {
        "event": "drain_slow",
        "pool": "p",
        "waiting": 0,
        "running": 3,
        "seconds_left": 0.5,
    }


# Text of jobs


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_job_text_can_neither_forge_a_log_line_nor_control_a_terminal(
    page: Page, text: str, as_json: bool
) -> None:
    job = a_job(
        status=Status.FAILED,
        key=text,
        session=text,
        tenant=text,
        rejection_reason=text,
        error=Fault(text, text, text),
    )
    events = open_log(as_json=as_json)
    events.emit(JobEnded(text, job))
    events.emit(CallbackFailed("p", "on_dead", text))
    assert len(page.lines) == 2
    for written in page.lines:
        line, *trace = written.split("\n")
        assert all(one.isprintable() and one.startswith("    ") for one in trace)
        assert bool(trace) <= ("job ended" in line and not as_json)
        assert line.isprintable()
        assert len(line.splitlines()) == 1
        assert json.loads(line) if as_json else line.isascii()


@pytest.mark.parametrize("text", [text for text in HOSTILE if not text.startswith("\ud800")])
def test_json_contains_the_original_job_text(page: Page, text: str) -> None:
    open_log(as_json=True).emit(CallbackFailed("p", "on_dead", text))
    assert json.loads(page.lines[0])["error"] == text


def test_a_value_with_spaces_or_quotes_stays_one_value(page: Page) -> None:
    events = open_log()
    events.emit(JobStarted("p", a_job(key="a slot=worker-999"), "worker-000"))
    events.emit(JobStarted("p", a_job(key="a' slot=worker-999 b='"), "worker-000"))
    assert "key='a slot=worker-999' slot=worker-000" in page.lines[0]
    assert "key=\"a' slot=worker-999 b='\" slot=worker-000" in page.lines[1]


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@seeded
async def test_arguments_and_results_are_not_for_logs(
    runtime: SeededRuntime, page: Page, as_json: bool
) -> None:
    async def job(secret: str, *, token: str) -> str:
        return f"result of {secret} and {token}"

    events = open_log(as_json=as_json)
    async with Pool("p", runtime=runtime, events=events) as pool:
        assert "hunter2" in await pool.run(job, "hunter2", token="hunter3")  # noqa: S106
    assert len(page.lines) > 3
    assert "hunter" not in "\n".join(page.lines)


@seeded
async def test_a_subscriber_that_fails_does_not_put_results_into_the_log(
    runtime: SeededRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    async def job() -> str:
        return "hunter2"

    def broken(event: Event) -> None:
        raise LookupError

    events = Events()
    events.subscribe(broken)
    with caplog.at_level(logging.DEBUG):
        async with Pool("p", runtime=runtime, events=events) as pool:
            await pool.run(job)
    assert "a subscriber failed" in caplog.text
    assert "hunter2" not in caplog.text
