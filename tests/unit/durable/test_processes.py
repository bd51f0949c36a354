"""Stored jobs in processes of their own, workers that are killed, and forks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from poolhand.app import App
from poolhand.contract import ClaimRequest, Filter
from poolhand.durable.worker.executor import crashed
from poolhand.errors import JobLost
from poolhand.observe.events import OwnerReaped, WorkerVanished
from poolhand.views import Status
from tests.extent import ALSO_POSTGRES
from tests.unit.durable import farm_tasks
from tests.unit.durable.conftest import USED, shared
from tests.unit.durable.support import Heard, stored

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
WORKER = """
import asyncio, sys
from tests.unit.durable import farm_tasks

async def main():
    async with farm_tasks.app.worker(int(sys.argv[1]), drain_timeout=float(sys.argv[2])):
        try:
            print("working", flush=True)
            await asyncio.Event().wait()
        finally:
            print("leaving", flush=True)

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", ALSO_POSTGRES, USED])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that several processes may have open, new or used by others before."""
    return shared(request, tmp_path)


def app_of(url: str, heard: Heard | None = None) -> App:
    """Return an app with the tasks of the module, on another store."""
    app = App(url, events=None if heard is None else heard.events)
    app.task(farm_tasks.hang.fn)
    app.task(farm_tasks.count.fn)
    return app


@contextmanager
def worker(url: str, slots: int = 2, drain: float = 0.2) -> Iterator[subprocess.Popen[str]]:
    """A worker in another process, ready to claim."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(slots), str(drain)],
        cwd=ROOT,
        env={**os.environ, "FARM_TASKS_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "working\n"
            yield process
        finally:
            process.kill()


async def lines(path: Path, count: int) -> list[str]:
    """Wait until so many lines were written, and return them."""

    def read() -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    while len(found := read()) < count:  # noqa: ASYNC110 - another process writes them
        await asyncio.sleep(0)
    return found


async def crash_twice(app: App) -> None:
    """Claim the waiting jobs and let their owner die, twice."""
    connection = await app.core.connection()
    store, heartbeat = connection.store, connection.heartbeat

    async def crash() -> None:
        for _ in range(2):
            await store.replace((), ClaimRequest(heartbeat.owner.id, (0,)))
            (lease,) = await store.leases()
            claims = await store.expire_owner(heartbeat.owner.id, lease.renewal)
            await store.replace([crashed(claim, app.core.runtime.wall()) for claim in claims])
            await heartbeat.renew()

    await connection.thread.ask(crash)


async def test_a_task_in_a_process_gets_and_returns_data_and_sees_its_token(url: str) -> None:
    app = App(url)
    where = app.task(run_in="process")(farm_tasks.where.fn)
    async with app, app.worker(2):
        tickets = [await where.submit(text) for text in ("a", "b", "c")]
        found = [await ticket for ticket in tickets]
        assert [text for text, *_ in found] == ["a", "b", "c"]
        assert all(pid != os.getpid() for _, pid, *_ in found)
        assert [id for *_, id in found] == [ticket.id for ticket in tickets]
        tokens = [token for *_, token, _ in found]
        assert all(isinstance(token, int) for token in tokens)
        assert len(set(tokens)) == 3


async def test_an_error_raised_in_a_process_task_is_raised_to_the_caller(url: str) -> None:
    app = App(url)
    fail = app.task(run_in="process", retry=farm_tasks.fail._changes["retry"])(farm_tasks.fail.fn)
    async with app, app.worker():
        with pytest.raises(LookupError, match="no bees"):
            await (await fail.submit("no bees"))


async def test_a_task_in_a_process_is_asked_to_stop(url: str) -> None:
    app = App(url)
    patient = app.task(run_in="process")(farm_tasks.patient.fn)
    async with app, app.worker():
        ticket = await patient.submit()
        while (await ticket.refresh()).status is not Status.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await ticket.cancel()
        assert ticket.status in (Status.CANCELLED, Status.COMPLETED)


async def test_a_child_that_dies_under_its_job_is_detected_and_the_job_fails_at_last(
    url: str,
) -> None:
    heard = Heard()
    app = App(url, events=heard.events)
    die = app.task(run_in="process", retry=farm_tasks.die._changes["retry"])(farm_tasks.die.fn)
    async with app, app.worker():
        ticket = await die.submit(9)
        with pytest.raises(JobLost):
            await ticket
        job = (await stored(app, ticket.id)).job
        assert job.status is Status.FAILED
        assert job.crashes == 3, "two are forgiven, the third was alone"
    assert len(heard.of(WorkerVanished)) == 3


async def test_a_job_that_is_suspected_runs_in_a_process_of_its_own(
    url: str, tmp_path: Path
) -> None:
    app = App(url)
    alone = app.task(farm_tasks.alone.fn)
    async with app:
        ticket = await alone.submit(str(tmp_path / "runs"))
        await crash_twice(app)
        assert (await ticket.refresh()).crashes == 2
        async with app.worker():
            pid, token = await ticket
        assert pid != os.getpid()
        assert token is not None


async def test_a_suspect_that_no_child_can_import_runs_in_the_worker(url: str) -> None:
    app = App(url)

    @app.task(name="local")
    async def local() -> int:
        return os.getpid()

    async with app:
        ticket = await local.submit()
        await crash_twice(app)
        async with app.worker():
            assert await ticket == os.getpid()


async def test_the_jobs_of_a_killed_worker_run_again_within_seconds(
    shared_url: str, tmp_path: Path
) -> None:
    heard = Heard()
    app = app_of(shared_url, heard)
    hang = app.task(farm_tasks.hang.fn)
    async with app:
        path = tmp_path / "runs"
        with worker(shared_url, slots=3) as first:
            tickets = await hang.submit_many([(str(path),)] * 3)
            before = await lines(path, 3)
            assert {line.split()[0] for line in before} == {str(first.pid)}
            with worker(shared_url, slots=3) as second:
                first.kill()
                first.wait()
                after = (await lines(path, 6))[3:]
                assert {line.split()[0] for line in after} == {str(second.pid)}
        # Tokens grow, so a service that keeps the highest can refuse older ones.
        assert max(int(line.split()[1]) for line in before) < min(
            int(line.split()[1]) for line in after
        )
        connection = await app.core.connection()
        counted = await connection.thread.ask(
            lambda: connection.store.count(Filter(name=hang.name))
        )
        assert sum(counted.values()) == 3
        jobs = [(await ticket.refresh()) for ticket in tickets]
        assert {job.crashes for job in jobs} <= {1, 2}
        for ticket in tickets:
            await ticket.cancel()
    reaped = heard.of(OwnerReaped)
    assert all(event.pid in (first.pid, second.pid) for event in reaped)


def insist(process: subprocess.Popen[str]) -> None:
    """Interrupt a process until it ends: one signal may be lost."""
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)


@pytest.mark.parametrize(("told", "drain"), [(1, 0.2), (2, 1000.0)], ids=["once", "twice"])
async def test_a_stopped_worker_hands_jobs_back_uncharged(
    shared_url: str, tmp_path: Path, told: int, drain: float
) -> None:
    app = app_of(shared_url)
    hang, count = app.task(farm_tasks.hang.fn), app.task(farm_tasks.count.fn)
    async with app:
        path = tmp_path / "runs"
        with worker(shared_url, drain=drain) as process:
            ticket = await hang.submit(str(path))
            await lines(path, 1)
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "leaving\n"
            if told == 2:
                await asyncio.to_thread(insist, process)
            await asyncio.to_thread(process.wait)
        job = await ticket.refresh()
        assert (job.status, job.attempts, job.crashes) == (Status.QUEUED, 0, 0)
        await ticket.cancel()
        with worker(shared_url) as process:
            assert await (await count.submit(str(path))) == process.pid


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_its_own_store_connection(shared_url: str, tmp_path: Path) -> None:
    script = f"""
