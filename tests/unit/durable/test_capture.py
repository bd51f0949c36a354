"""Captured output and logs of jobs: each line belongs to its job, none are mixed, bounded."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pytest

from poolhand.app import App
from poolhand.durable.calls.capture import BEYOND, LONGEST_LINE, MOST_BYTES, is_capturing
from poolhand.pool.ticket import Ticket
from poolhand.views import JobEvent

LINES = 30
LIMIT = 60
log = logging.getLogger("tests.capture")


async def texts(ticket: Ticket[Any]) -> list[JobEvent]:
    async with asyncio.timeout(LIMIT):
        return [event async for event in ticket.events() if event.kind == "log"]


def told(events: list[JobEvent], stream: str) -> list[str]:
    return [event.data["text"] for event in events if event.data["stream"] == stream]


def speak(name: str, line: int) -> None:
    print(f"{name} prints", line)  # noqa: T201
    print(f"{name} complains", line, file=sys.stderr)  # noqa: T201
    sys.stdout.write(f"{name} writes {line} ")
    sys.stdout.write("in parts\n")
    log.warning("%s logs %s", name, line)


def in_thread(name: str) -> None:
    for line in range(LINES):
        speak(name, line)
    print("no end of line", end="")  # noqa: T201


async def on_loop(name: str) -> None:
    for line in range(LINES):
        speak(name, line)
        await asyncio.sleep(0)
    print("no end of line", end="")  # noqa: T201


def expected(name: str) -> dict[str, list[str]]:
    lines = range(LINES)
    printed = [
        text for n in lines for text in (f"{name} prints {n}", f"{name} writes {n} in parts")
    ]
    return {
        "stdout": [*printed, "no end of line"],
        "stderr": [f"{name} complains {n}" for n in lines],
        "log": [f"{name} logs {n}" for n in lines],
    }


@pytest.mark.slow
async def test_output_of_twenty_concurrent_jobs_is_attributed_to_each(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = App(url)
    tasks: list[Any] = [
        app.task(on_loop),
        app.task(in_thread),
        app.task(name="apart", run_in="process")(in_thread),
    ]
    async with app, app.worker(slots=20, capture=True):
        names = [f"job-{number}" for number in range(20)]
        submitted = [
            await tasks[2 if number == 0 else number % 2].submit(name)
            for number, name in enumerate(names)
        ]
        for name, ticket in zip(names, submitted, strict=True):
            events = await texts(ticket)
            assert {stream: told(events, stream) for stream in expected(name)} == expected(name)
            assert {one.attempt for one in events} == {1}
    seen = capsys.readouterr()
    # The output still reaches its original stream.
    assert "job-7 prints 3" in seen.out
    assert "job-7 complains 3" in seen.err


async def test_a_captured_log_line_has_its_logger_and_level(url: str) -> None:
    app = App(url)

    @app.task(name="fail")
    async def fail() -> None:
        try:
            raise ValueError("inside")
        except ValueError:
            log.exception("it broke")

    async with app, app.worker(capture=True):
        (event,) = await texts(await fail.submit())
    assert (event.data["level"], event.data["logger"]) == ("ERROR", "tests.capture")
    assert event.data["text"].startswith("it broke\nTraceback")
    assert event.data["text"].endswith("ValueError: inside")


@pytest.mark.slow
async def test_too_much_output_is_truncated_with_a_note(url: str) -> None:
    app = App(url)

    @app.task(name="pour")
    def pour() -> None:
        print("x" * (LONGEST_LINE + 5))  # noqa: T201
        for _ in range(MOST_BYTES // 1000 + 100):
            print("y" * 1000)  # noqa: T201

    async with app, app.worker(capture=True):
        found = told(await texts(await pour.submit()), "stdout")
    assert [len(line) for line in found[:2]] == [LONGEST_LINE, 5]
    assert found[-1] == BEYOND
    assert MOST_BYTES * 0.9 < sum(map(len, found)) < MOST_BYTES


async def test_output_is_captured_only_on_request(url: str) -> None:
    app, before = App(url), (sys.stdout, sys.stderr)

    @app.task(name="speaks")
    async def speaks() -> None:
        print("aloud")  # noqa: T201

    async with app:
        async with app.worker():
            assert await texts(await speaks.submit()) == []
            assert not is_capturing()
        async with app.worker(capture=True), app.worker(capture=True):
            assert is_capturing()
            print("outside of a job")  # noqa: T201
            assert told(await texts(await speaks.submit()), "stdout") == ["aloud"]
    assert (sys.stdout, sys.stderr) == before
    assert not is_capturing()


async def test_bytes_that_are_not_text_are_stored_with_replacements(url: str) -> None:
    app = App(url)

    @app.task(name="speaks")
    async def speaks() -> None:
        output: Any = sys.stdout
        output.writelines(["a\n", "\ud800 b\n"])
        assert output.isatty() is False

    async with app, app.worker(capture=True):
        ticket = await speaks.submit()
        found = told(await texts(ticket), "stdout")
    assert found[0] == "a"
