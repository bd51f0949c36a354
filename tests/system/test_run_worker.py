"""`app.run_worker()` in a real process, stopped by real signals."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from poolhand import wait
from poolhand.app import App
from poolhand.views import Status
from tests.extent import ALSO_POSTGRES

pytestmark = pytest.mark.slow

AGAIN = {signal.SIGINT: "press Ctrl-C", signal.SIGTERM: "send SIGTERM"}


@pytest.fixture(params=["sqlite", ALSO_POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    schema: str = request.getfixturevalue("schema")
    return schema


@contextmanager
def script(url: str, *names: str, drain_timeout: float = 30) -> Iterator[subprocess.Popen[str]]:
    """Run the script with these jobs; it is killed if it does not end by itself."""
    command = [sys.executable, "-m", "tests.system.run_worker_script", url, *names]
    pipe, set_to = subprocess.PIPE, {**os.environ, "DRAIN_TIMEOUT": f"{drain_timeout}"}
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=set_to
    ) as process:
        try:
            assert out(process).startswith("pid ")
            if "EMBEDDED" not in set_to:
                assert err(process).startswith("starting a worker with ")
            yield process
        finally:
            process.kill()


def out(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def err(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().rstrip("\n")


def release(process: subprocess.Popen[str]) -> None:
    """Release the jobs of the script."""
    assert process.stdin is not None
    process.stdin.close()


def begun(process: subprocess.Popen[str], jobs: int) -> None:
    for _ in range(jobs):
        assert out(process) == "begun"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_running_jobs_finish(url: str, number: signal.Signals) -> None:
    with script(url, "hold", "hold", "hold") as process:
        begun(process, 3)
        process.send_signal(number)
        assert err(process) == (
            "stopping: 3 jobs are still running; waiting up to 30 s "
            f"({AGAIN[number]} again to stop now)"
        )
        release(process)
        assert process.wait() == 0
        assert out(process) == "3 completed, 0 handed back"
        assert out(process) == "completed completed completed"
        assert out(process) == "handlers restored: True"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
def test_the_second_signal_hands_jobs_back_uncharged(url: str, number: signal.Signals) -> None:
    with script(url, "hold") as process:
        begun(process, 1)
        process.send_signal(number)
        assert err(process).startswith("stopping: 1 job is still running; waiting up to 30 s")
        process.send_signal(number)
        assert err(process) == "stopping now: 1 job is handed back to the store"
        assert re.fullmatch(
            "stopped: 1 job was still running; handed back to the store, to run again: "
            r"job \w+ of task 'hold'",
            err(process),
        )
        assert process.wait() == 0
        assert out(process) == "0 completed, 1 handed back"
        assert out(process) == "queued"
        assert out(process) == "handlers restored: True"
    # Another process claims it, as its first attempt.
    with script(url) as process:
        begun(process, 1)
        release(process)
        (job,) = asyncio.run(completed(url))
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert job == (Status.COMPLETED, 1)


def test_a_job_in_a_thread_is_named_at_the_second_signal_and_runs_again_after_the_process(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with script(url, "think", "hold") as process:
        begun(process, 2)
        process.send_signal(signal.SIGINT)
        assert err(process).startswith("stopping: 2 jobs are still running")
        process.send_signal(signal.SIGINT)
        assert re.fullmatch(
            r"stopping now: 1 job is handed back to the store; job \w+ of task 'think' runs in a "
            "thread, which cannot be stopped: it runs on until the code ends or this process ends, "
            "and is handed back then",
            err(process),
        )
        assert re.fullmatch(
            "stopped: 2 jobs were still running; handed back to the store, to run again: job "
            r"\w+ of task 'hold'; not stopped: job \w+ of task 'think'; the code runs on in a "
            "thread, until it ends or this process ends, its result is discarded, and the job runs "
            "again in another worker when this process has ended, at the latest after about 30 s",
            err(process),
        )
        assert process.wait() == 0
        assert out(process) == "0 completed, 1 handed back"
        assert out(process) == "running queued"
    with script(url) as process:
        begun(process, 2)
        release(process)
        assert asyncio.run(completed(url)) == [(Status.COMPLETED, 1)] * 2


def test_a_drain_that_takes_too_long_ends_with_the_jobs_that_were_handed_back(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with script(url, "hold", "hold", drain_timeout=0.1) as process:
        begun(process, 2)
        process.send_signal(signal.SIGTERM)
        assert err(process).startswith("stopping: 2 jobs are still running; waiting up to 0.1 s")
        assert re.fullmatch(
            "stopped: 2 jobs were still running after 0.1 s; handed back to the store, to run "
            r"again: job \w+ of task 'hold', job \w+ of task 'hold'",
            err(process),
        )
        assert process.wait() == 0
        assert out(process) == "0 completed, 2 handed back"


def test_a_signal_stops_an_idle_worker_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with script(url, "hold") as process:
        begun(process, 1)
        release(process)
        asyncio.run(completed(url))
        process.send_signal(signal.SIGINT)
        assert err(process) == "stopping: no jobs are running"
        assert process.wait() == 0


def test_a_third_signal_ends_a_process_whose_loop_a_job_blocks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with script(url, "block") as process:
        begun(process, 1)
        process.send_signal(signal.SIGINT)
        assert err(process).startswith("stopping: 1 job is still running")
        process.send_signal(signal.SIGINT)
        assert err(process).startswith("stopping now")
        process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT
    # The interrupted job runs again.
    with script(url) as process:
        begun(process, 1)
        release(process)
        assert asyncio.run(completed(url)) == [(Status.COMPLETED, 2)]


def test_ctrl_c_on_an_embedded_worker_reports_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDED", "1")
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with script(url, "hold", "hold") as process:
        begun(process, 2)
        process.send_signal(signal.SIGINT)
        assert err(process) == (
            "stopping: 2 jobs are still running; waiting up to 30 s "
            "(press Ctrl-C again to stop now)"
        )
        release(process)
        assert process.wait() == -signal.SIGINT
    assert asyncio.run(completed(url)) == [(Status.COMPLETED, 1)] * 2


def test_a_second_ctrl_c_on_an_embedded_worker_hands_jobs_back_uncharged(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job in a thread, too, which cannot be stopped and ends with its process."""
    with monkeypatch.context() as patched:
        patched.setenv("EMBEDDED", "1")
        with script(url, "think", "hold", drain_timeout=3600) as process:
            begun(process, 2)
            process.send_signal(signal.SIGINT)
            assert err(process).startswith("stopping: 2 jobs are still running")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT, "it does not wait for the drain"
    with script(url) as process:
        begun(process, 2)
        release(process)
        assert asyncio.run(completed(url)) == [(Status.COMPLETED, 1)] * 2


async def completed(url: str) -> list[tuple[Status, int]]:
    """Wait until all jobs are over; return their status and number of attempts."""
    async with App(url) as app:
        tickets = [await app.get(view.id) for view in (await app.operator().jobs()).jobs]
        jobs = await wait([one for one in tickets if one is not None])
    return [(job.status, job.attempts) for job in jobs]
