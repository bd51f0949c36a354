"""Scripts with the usual mistakes of a first version."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.system.farmhouse import all_gone, children_of, until

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


def test_a_script_without_a_main_guard_gets_an_error_with_the_fix(tmp_path: Path) -> None:
    """Without an error its children would run the script again and wait for themselves."""
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
    assert f"imports the script {tmp_path / 'script.py'}, and that import ended it" in done.stdout
    assert "the guard is missing there: put what the script does under" in done.stdout
    assert "if __name__ == '__main__':" in done.stdout
    assert "process slots" not in done.stdout
    assert "a script that is only being imported" in done.stderr


CRASHES = """
import asyncio, os, signal, sys
from poolhand import App, Retry, wait

app = App("sqlite:///jobs.db")

@app.task(retry=Retry(attempts=int(sys.argv[1])))
async def research(topic: str) -> str:
    if sys.argv[2] == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{topic} in {'the worker' if __name__ == '__main__' else 'a child'}"

async def main() -> None:
    async with app, app.worker():
        ticket = await research.with_options(idempotency_key="k").submit("bees")
        job = await wait(ticket)
        print(await ticket, job.attempts)

"""


@pytest.mark.parametrize(
    ("attempts", "crashes", "guarded"),
    [
        (1, 1, False),
        (3, 2, True),
        pytest.param(3, 2, False, marks=pytest.mark.full),
        pytest.param(1, 1, True, marks=pytest.mark.full),
    ],
)
def test_a_suspect_job_runs_in_the_worker_where_the_script_lets_no_child_start(
    tmp_path: Path, attempts: int, crashes: int, guarded: bool
) -> None:
    """A failed start of a child costs the job no attempt: its code did not run there."""
    end = (
        "if __name__ == '__main__':\n    asyncio.run(main())" if guarded else "asyncio.run(main())"
    )
    (tmp_path / "script.py").write_text(CRASHES + end)

    def run(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "script.py", f"{attempts}", how]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)

    for _ in range(crashes):
        assert run("crash").returncode == -signal.SIGKILL
    done = run("complete")
    where = "a child" if guarded else "the worker"
    assert done.stdout == f"bees in {where} {crashes + 1}\n", done.stderr
    warned = f"imports the script {tmp_path / 'script.py'}, and that import ended it"
    assert done.stderr.count(warned) == (not guarded)
    assert "failed at attempt" not in done.stderr.partition("runs in this worker")[2]


STAYS = """
import asyncio, os
from threading import Event
from poolhand import Pool

with open("pids", "a") as pids:
    print(os.getpid(), file=pids)

def work() -> int:
    Event().wait()
    return 7

async def main() -> None:
    async with Pool("stays", run_in="process") as pool:
        await pool.run(work)

def stay() -> None:
    while True:
        try:
            asyncio.run(main())
        except Exception as error:
            print(error, flush=True)
        Event().wait(0.2)

"""
# The end of the script: its children run jobs, import it without end, or run all of it again.
ENDS = {
    "guarded": "if __name__ == '__main__':\n    stay()\n",
    "sleepy": "if __name__ == '__main__':\n    stay()\nEvent().wait()\n",
    "without": "stay()\n",
}


def pids_of(folder: Path) -> list[int]:
    """Return the processes that have begun to run or import the script, the first one first."""
    path = folder / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("ends", ENDS)
def test_no_child_of_a_script_outlives_it(
    tmp_path: Path, ends: str, number: signal.Signals
) -> None:
    """In its job, or in the import of a script that never ends."""
    (tmp_path / "script.py").write_text(STAYS + ENDS[ends])
    with subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as script:
        try:
            until(lambda: len(pids_of(tmp_path)) >= 2, "child of the script")
            started = {*pids_of(tmp_path), *children_of(script.pid)}
            script.send_signal(number)
            script.wait(20)
        finally:
            script.kill()
    try:
        until(lambda: all_gone([*started, *pids_of(tmp_path)]), "end of its children", 20.0)
    finally:
        for pid in pids_of(tmp_path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert len(pids_of(tmp_path)) == 2, "no child started another one"


def test_a_pool_started_by_an_imported_script_gets_an_error_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(STAYS + "asyncio.run(main())")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50
    )
    assert "pool 'stays' is started by a script that is only being imported" in done.stderr
    assert "if __name__ == '__main__':" in done.stderr


SWALLOWS = """
import asyncio, sys
from poolhand import App, Pool

app = App()
began = asyncio.Event()

@app.task(retry=None)
async def swallow() -> None:
    began.set()
    while True:
        try:
            await asyncio.Event().wait()
        except BaseException:
            pass

async def in_worker() -> None:
    async with app, app.worker(drain_timeout=0.1) as worker:
        await swallow.submit()
        await began.wait()
        print((await worker.drain()).stuck)

async def in_pool() -> None:
    async with Pool("swallows", drain_timeout=0.1) as pool:
        await pool.submit(swallow.fn)
        await began.wait()
        print((await pool.drain(0.1)).stuck)

if __name__ == "__main__":
    asyncio.run(in_worker() if sys.argv[1] == "worker" else in_pool())
    print("ended")
"""


@pytest.mark.parametrize("where", ["worker", "pool"])
def test_a_job_that_swallows_its_cancellation_does_not_keep_a_program_from_ending(
    tmp_path: Path, where: str
) -> None:
    (tmp_path / "script.py").write_text(SWALLOWS)
    done = subprocess.run(
        [sys.executable, "script.py", where],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.stdout, done.stderr) == ("1\nended\n", "")


MOVES = """
import asyncio, os
from poolhand import App

app = App("sqlite:///jobs.db")

@app.task
async def answer() -> int:
    return 42

@app.task(run_in="process")
def ask() -> str:
    return answer.submit_sync().id

async def main() -> None:
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    async with app, app.worker():
        ticket = await app.get(await ask.run())
        print(None if ticket is None else await ticket, os.listdir())

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_process_job_uses_the_file_of_its_parent_which_has_changed_its_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(MOVES)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert done.stdout == "42 []\n"


def test_a_script_from_stdin_is_told_that_it_cannot_start_processes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable],
        input=MOVES,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert "a script that is read from stdin cannot be imported: save it as a file" in done.stderr
    assert "guard is missing" not in done.stderr
