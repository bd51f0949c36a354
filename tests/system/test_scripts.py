"""Scripts as people write them first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

UNGUARDED = """
import asyncio
from poolhand import App, wait

app = App("sqlite:///jobs.db")

@app.task(run_in="process", retry=None)
def work() -> int:
    return 7

async def main() -> None:
    async with app, app.worker():
        job = await wait(await work.submit())
        print(job.status.value, job.error.message)

asyncio.run(main())
"""


def test_a_script_without_a_guard_is_told_what_it_lacks(tmp_path: Path) -> None:
    """Its children would run it again, submit to the store and wait for themselves."""
    (tmp_path / "script.py").write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert done.stdout.startswith("failed ")
    assert "if __name__ == '__main__':" in done.stdout
    assert "a script that is only being imported" in done.stderr
