"""`poolhand top`: one picture as text, and the live view on a real terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from poolhand import tui
from poolhand.contract import Owner
from poolhand.farm.records import RunningJob, Trouble
from tests.surface.test_cli import HOSTILE, SPELLED, Desk, run
from tests.surface.tmux import terminal
from tests.unit.operate.test_farms import FARM, a_farm, a_worker, write_down
from tests.unit.operate.world import START, World

COMMAND = (sys.executable, "-W", "error", "-m", "poolhand", "top")
LOCAL = (
    *("env", f"PYTHONPATH={Path(__file__).parents[2]}", sys.executable, "-W", "error"),
    str(Path(__file__).with_name("local_view.py")),
)
WITHOUT_TEXTUAL = """
import sys
sys.modules["textual"] = None
from poolhand.cli.main import run
run()
"""


pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(f"sqlite:///{tmp_path}/agents.db")
    run("migrate", "--store", desk.url)
    return desk


def with_a_farm(desk: Desk) -> str:
    """Run a job with a farm while another job waits; return the id of the first."""

    async def happen(world: World) -> str:
        id = await world.add("agents.fetch")
        await world.claim(1)
        await world.add(HOSTILE)
        job = RunningJob(id, "agents.fetch", "chat", START)
        trouble = Trouble(START, HOSTILE, f"{FARM}.2")
        workers = (a_worker(1, jobs=(job,)), a_worker(2, heard=5.0))
        await write_down(world.store, a_farm(FARM, *workers, queued=1, troubles=(trouble,)))
        return id

    return desk.do(happen)


# One picture


def test_a_text_view_shows_farms_workers_and_the_newest_jobs(desk: Desk) -> None:
    id = with_a_farm(desk)
    result = run("top", desk.url, "--inline")
    who, load, done, trouble, _, *rest = result.stdout.splitlines()
    assert who.startswith(f"farm {FARM} · shop:app  ● running")
    assert load == "waiting 1 · running 6 of 10 slots · 2 workers, 1 wanted (min 1, max 10)"
    assert done == "jobs 0 done, 0 failed · attempts 42, 2 failed"
    ago, _, rest_of_it = trouble.removeprefix("TROUBLE 00:00:00 (").partition(" ago) ")
    assert (ago, rest_of_it) == ("0.0s", f"{SPELLED} (worker {FARM}.2)")
    head, farm, first, second, *_ = rest
    assert head.split() == [
        "WORKER", "STATE", "PID", "RUNNING", "ATTEMPTS", "FAILED", "MEMORY", "AGE", "LAST",
        "SIGNAL",
    ]  # fmt: skip
    assert (farm.split()[0], first.split()[:2]) == (FARM, [f"{FARM}.1", "ready"])
    assert "SILENT, ready" in second
    jobs = rest[rest.index("") + 1 :]
    assert jobs[0].split() == [
        "ID", "STATE", "TASK", "POOL", "WORKER", "AGE", "TOOK", "TRIES", "NOTE",
    ]  # fmt: skip
    assert SPELLED in jobs[1]
    assert jobs[2].split()[:5] == [id, "running", "agents.fetch", "chat", f"{FARM}.1"]
    assert result.stdout.replace("\n", "").isprintable()
    assert result.stderr == ""


def test_a_text_view_of_an_empty_store_says_so(desk: Desk) -> None:
    assert desk.run("top", "--inline").stdout.splitlines() == [
        "no farm is running; start one with `poolhand work module:app`",
        "",
        "no jobs yet",
    ]


def test_a_text_view_shows_workers_without_a_farm(desk: Desk) -> None:
    lone = Owner("owner-1", "elm/9", "b", 300, "1", works=True)
    desk.do(lambda world: world.enroll(lone))
    assert "owner-1  of no farm, on elm  300" in desk.run("top", "--inline").stdout


@pytest.mark.slow
def test_the_text_view_needs_no_textual_and_the_live_view_names_what_to_install(desk: Desk) -> None:
    done = [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", WITHOUT_TEXTUAL, "top", desk.url, *more],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        for more in (["--inline"], [])
    ]
    assert (done[0].returncode, done[0].stderr) == (0, "")
    assert (done[1].returncode, done[1].stdout) == (2, "")
    assert done[1].stderr == f"poolhand: {tui.NOT_THERE} [PH-USE-001]\n"


# Wrong calls


def test_the_live_view_in_a_pipe_is_refused_with_the_alternative(desk: Desk) -> None:
    done = subprocess.run(
        [*COMMAND, desk.url],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "poolhand top --inline" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["sqlite:///none.db"], 5, "there is no file"),
        (["sqlite:///a.db", "--store", "sqlite:///b.db"], 2, "give the URL of the store once"),
        (["memory://"], 2, "is in the memory of the process that uses it"),
        ([], 2, "no store is named"),
    ],
    ids=["no file", "two stores", "memory", "none"],
)
def test_a_usage_error_is_reported_in_one_line(words: list[str], code: int, told: str) -> None:
    for more in ([], ["--inline"]):
        result = run("top", *words, *more, code=code)
        assert result.stdout == ""
        assert told in result.stderr
        assert result.stderr.count("\n") == 1


# A real terminal


@pytest.mark.slow
def test_the_view_works_on_a_terminal_and_leaves_it_as_it_was(desk: Desk, tmp_path: Path) -> None:
    id = with_a_farm(desk)
    with terminal([*COMMAND, desk.url], columns=80, rows=24) as pane:
        pane.sees(f"farm {FARM}", "SILENT, ready", "(min 1, max 10)")
        assert pane.is_alternate
        pane.press("t")
        pane.sees(id, SPELLED[-6:])
        pane.press("/fetch")
        pane.sees("search 'fetch' · 1")

        def opened() -> bool:
            # The first key leaves the search; a second one sent with it would, too.
            pane.press("Enter")
            return f"job {id}" in pane.text and "● running" in pane.text

        pane.until(opened, "the job")
        pane.sees(f"worker        {FARM}.1")
        pane.press("q")
        pane.sees("ended with 0", "0 attempts failed in 1 farm; 1 still queued")
        assert not pane.is_alternate


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Ctrl-C", pytest.param("SIGTERM", marks=pytest.mark.full)])
def test_a_view_ended_by_a_signal_or_ctrl_c_restores_the_terminal(
    desk: Desk, tmp_path: Path, name: str
) -> None:
    with terminal(["sh", "-c", f"echo $$ >{tmp_path}/pid; exec {_line(desk)}"]) as pane:
        pane.sees("no farm is running")
        if name == "SIGTERM":
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        else:
            pane.press("C-c")
        pane.sees("ended with 0", "watched ", ": no farm was running; no jobs left")
        assert not pane.is_alternate


FARMED = """
from poolhand import App

