"""One small program runs from memory to a server by changing only the URL."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.extent import ALSO_POSTGRES

pytestmark = pytest.mark.slow

PROGRAM = """\
import asyncio
from poolhand import App

app = App("memory://")

@app.task(pool="research")
async def research(topic: str, depth: int = 1) -> list[str]:
    return [topic] * depth

async def main() -> None:
    async with app, app.worker(slots=3):
        tickets = await research.submit_many([("bees", 2), ("ants",), ("wasps", 3)])
        print([await ticket for ticket in tickets], await (await research.submit("moths")))

asyncio.run(main())
"""
RESULT = "[['bees', 'bees'], ['ants'], ['wasps', 'wasps', 'wasps']] ['moths']\n"
# asyncio's debug message about a slow iteration of the loop on a busy machine.
SLOW_TURN = re.compile(r"^Executing <.*> took \d+\.\d+ seconds\n", re.MULTILINE)


def run(folder: Path, url: str) -> tuple[str, str, int]:
    """Run the program over that store; return its output and its exit code."""
    script = folder / "program.py"
    script.write_text(PROGRAM.replace("memory://", url), encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", script.name],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    return found.stdout, SLOW_TURN.sub("", found.stderr), found.returncode


def test_the_program_has_at_most_twelve_lines() -> None:
    assert len([line for line in PROGRAM.splitlines() if line]) <= 12
    assert PROGRAM.count("memory://") == 1


@pytest.fixture(params=["sqlite", ALSO_POSTGRES])
def kept(request: pytest.FixtureRequest) -> str:
    """Return the URL of a store that outlives a program."""
    if request.param == "sqlite":
        return "sqlite:///agents.db"
    url: str = request.getfixturevalue("schema")
    return url


def test_the_program_runs_over_memory(tmp_path: Path) -> None:
    assert run(tmp_path, "memory://") == (RESULT, "", 0)


def test_one_program_runs_over_every_store(tmp_path: Path, kept: str) -> None:
    assert run(tmp_path, kept) == (RESULT, "", 0)


def test_on_a_persistent_store_it_runs_repeatedly_and_concurrently(
    tmp_path: Path, kept: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace("memory://", kept), encoding="utf-8")
    pipe = subprocess.PIPE
    command = [sys.executable, script.name]
    started = [
        subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
        for _ in range(3)
    ]
    found = [process.communicate(timeout=50) for process in started]
    assert found == [(RESULT, "")] * 3
