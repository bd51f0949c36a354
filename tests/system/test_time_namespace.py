"""Workers on one store with different clocks: one is in a time namespace."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from poolhand.runtime import Runtime, is_running, process_started
from tests.system.shifted_clock import Crew

pytestmark = pytest.mark.slow

JOBS = 6
LIMIT = 50
SHIFTS = (100_000, -60)


def in_namespace(shift: int) -> list[str]:
    """Return the command prefix that shifts clocks; skip where that is not possible."""
    program = shutil.which("unshare")
    if program is None:
        pytest.skip("unshare of util-linux is not installed")
    # --kill-child: killing it also kills what it has started.
    words = [program, "--time", "--fork", "--kill-child", f"--monotonic={shift}"]
    words.append(f"--boottime={shift}")
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no time namespace can be made here: {tried.stderr.strip()}")
    return words


@pytest.fixture(params=SHIFTS)
def shifted(request: pytest.FixtureRequest) -> list[str]:
    return in_namespace(request.param)


@pytest.mark.parametrize(
    ("kind", "shift"),
    [
        ("sqlite", 100_000),
        pytest.param("sqlite", -60, marks=pytest.mark.full),
        ("pg", 100_000),
    ],
)
async def test_a_worker_with_shifted_clocks_takes_no_foreign_jobs_and_starts_none_early(
    request: pytest.FixtureRequest, kind: str, shift: int, tmp_path: Path
) -> None:
    shifted = in_namespace(shift)
    url = f"sqlite:///{tmp_path}/jobs.db"
    if kind == "pg":
        url = request.getfixturevalue("schema")
    story = tmp_path / "story"
    crew = Crew(url, story)
    command = [*shifted, sys.executable, "-m", "tests.system.shifted_clock", url, str(story)]
    async with crew.app as app, app.worker(JOBS), asyncio.timeout(LIMIT):
        late = await crew.hold.with_options(delay=300).submit(99)
        tickets = [await crew.hold.submit(number) for number in range(JOBS)]
        for ticket in tickets:
            while (await ticket.refresh()).status != "running":
                pass
        visitor = await asyncio.create_subprocess_exec(*command)
        try:
            assert await visitor.wait() == 0
        finally:
            if visitor.returncode is None:
                visitor.kill()
        crew.gate.set()
        assert [await ticket for ticket in tickets] == list(range(JOBS))
        started = [line.split()[0] for line in story.read_text().splitlines()]
        assert sorted(started) == [str(number) for number in range(JOBS)]
        assert (await late.refresh()).status == "scheduled"
        await late.cancel()


def told(shifted: list[str], text: str) -> str:
    command = [*shifted, sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_when_a_process_began_is_the_same_from_every_time_namespace(shifted: list[str]) -> None:
    _, _, pid, started = Runtime().identity()
    text = f"from poolhand.runtime import *; print(is_running({pid}, {started!r}))"
    assert told(shifted, text) == "True"
    text = f"from poolhand.runtime import *; print(process_started({pid}))"
    assert abs(int(told(shifted, text)) - int(process_started(pid) or 0)) <= 1
    # Another process with the same pid has another start time.
    assert not is_running(pid, str(int(started) + 2))


def test_a_clock_reading_is_stored_in_machine_time(shifted: list[str]) -> None:
    here: Callable[[], float] = lambda: Runtime().monotonic() - Runtime().clock_ahead()  # noqa: E731
    before = here()
    text = "from poolhand.runtime import *; r = Runtime(); print(r.monotonic() - r.clock_ahead())"
    assert before <= float(told(shifted, text)) <= here()
