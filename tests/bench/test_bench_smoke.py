"""The benchmarks run end to end, whatever peers are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full
BENCH = Path(__file__).parents[2] / "bench"
CORES = len(os.sched_getaffinity(0))
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
    """Return the cells of each row by its measure and its contestant."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(measure, contestant): rest for measure, contestant, *rest in cells}


def quick_run(script: str, output: Path) -> dict[tuple[str, str], list[str]]:
    """Return the table of a quick run; the printed and the written one must be equal."""
    command = [sys.executable, str(BENCH / script), "--quick", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert output.read_text(encoding="utf-8") == done.stdout
    return rows(done.stdout)


def amount(cell: str, unit: str) -> float:
    """Return the figure in a cell; it must be positive and in this unit."""
    text, _, found = cell.partition(" ")
    assert found == unit, cell
    figure = float(text.replace(",", ""))
    assert figure > 0
    return figure


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_prints_and_writes_a_judged_row_for_each_measure_of_ours(
    tmp_path: Path,
) -> None:
    table = quick_run("pool.py", tmp_path / "pool.md")
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


LOADS: dict[str, dict[str, list[str]]] = {
    "nothing": {"asyncio alone": []},
    "async no-ops, 100 at a time": {"poolhand": ["no-op"]},
    "blocking jobs of 10 ms, 50 at a time": {
        "poolhand: threads": ["blocking"],
        "asyncio.to_thread": ["blocking"],
    },
    f"CPU jobs of 50 ms, {CORES} at a time": {
        "poolhand: process slots": ["CPU"],
        "ProcessPoolExecutor": ["CPU"],
        "poolhand: threads": ["CPU"],
        "asyncio.to_thread": ["CPU"],
    },
    "CPU and blocking jobs together": {
        "poolhand: process slots": ["CPU", "blocking"],
        "ProcessPoolExecutor + to_thread": ["CPU", "blocking"],
        "asyncio.to_thread": ["CPU", "blocking"],
    },
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_reports_loop_lag_under_every_load_and_rates_ours(
    tmp_path: Path,
) -> None:
    table = quick_run("lag.py", tmp_path / "lag.md")
    expected = {(load, by): kinds for load, means in LOADS.items() for by, kinds in means.items()}
    assert set(table) == {*expected, ("while", "by")}
    for name, kinds in expected.items():
        *late, done, goal = table[name]
        p50, p99, most = (amount(cell, "ms") for cell in late)
        assert p50 <= p99 <= most
        assert re.findall(r"\d ([\w-]+)", done) == kinds
        judged = name == ("CPU and blocking jobs together", "poolhand: process slots")
        assert bool(re.search(r"50\.00 ms, p99\); .*50\.00 ms, max\)", goal)) is judged


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_reports_the_cost_of_a_process_job_and_of_a_killed_child(
    tmp_path: Path,
) -> None:
    table = quick_run("processes.py", tmp_path / "processes.md")
    floor, ours = "floor: ProcessPoolExecutor", "poolhand"
    present = [floor, ours, "multiprocessing.Pool"]
    if not table["no-op, 4 at a time", "anyio.to_process"][0].endswith("not installed"):
        present.append("anyio.to_process")
    for what in ("no-op", "1 MB in and out"):
        for how in ("one after the other", "4 at a time"):
            for name in present:
                wall, to_floor, cpu, cpu_to_floor, _ = table[f"{what}, {how}", name]
                assert amount(wall, "µs")
                assert amount(cpu, "µs")
                assert float(to_floor) > 0
                assert float(cpu_to_floor) > 0
    for name in (*present, "ProcessPoolExecutor, forked"):
        assert amount(table["cold start of the first job", name][0], "ms")
    for name in present:
        told = table["8 jobs, one child killed", name][-1]
        ends = re.findall(r"(\d+) \w+", told)
        assert sum(map(int, ends)) == 8
        assert "; the next job: " in told
    told = table["8 jobs, one child killed", ours][-1]
    assert told == "7 completed, 1 JobLost; the next job: completed"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_quick_run_reports_loop_lag_while_jobs_stream(tmp_path: Path) -> None:
    table = quick_run("stream.py", tmp_path / "stream.md")
    for store in ("SQLite", "PostgreSQL"):
        for who in ("nobody reads", "each job has a reader"):
            rate, to_a_write, cpu, p99, most, goal = table[store, who]
            assert float(rate.replace(",", "")) > 100
            # Chunks of many jobs share a write.
            assert float(to_a_write) > 5
            amount(cpu, "µs")
            assert amount(p99, "ms") <= amount(most, "ms")
            assert re.search(r"(pass|MISSED): [\d.,]+ \(≤ 50.00 ms, p99\)", goal)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_quick_run_reports_the_cost_of_a_farm(tmp_path: Path) -> None:
    table = quick_run("farm.py", tmp_path / "farm.md")
    for store in ("SQLite", "PostgreSQL"):
        assert amount(table[store, "idle worker"][0], "MB") > 10
        assert amount(table[store, "CPU per no-op job, all three processes"][0], "µs") > 5
        after = table[store, "worker killed with 200 jobs of 1 s: all done"]
        assert amount(after[0], "s later") > 1
        assert re.search(r"(pass|MISSED): [\d.,]+ \(≤ 5.00 s\)", after[1])
