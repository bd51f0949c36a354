"""One module, started in all usual ways: its tasks have one name, and every worker has them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from poolhand import App
from poolhand.views import Status
from tests.system.farmhouse import until

pytestmark = pytest.mark.slow

AGENTS = """
import sys
from poolhand import App

app = App()

@app.task
def plain(number: int) -> int:
    return number

@app.task(run_in="process")
def apart(number: int) -> int:
    return number

if __name__ == "__main__":
    print(plain.name, apart.name)
    plain.submit_sync(1)
    apart.submit_sync(2)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def run(folder: Path, url: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"POOLHAND_STORE": url},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def make(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "agents.py").write_text(AGENTS)
    return folder


def counts(url: str) -> dict[Status, int]:
    async def ask() -> dict[Status, int]:
        async with App(url) as app:
            return await app.operator().count()

    return asyncio.run(ask())


def work(folder: Path, url: str, app: str, jobs: int) -> str:
    """Run a farm until that many jobs are completed; return its log."""
    log = folder / "log"
    with log.open("wb") as output:
        farm = subprocess.Popen(
            [sys.executable, "-m", "poolhand", "work", app, "--max", "1"],
            cwd=folder,
            env=os.environ | {"POOLHAND_STORE": url},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        until(lambda: counts(url) == {Status.COMPLETED: jobs}, f"end of {jobs} jobs")
        farm.send_signal(signal.SIGTERM)
        assert farm.wait(30) == 0
    finally:
        farm.kill()
        farm.wait()
    return log.read_text()


def test_a_module_of_a_package_names_its_tasks_alike_however_it_is_started(
    tmp_path: Path, url: str
) -> None:
    package = make(tmp_path, "proj")
    (package / "__init__.py").touch()
    names = "proj.agents.plain proj.agents.apart\n"
    assert run(tmp_path, url, "proj/agents.py") == names
    assert run(tmp_path, url, "-m", "proj.agents") == names
    assert run(package, url, "agents.py") == names
    load = (
        "from poolhand.app_name import load_app; print(*sorted(load_app('{}').core.tasks._codes))"
    )
    for folder, app in ((tmp_path, "proj.agents:app"), (package, "agents:app")):
        found = run(folder, url, "-c", load.format(app))
        assert found == "proj.agents.apart proj.agents.plain\n"


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param(True, id="agents:app"),
        pytest.param(False, id="space.agents:app", marks=pytest.mark.full),
    ],
)
def test_jobs_of_a_folder_that_is_no_package_run_however_their_worker_is_started(
    tmp_path: Path, url: str, inside: bool
) -> None:
    folder = make(tmp_path, "space")
    assert run(tmp_path, url, "space/agents.py") == "agents.plain agents.apart\n"
    assert run(tmp_path, url, "-m", "space.agents") == "space.agents.plain space.agents.apart\n"
    if inside:
        log = work(folder, url, "agents:app", 4)
    else:
        log = work(tmp_path, url, "space.agents:app", 4)
    assert f"store {url} (from environment POOLHAND_STORE)" in log


PAYS = """
import asyncio, os, signal, sys
from pathlib import Path
from poolhand import App, tool, tool_context

app = App()

def note(line: str) -> None:
    with Path("made").open("a") as made:
        made.write(line + "\\n")

@tool(effect="once")
async def pay(order: str) -> str:
    note(f"pay {order}")
    return order

@tool(effect="idempotent", scope="session", key_fields=["order"])
async def ship(order: str) -> str:
    note(f"ship {order} {tool_context().idempotency_key}")
    if "crash" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return order

@app.agent
async def buy(session, order: str) -> str:
    return await ship(await pay(order))

async def main() -> None:
    async with app, app.worker():
        turn = await buy.session("s").with_options(idempotency_key="one").submit("bees")
        print(await turn)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("is_script_first", [True, False])
def test_tools_of_a_folder_that_is_no_package_are_called_once_however_they_are_started(
    tmp_path: Path, url: str, is_script_first: bool
) -> None:
    folder = tmp_path / "space"
    folder.mkdir()
    (folder / "agents.py").write_text(PAYS)
    forms = [("space/agents.py",), ("-m", "space.agents")]
    before, after = forms if is_script_first else forms[::-1]
    crash = subprocess.run(
        [sys.executable, *before, "crash"],
        cwd=tmp_path,
        env=os.environ | {"POOLHAND_STORE": url},
        timeout=50,
    )
    assert crash.returncode == -signal.SIGKILL
    assert run(tmp_path, url, *after) == "bees\n"
    pay, *ships = (tmp_path / "made").read_text().splitlines()
    assert pay == "pay bees"
    assert len(ships) == 2
    assert len(set(ships)) == 1


WORKS = """
import asyncio
from poolhand import App

app = App("sqlite:///jobs.db")

@app.task
async def call() -> None: ...

async def main() -> None:
    async with app.worker():
        await call.submit()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "words", [("work", "unguarded:app"), ("jobs", "list", "--app", "unguarded:app")]
)
def test_a_module_that_runs_work_at_import_gets_an_error_with_the_fix(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "unguarded.py").write_text(WORKS)
    done = subprocess.run(
        [sys.executable, "-m", "poolhand", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith(
        "poolhand: unguarded runs an event loop (asyncio.run or the like) while"
    )
    assert second == (
        "poolhand: app='unguarded:app': a store is opened while unguarded is imported, to submit "
        'jobs or to run them; put what it does under `if __name__ == "__main__":` [PH-USE-001]'
    )
    assert not (tmp_path / "jobs.db").exists()


def test_a_farm_whose_code_and_settings_name_two_stores_reports_the_one_in_use(
    tmp_path: Path, url: str
) -> None:
    folder = make(tmp_path, "space")
    text = AGENTS.replace("App()", f"App({url!r})")
    (folder / "agents.py").write_text(text)
    run(folder, "memory://", "agents.py")
    log = folder / "log"
    other = f"sqlite:///{tmp_path}/other.db"
    told = (
        f"poolhand: the code of agents:app uses the store {url}, and environment POOLHAND_STORE "
        f"names {other}, which this app does not use; remove the setting, or write App() without "
        "a URL to use it\n"
    )
    with log.open("wb") as output:
        farm = subprocess.Popen(
            [sys.executable, "-m", "poolhand", "work", "agents:app", "--max", "1"],
            cwd=folder,
            env=os.environ | {"POOLHAND_STORE": other},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        until(lambda: "farm started" in log.read_text(), "start")
    finally:
        farm.terminate()
        farm.wait()
    assert told in log.read_text()
    assert f"store {url} (from the code)" in log.read_text()
    assert not (tmp_path / "other.db").exists()
