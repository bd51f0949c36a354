"""`app.run_worker()`: where it may block, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from poolhand import UsageError
from poolhand.app import App
from poolhand.views import Status, WorkerReport

STOPS = (signal.SIGINT, signal.SIGTERM)


async def test_run_worker_on_a_loop_is_refused() -> None:
    with pytest.raises(UsageError, match=r"use `async with app\.worker"):
        App("memory://").run_worker()


def test_run_worker_needs_the_main_thread() -> None:
    found: list[BaseException] = []

    def run() -> None:
        try:
            App("memory://").run_worker()
        except UsageError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "only the main thread" in str(found[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slots": 0}, "slots=0 is not allowed"),
        ({"pools": "chat"}, "pools='chat' is not allowed"),
        ({"drain_timeout": True}, "drain_timeout=True is not allowed"),
    ],
    ids=["slots", "pools", "timeout"],
)
def test_run_worker_checks_its_options(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        App("memory://").run_worker(**options)


def stopped(app: App) -> WorkerReport:
    before = [signal.getsignal(one) for one in STOPS]
    report = app.run_worker(2)
    assert [signal.getsignal(one) for one in STOPS] == before
    return report


def test_jobs_run_until_a_signal_arrives(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    app = App(url)

    @app.task(name="stop")
    def stop() -> int:
        # On another thread of this process: the worker's loop has the main thread.
        os.kill(os.getpid(), signal.SIGTERM)
        return 7

    ticket = stop.submit_sync()
    assert stopped(app).completed == 1
    assert ticket.result() == 7
    asyncio.run(app.close())
    assert "stopping: " in capsys.readouterr().err


def test_a_signal_before_the_start_ends_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    app = App("memory://")

    @app.warm_up
    async def load() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    @app.task(name="call")
    async def call() -> None: ...

    assert stopped(app) == WorkerReport(0, 0, 0, 0, 0.0)
    assert capsys.readouterr().err == (
        "starting a worker with 2 slots: store memory:// (from the code)\n"
        "stopping: the worker has not started yet\n"
    )


def test_the_start_logs_which_file_a_relative_url_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    app = App("sqlite:///jobs.db")

    @app.task(name="stop")
    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    stop.submit_sync()
    app.run_worker(slots=1)
    said = capsys.readouterr().err.splitlines()[0]
    here = tmp_path.resolve()
    assert said == f"starting a worker with 1 slot: store sqlite:///{here}/jobs.db (from the code)"


def test_a_pool_that_no_task_uses_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    app = App("memory://")

    @app.warm_up
    def load() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    @app.task(name="call", pool="research")
    async def call() -> None: ...

    app.run_worker(pools=["reserch"])
    assert [record.getMessage() for record in caplog.records] == [
        "run_worker: pool 'reserch' is not declared and no task uses it; did you mean 'research'?"
    ]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    app = App("memory://")

    @app.task(name="stop")
    def stop() -> bool:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGTERM)
        return ignored

    ticket = stop.submit_sync()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stopped(app)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ticket.result() is True
    asyncio.run(app.close())


def test_a_worker_that_cannot_start_restores_the_signal_handlers(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}")
    before = [signal.getsignal(one) for one in STOPS]
    with pytest.raises(Exception, match=str(tmp_path)):
        app.run_worker()
    assert [signal.getsignal(one) for one in STOPS] == before


def test_run_worker_can_run_again(shared_url: str) -> None:
    app = App(shared_url)

    @app.task(name="stop")
    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    for _ in range(2):
        ticket = stop.submit_sync()
        stopped(app)
        assert ticket.status is Status.COMPLETED
