"""The benchmark of stored jobs runs end to end, whatever peers are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

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
RUNNERS = (
    FLOOR,
    "procrastinate",
    "pgqueuer",
    "poolhand",
    "pgqueuer, without a bound",
    "pgqueuer, uvloop",
    "poolhand, uvloop",
    "pgqueuer, without a bound, uvloop",
    "poolhand: each result awaited",
    "poolhand: the bare store",
)
SUBMITTERS = (
    "floor: one INSERT",
    OURS,
    "COPY",
    "poolhand: submit_many by hundreds",
    "poolhand: 100 callers of submit",
    "pgqueuer",
    "procrastinate",
)

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
    """Return the figure in a cell; it must be positive and in this unit."""
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
    assert [row[0] for row in finished] == ["0", "500"]
    for row in finished:
        assert all(amount(cell, "µs") for cell in row[1:7])
    assert [bool("1.50 × a store without" in row[-1]) for row in finished] == [False, True]
    names = ("fifo", "fair, 2 keys", "fair, 50 keys", "fair, 5,000 keys")
    assert [row[0] for row in queued] == [name for name in names for _ in range(2)]
    for short, long in zip(queued[::2], queued[1::2], strict=True):
        assert [short[1], long[1]] == ["50", "200"]
        assert all(amount(cell, "µs") for row in (short, long) for cell in row[2:4])
        assert float(long[4]) > 0


def check_runners(table: Table) -> None:
    rows = {name: rest for name, *rest in table}
    assert tuple(rows) == RUNNERS
    for name, cells in rows.items():
        if cells[0].endswith("not installed"):
            assert name.startswith(("pgqueuer", "procrastinate")) or name.endswith(", uvloop")
            continue
        rate, wall, to_floor, cpu, cpu_to_floor, server, crash, _ = cells
        assert float(rate.replace(",", "")) == pytest.approx(1e6 / amount(wall, "µs"), rel=0.01)
        assert float(to_floor) > 0
        assert amount(cpu, "µs")
        assert float(cpu_to_floor) > 0
        assert server.endswith((" µs", "not seen"))
        assert crash
    if rows["pgqueuer"][0].endswith("not installed"):
        return
    for name in ("poolhand", "poolhand, uvloop"):
        assert "1.00 × the CPU of pgqueuer" in rows[name][-1]
        assert "1.00 × the rate of pgqueuer" in rows[name][-1]


def check_submitters(table: Table) -> None:
    rows = {name: rest for name, *rest in table}
    assert tuple(rows) == SUBMITTERS
    for wall, to_floor, cpu, cpu_to_floor, _ in rows.values():
        if not wall.endswith("not installed"):
            assert amount(wall, "µs")
            assert amount(cpu, "µs")
            assert float(to_floor) > 0
            assert float(cpu_to_floor) > 0
    assert [name for name, cells in rows.items() if "4.00 × the floor" in cells[-1]] == [OURS]


def check_starts(starts: Table, ours: int, judged: bool) -> None:
    names = [row[0] for row in starts]
    assert [name.startswith("poolhand") for name in names] == [False] + [True] * ours
    for row in starts:
        assert amount(row[1], "ms") <= amount(row[2], "ms")
    goals = [row[3] for row in starts if len(row) > 3]
    assert ["5.00 ms, p50" in goal for goal in goals] == ([False] + [True] * ours) * judged


def check_workers(crowd: Table, crowds: list[str], idle: Table) -> None:
    assert [row[0] for row in crowd] == crowds
    for _, rate, to_one, cpu in crowd:
        assert float(rate.replace(",", "")) > 0
        assert float(to_one) > 0
        assert amount(cpu, "µs")
    ((_, share, calls, turns, goal),) = idle
    assert amount(share, "%")
    # It polls for work even without a hint.
    assert amount(calls, "a second") >= 1
    assert amount(turns, "a second")
    assert "1.00 % of a core" in goal
    assert "1.00 turns a second" in goal


def quick_run(store: str, folder: Path, *programs: Path) -> dict[str, Table]:
    """Return the tables of a quick run, printed and written alike; no file is left."""
    output, files = folder / "durable.md", folder / "files"
    files.mkdir()
    command = [sys.executable, str(SCRIPT), "--quick", "--store", store]
    command += ["--output", str(output), "--folder", str(files)]
    paths = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PATH": paths},
    )
    assert done.returncode == 0, done.stderr
    text = output.read_text(encoding="utf-8")
    assert text == done.stdout
    assert "Goals met: " in text
    assert not list(files.iterdir())
    return tables(text)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_reports_cost_growth_and_start_latency_of_stored_jobs(
    tmp_path: Path,
) -> None:
    cost, finished, queued, starts, crowd, idle = quick_run("sqlite", tmp_path).values()
    check_cost(cost)
    check_depths(finished, queued)
    check_starts(starts, ours=3, judged=False)
    check_workers(crowd, ["1", "2", "3"], idle)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_compares_jobs_on_a_server_with_other_queues(
    tmp_path: Path, postgres_binaries: Path
) -> None:
    found = quick_run("postgres", tmp_path, postgres_binaries)
    cost, submit, finished, queued, starts, crowd, idle = found.values()
    check_runners(cost)
    check_submitters(submit)
    check_depths(finished, queued)
    check_starts(starts, ours=2, judged=True)
    check_workers(crowd, ["1", "2", "4"], idle)
