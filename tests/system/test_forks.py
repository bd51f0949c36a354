"""A process that a job forks runs no other job, settles nothing and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]

SCRIPT = """
import asyncio, os, sys
from poolhand import App, Pool

async def neighbour(name: str) -> None:
    print(name, os.getpid() == PARENT, flush=True)
    await asyncio.sleep(0)
    print(name, os.getpid() == PARENT, flush=True)

def plain(ending: str) -> int:
    return finish(ending, os.fork())

async def on_loop(ending: str) -> int:
    child = os.fork()
    if ending == "awaits":
        await asyncio.sleep(0)
    return finish(ending, child)

def finish(ending: str, child: int) -> int:
    if child == 0 and ending == "raises":
        raise ValueError("in the fork")
    return -1 if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

KINDS = {"plain": plain, "on_loop": on_loop}
forking = KINDS[sys.argv[2]]
app = App("sqlite:///jobs.db")
fork_task = app.task(name="forking")(forking)
near = app.task(name="neighbour")(neighbour)

async def in_a_worker(ending: str) -> int:
    async with app, app.worker(slots=3):
        neighbours = [await near.submit("n") for _ in range(2)]
        exit_code = await fork_task.run(ending)
        await asyncio.gather(*neighbours)
        return exit_code

async def in_a_pool(ending: str) -> int:
    async with Pool("p", max_concurrent=3) as pool:
        forked = await pool.submit(forking, ending)
        neighbours = [await pool.submit(neighbour, "n") for _ in range(2)]
        await asyncio.gather(*neighbours)
        return await forked

if __name__ == "__main__":
    PARENT = os.getpid()
    main = {"worker": in_a_worker, "pool": in_a_pool}[sys.argv[1]]
    print("exit code", asyncio.run(main(sys.argv[3])))
"""


DID = {
    "returns": "returned from the job",
    "raises": "raised ValueError: in the fork",
    "awaits": "awaited",
}


def run(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    # The output pipes stay open until the last process that has them ends.
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "script.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize("place", ["worker", "pool"])
@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("plain", "returns"),
        ("plain", "raises"),
        ("on_loop", "returns"),
        ("on_loop", "raises"),
        ("on_loop", "awaits"),
    ],
)
def test_a_process_that_a_job_forks_ends_where_the_job_does(
    tmp_path: Path, place: str, kind: str, ending: str
) -> None:
    done = run(SCRIPT, tmp_path, place, kind, ending)
    assert sorted(done.stdout.splitlines()) == ["exit code 1", *["n True"] * 4]
    (line,) = done.stderr.splitlines()
    assert line.startswith("job ")
    assert "called os.fork(), and the new process " in line
    assert f"{DID[ending]}: it ends" in line
    assert "it ends here with exit code 1, and only the job in its parent counts" in line
    assert 'use run_in="process", subprocess, or multiprocessing' in line


TERMINATED = """
import asyncio, multiprocessing, signal
from poolhand import Pool

def sleep(begun) -> None:
    begun.set()
    signal.pause()

async def start_and_stop() -> int | None:
    fork = multiprocessing.get_context("fork")
    begun = fork.Event()
    child = fork.Process(target=sleep, args=[begun])
    child.start()
    begun.wait()
    child.terminate()
    child.join(10)
    code = child.exitcode
    child.kill()
    return code

async def main() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print, "the parent has it")
    async with Pool("p") as pool:
        print(await pool.run(start_and_stop))
        await asyncio.sleep(0)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_signal_for_a_process_that_a_job_forked_reaches_that_process(tmp_path: Path) -> None:
    done = run(TERMINATED, tmp_path)
    assert (done.stdout, done.stderr) == ("-15\n", "")


WRITES = """
import asyncio, os
from poolhand import App, UsageError, step

app = App("sqlite:///jobs.db")

async def record() -> int:
    return await step("record", lambda: 1)

@app.task
def forking() -> int:
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(record())
        except UsageError as error:
            print(error, flush=True)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

async def main() -> None:
    async with app, app.worker(slots=3):
        print(await forking.run())

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_fork_writes_nothing_for_the_job_of_its_parent(tmp_path: Path) -> None:
    done = run(WRITES, tmp_path)
    assert done.stderr == ""
    refused, exit_code = done.stdout.splitlines()
    assert "is a fork of the one that opened the store" in refused
    assert exit_code == "0"