import asyncio, os
from poolhand.app import App
app = App({shared_url!r})

@app.task(name="add")
async def add(number: int) -> int:
    return number + 1

async def submit(number):
    return [(await add.submit(number)).id for _ in range(20)]

ids = asyncio.run(submit(1))
read, write = os.pipe()
child = os.fork()
if child == 0:
    more = [add.submit_sync(2).id for _ in range(20)]
    os.write(write, "\\n".join(more).encode())
    os._exit(0)
ids += asyncio.run(submit(3))
_, status = os.waitpid(child, 0)
assert status == 0
ids += os.read(read, 10000).decode().splitlines()
assert len(set(ids)) == 60, len(set(ids))

async def work():
    async with app, app.worker(4):
        tickets = [await app.get(id) for id in ids]
        return sorted([await ticket for ticket in tickets])

assert asyncio.run(work()) == [2] * 20 + [3] * 20 + [4] * 20
print("ok")
"""
    found = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        cwd=tmp_path,
    )
    assert (found.stdout, found.stderr) == ("ok\n", "")


SUBMITTER = """
import sys
from poolhand import bounded
from poolhand.app import App

app = App(sys.argv[1])
app.pool("full", max_concurrent=1, backpressure=bounded(1))

@app.task(pool="full", name="call")
async def call(): ...

call.submit_sync()
try:
    call.submit_sync()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.read()
"""


@contextmanager
def submitter(url: str) -> Iterator[subprocess.Popen[str]]:
    """A process whose submitter waits for a place."""
    command, pipe = [sys.executable, "-c", SUBMITTER, url], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_ctrl_c_ends_a_submit_that_waits_for_a_place(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    async def parked() -> int:
        connection = await app.core.connection()
        rows = await connection.thread.ask(connection.store.pools)
        return sum(row.blocked_submitters for row in rows)

    async with app:
        with submitter(app.url) as process:
            while not await parked():
                pass
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "interrupted\n"
            while await parked():
                pass
