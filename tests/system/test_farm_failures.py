"""Failures in a farm are shown on its terminal without any setup."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from subprocess import PIPE, Popen, run

import pytest

from poolhand import App
from poolhand.rules.job import Status
from tests.system.farmhouse import Farm, Yard, until

pytestmark = pytest.mark.slow


def lines_with(farm: Farm, text: str) -> list[str]:
    return [line for line in farm.text.splitlines() if text in line]


def test_failed_attempts_and_dead_jobs_are_logged_to_the_terminal_with_their_worker(
    yard: Yard,
) -> None:
    with yard.running("--max", "1", "--pool", "default", "--pool", "othello") as farm:
        farm.until_ready()
        (first, second) = yard.submit("fail", "no\nERROR all is lost", "no\x1b[31m")
        yard.until_done(2, Status.FAILED)
        until(lambda: len(lines_with(farm, " is dead after 2 attempts")) == 2, "dead jobs")
        assert farm.stop() == 0
    (warning,) = lines_with(farm, "'othello'")
    assert "pool 'othello' is not declared and no task uses it; did you mean 'other'?" in warning
    for id, text in ((first, r"no\nERROR all is lost"), (second, r"no\x1b[31m")):
        (retried,) = lines_with(
            farm, f"{id} of task 'tests.system.farm_app.fail' failed at attempt 1"
        )
        assert re.match(rf"{farm.id}\.1 \| \S+ \S+ WARNING poolhand: job ", retried)
        assert retried.endswith(f"ValueError: {text}")
        (dead,) = lines_with(farm, f"{id} of task 'tests.system.farm_app.fail' is dead after 2")
        assert re.match(rf"{farm.id}\.1 \| \S+ \S+ ERROR poolhand: job ", dead)
    assert len(lines_with(farm, "| " + " " * 4 + "Traceback (most recent call last):")) == 2
    assert len(lines_with(farm, "raise ValueError(text)")) == 2


NESTED = """
import asyncio, sys
from poolhand import App
from poolhand.errors import Deadlock

app = App(sys.argv[1])

@app.task(name="inner", pool="work", retry=None)
async def inner() -> int:
    return 1

@app.task(name="outer", pool="work", retry=None)
async def outer() -> int:
    print("begun", flush=True)
    while not GATE.exists():
        await asyncio.sleep(0.02)
    try:
        return await (await inner.submit())
    except Deadlock as error:
        print(f"deadlock {error}", flush=True)
        return -1

from pathlib import Path
GATE = Path(sys.argv[2])

async def main() -> None:
    async with app, app.worker(slots=1):
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


def test_waits_that_hold_the_slots_of_two_processes_end(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    script = tmp_path / "nested.py"
    script.write_text(NESTED)
    command = [sys.executable, str(script), yard.url, str(yard.gate)]
    outputs = [tmp_path / f"out-{number}" for number in range(2)]
    processes = []
    try:
        for path in outputs:
            with path.open("wb") as output:
                processes.append(Popen(command, stdin=PIPE, stdout=output, stderr=output))

        def count(text: str) -> int:
            return sum(path.read_text().count(text) for path in outputs)

        ids = yard.do(lambda app, _: submit_outer(app))
        until(lambda: count("begun") == 2, "outer jobs")
        assert all("begun" in path.read_text() for path in outputs)
        yard.open_gate()
        yard.until_done(4)
        assert count("\ndeadlock ") == 1
        assert count(f"\ndeadlock job {max(ids)} waits for job ") == 1
        assert count(f"Deadlock: job {max(ids)} waits for job ") == 1
    finally:
        for process in processes:
            process.communicate(b"\n", timeout=30)


APART = """
import asyncio, sys
from poolhand import App
from poolhand.errors import Deadlock

app = App(sys.argv[1])

@app.task(name="inner", pool="work", retry=None)
async def inner() -> int:
    return 1

@app.task(name="outer", pool="work", retry=None, run_in="process")
def outer() -> str:
    ticket = inner.submit_sync()
    try:
        return f"value {ticket.result()}"
    except Deadlock as error:
        return f"deadlock {error}"

async def main() -> None:
    async with app, app.worker(slots=1):
        ticket = await outer.submit()
        print(ticket.id, await ticket, flush=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_wait_in_a_child_that_holds_the_only_slot_ends(tmp_path: Path) -> None:
    script = tmp_path / "apart.py"
    script.write_text(APART)
    command = [sys.executable, str(script), Yard(tmp_path).url]
    done = run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    id, text = done.stdout.split(" ", 1)
    assert text.startswith(f"deadlock job {id} waits for job ")


async def submit_outer(app: App) -> list[str]:
    async def outer() -> int:
        return 0

    task = app.task(name="outer", pool="work", retry=None)(outer)
    return [(await task.submit()).id for _ in range(2)]


def test_a_farm_logs_once_that_jobs_wait_for_the_cap_of_their_pool(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        yard.submit("note", 1)
        yard.ask(lambda operator: operator.resize("default", 1, "me"))
        gate = str(yard.gate)
        yard.submit("hold", gate, gate, gate)
        (line,) = farm.until_line("farm trouble", text="behind its cap")
        assert re.match(r"[12] jobs? waits? in pool 'default' behind its cap of 1, ", line["text"])
        until(lambda: yard.farms()[0].troubles, "trouble in the record")
        yard.open_gate()
        yard.until_done(4)
        assert farm.stop() == 0
    assert len(farm.lines("farm trouble", text="behind its cap")) == 1


def test_a_job_that_enters_the_app_leaves_its_worker_at_work(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        (pid,) = farm.until_ready()
        yard.submit("enter_app", 1, 2, 3)
        yard.until_done(6)
        yard.submit("note", 4)
        yard.until_done(7)
        assert {line[1] for line in yard.told("begin")} == {str(pid)}
        assert farm.stop() == 0
    assert not lines_with(farm, "ERROR")


def test_a_worker_whose_app_was_closed_ends_and_is_replaced(yard: Yard) -> None:
    with yard.running("--max", "1") as farm:
        farm.until_ready()
        yard.submit("close_beside")
        farm.until_line("process leaving", why="its app was closed")
        farm.until_ready(2)
        yard.submit("note", 1)
        yard.until_done(2)
        assert farm.stop() == 0
    (error,) = lines_with(farm, "called app.close()")
    assert re.match(rf"{farm.id}\.1 \| \S+ \S+ ERROR poolhand: ", error)
    assert yard.told("begin", "note-1")[0][1] == str(farm.pids[1])
