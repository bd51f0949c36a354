"""The benchmark of the pool runs end to end, whatever peers are installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "pool.py"
STRATEGIES = (
    "fifo",
    "lifo",
    "priority, 10 levels",
    "priority(aging=60), 10 levels",
    "fair, 1 key",
    "fair, 50 keys",
    "fair, 5,000 keys",
)


def rows(text: str) -> dict[tuple[str, str], list[str]]:
    """The cells of each row by its measure and its contestant."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(measure, contestant): rest for measure, contestant, *rest in cells}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_prints_and_writes_a_judged_row_for_each_measure_of_ours(
    tmp_path: Path,
) -> None:
    output = tmp_path / "pool.md"
    command = [sys.executable, str(SCRIPT), "--quick", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert output.read_text(encoding="utf-8") == done.stdout

    table = rows(done.stdout)
    for measure in ("no-op, asyncio", "one suspension, asyncio"):
        cpu, wall, to_floor, to_semaphore, _, goal = table[measure, "poolhand"]
        assert cpu.endswith(" µs")
        assert wall.endswith(" µs")
        assert float(to_floor) > 0
        assert float(to_semaphore) > 0
        assert "Semaphore + gather" in goal
    assert "600 bytes" in table["bytes per pending job, 2,000 waiting", "poolhand"][-1]
    for strategy in STRATEGIES:
        assert "growth of the heapq" in table["drain, 2,000 queued", strategy][-1]
    assert "150 ms" in table["import, whole process", "poolhand"][-1]
    for peer in ("aiometer", "anyio CapacityLimiter", "aiojobs"):
        assert table["no-op, asyncio", peer][0].endswith((" µs", "not installed"))
