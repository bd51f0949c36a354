"""The benchmark of stored jobs runs end to end, whatever peers are installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "durable.py"
FLOOR, OURS = "floor: batches of 100", "poolhand: submit_many"
CONTESTANTS = (
    FLOOR,
    OURS,
    "sqlite3, one commit per step",
    "poolhand: 100 callers of submit",
    "poolhand: each result awaited",
    "poolhand: the bare store",
    "poolhand: memory://",
    "poolhand: memory://, the bare store",
    "huey",
    "persist-queue",
)
PEERS = {"huey": "huey", "persist-queue": "persistqueue"}

Table = list[list[str]]


def tables(text: str) -> dict[str, Table]:
    """The rows of each table under its title, without the header."""
    found: dict[str, Table] = {}
    for part in text.split("\n## ")[1:]:
        title, *lines = part.splitlines()
        rows = [line for line in lines if line.startswith("| ")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]
        found[title] = cells[1:]
    return found


def amount(cell: str, unit: str) -> float:
    """The figure in a cell, which is a positive one in this unit."""
    text, _, found = cell.partition(" ")
    assert found == unit, cell
    figure = float(text.replace(",", ""))
    assert figure > 0
    return figure


def check_cost(table: Table) -> None:
    rows = {name: rest for name, *rest in table}
    assert tuple(rows) == CONTESTANTS
    for name, cells in rows.items():
        if name in PEERS and cells[0] == f"{PEERS[name]} not installed":
            continue
        put, take, wall, to_floor, *on_cpu, crash, _ = cells
        assert amount(put, "µs") + amount(take, "µs") == pytest.approx(amount(wall, "µs"), rel=0.05)
        assert all(amount(cell, "µs") for cell in on_cpu[:3])
        assert float(to_floor) > 0
        assert float(on_cpu[3]) > 0
        assert crash
    goal = rows[OURS][-1]
    for told in ("0.30 × the floor's speed, by time", "by CPU", "10.00 × one commit per step"):
        assert told in goal
    assert not any(cells[-1] for name, cells in rows.items() if name != OURS)


def check_depths(finished: Table, queued: Table) -> None:
    assert [row[0] for row in finished] == ["0", "2,000"]
    for row in finished:
        assert all(amount(cell, "µs") for cell in row[1:7])
    assert [bool("1.50 × a store without" in row[-1]) for row in finished] == [False, True]
    names = ("fifo", "fair, 2 keys", "fair, 50 keys", "fair, 5,000 keys")
    assert [row[0] for row in queued] == [name for name in names for _ in range(2)]
    for short, long in zip(queued[::2], queued[1::2], strict=True):
        assert [short[1], long[1]] == ["200", "1,000"]
        assert all(amount(cell, "µs") for row in (short, long) for cell in row[2:4])
        assert float(long[4]) > 0


def check_workers(starts: Table, crowd: Table, idle: Table) -> None:
    assert len(starts) == 4
    for _, p50, p99 in starts:
        assert amount(p50, "ms") <= amount(p99, "ms")
    assert [row[0] for row in crowd] == ["1", "2", "3"]
    for _, rate, to_one, cpu in crowd:
        assert float(rate.replace(",", "")) > 0
        assert float(to_one) > 0
        assert amount(cpu, "µs")
    ((_, share, calls, turns, goal),) = idle
    assert amount(share, "%")
    # It looks for work even when nobody gives a hint.
    assert amount(calls, "a second") >= 1
    assert amount(turns, "a second")
    assert "1.00 % of a core" in goal
    assert "1.00 turns a second" in goal


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_says_what_stored_jobs_cost_what_grows_and_how_soon_they_start(
    tmp_path: Path,
) -> None:
    output = tmp_path / "durable.md"
    files = tmp_path / "files"
    files.mkdir()
    command = [sys.executable, str(SCRIPT), "--quick", "--output", str(output)]
    command += ["--folder", str(files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    text = output.read_text(encoding="utf-8")
    assert text == done.stdout
    cost, finished, queued, starts, crowd, idle = tables(text).values()
    check_cost(cost)
    check_depths(finished, queued)
    check_workers(starts, crowd, idle)
    assert "Goals met: " in text
    assert not list(files.iterdir())