app = App("sqlite:///agents.db")

@app.task(name="greet")
async def greet() -> None: ...

@app.task(name="later", pool="paused")
async def later() -> None: ...

if __name__ == "__main__":
    greet.submit_sync()
    later.with_options(delay=3600).submit_sync()
"""


@pytest.mark.slow
def test_closing_the_view_of_a_farm_prints_a_line_with_its_results(tmp_path: Path) -> None:
    (tmp_path / "farmed.py").write_text(FARMED)
    subprocess.run([sys.executable, "farmed.py"], cwd=tmp_path, check=True)
    work = f"{sys.executable} -m poolhand work farmed:app --tui --max 1"
    with terminal(["sh", "-c", f"cd {tmp_path}; exec {work}"]) as pane:
        pane.sees("farm ", "running")
        shown = Desk(f"sqlite:///{tmp_path}/agents.db")
        pane.until(
            lambda: shown.json("jobs", "list", "--status", "completed")["jobs"], "the end of a job"
        )
        pane.press("q")
        pane.sees("ended with 0", ": 1 job completed, 0 attempts failed; 1 scheduled")
        assert not pane.is_alternate


def _line(desk: Desk) -> str:
    return " ".join([*COMMAND, desk.url])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        pytest.param(["q", "q"], "graceful, fast", id="q"),
        pytest.param(["SIGTERM"], "signal", id="signal", marks=pytest.mark.full),
    ],
)
def test_a_farm_and_its_view_share_a_terminal(
    desk: Desk, tmp_path: Path, keys: list[str], told: str
) -> None:
    told_in = tmp_path / "told"
    line = f"echo $$ >{tmp_path}/pid; exec {' '.join(LOCAL)} {desk.url} {told_in}"
    with terminal(["sh", "-c", line]) as pane:
        pane.sees(f"farm {FARM}", "● running")
        for key in keys:
            if key == "SIGTERM":
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
            else:
                pane.press(key)
                pane.until(lambda: "STOPPING: 3 still run" in pane.text or told_in.exists(), key)
        pane.sees("ended with 0")
    assert told_in.read_text() == told


@pytest.mark.slow
def test_a_view_that_is_ended_while_it_begins_ends(desk: Desk, tmp_path: Path) -> None:
    with terminal([*LOCAL, desk.url, f"{tmp_path}/told", "at once"]) as pane:
        pane.sees("ended with 0")
        assert not pane.is_alternate
    assert (tmp_path / "told").read_text() == "early"


@pytest.mark.slow
def test_a_view_exits_when_its_terminal_is_gone_and_the_farm_continues(
    desk: Desk, tmp_path: Path
) -> None:
    with terminal([*LOCAL, desk.url, f"{tmp_path}/told"]) as pane:
        pane.sees(f"farm {FARM}", "● running")
        pane.tmux("kill-server")
        pane.until((tmp_path / "told").exists, "the end of the view")
