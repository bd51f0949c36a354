"""The demo: in a terminal, in a pipe, interrupted, killed, called wrongly."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import uuid4

import pytest
from rich.console import Console

from poolhand.observe.events import JobEnded, JobStarted
from poolhand.operate.views import AuditView
from poolhand.views import Fault, Job, Status, WorkerReport
from tests import warm

EXAMPLES = Path(__file__).parents[2] / "examples"
DEMO = [sys.executable, str(EXAMPLES / "demo.py")]
QUICK = ["--sessions", "60", "--seconds", "8", "--speed", "3", "--slots", "4"]
# A short round beside what a run finds: that is as long as the machine is busy.
FEW = ["--sessions", "12", "--seconds", "2", "--speed", "3", "--slots", "4"]
HOW = re.compile(r"\d+ running, \d+ queued, \d+ blocked, \d+ scheduled; [12] process(es)?, \d+ job")
SECONDS = 50
COLUMNS, ROWS = 80, 24
STEERING = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)

pytestmark = pytest.mark.slow
# Each takes a round of the demo; tests/system covers the same promises for farms and commands.
IN_FULL = pytest.mark.full


def environment(**more: str) -> dict[str, str]:
    """The environment of this process without variables that control colours."""
    painting = {"COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TERM"}
    kept = {name: value for name, value in os.environ.items() if name not in painting}
    return {**kept, "PYTHONWARNINGS": "default", **more}


def run(*command: str, limit: float = SECONDS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=limit, check=False, env=environment()
    )


def played(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python for which it is enough to be forked."""
    return warm.run(words, env=environment(), timeout=SECONDS)


@contextmanager
def started(*flags: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The running demo with its output in a pipe; always ended."""
    pipe = subprocess.PIPE
    command = [*DEMO, *flags]
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment(**variables)
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(stream: IO[str] | None, pattern: str) -> str:
    assert stream is not None
    for line in stream:
        if re.search(pattern, line):
            return line
    pytest.fail(f"the demo ended without a line like {pattern!r}")


def ask(store: str, *words: str) -> Any:
    """Return what a command of poolhand prints about a store."""
    done = played("-m", "poolhand", *words, "--store", store, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def jobs_in(store: str) -> list[dict[str, Any]]:
    page = ask(store, "jobs", "list", "--limit", "10000")
    assert page["after"] is None
    jobs: list[dict[str, Any]] = page["jobs"]
    return jobs


def balance(output: str) -> Counter[str]:
    """Return the figures of the line that accounts for every job, after checking them."""
    (line,) = [line for line in output.splitlines() if line.startswith("accepted ")]
    figures = Counter({name: int(count) for name, count in re.findall(r"(\w+) (\d+)", line)})
    ends = ("completed", "failed", "cancelled", "rejected", "expired", "waiting")
    assert set(figures) <= {"accepted", "lost", *ends}
    assert figures["accepted"] == sum(figures[end] for end in ends)
    assert "lost" in figures
    assert figures["lost"] == 0
    return figures


class Once(NamedTuple):
    """One round that ended by itself, in a pipe."""

    output: str
    store: str

    def headlines(self) -> list[str]:
        """Return the lines besides the one of every second."""
        return re.findall(r"^ *[\d.]+ s  \* (.+)$", self.output, re.MULTILINE)

    def find(self, pattern: str) -> re.Match[str]:
        (found,) = re.finditer(pattern, self.output, re.MULTILINE)
        return found


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    store = f"sqlite:///{tmp_path_factory.mktemp('once')}/agents.db"
    done = run(*DEMO, "--once", *QUICK, "--store", store)
    assert (done.returncode, done.stderr) == (0, "")
    return Once(done.stdout, store)


def planned(monkeypatch: pytest.MonkeyPatch, habit: str) -> tuple[str, str]:
    """Return tenant and session of the one turn with this habit."""
    flags, plan = stage(monkeypatch, "flags", "plan")
    sessions = plan.make_round(flags.parse(["--once", *QUICK]), 1)
    (found,) = [one for one in sessions for turn in one.turns if turn.habit is plan.Habit[habit]]
    return found.tenant, found.id


def test_one_round_ends_and_accounts_for_every_job(once: Once) -> None:
    first, *_, last = once.output.splitlines()
    assert "60 sessions of 5 tenants: one fair pool of 4 slots" in first
    assert "README.md" in last
    assert "\x1b" not in once.output
    figures = balance(once.output)
    assert figures["completed"] > 0
    assert figures["cancelled"] > 0
    assert figures["waiting"] == 0
    (total,) = [line.split() for line in once.output.splitlines() if line.startswith("all ")]
    sessions, turns, ok, retried, failed, rerun, cancelled = map(int, total[1:8])
    assert (sessions, turns) == (60, figures["accepted"])
    assert (ok, cancelled) == (figures["completed"], figures["cancelled"])
    assert failed == rerun == figures["failed"] > 0
    assert retried > 0


def test_the_store_matches_the_summary(once: Once) -> None:
    figures = balance(once.output)
    jobs = jobs_in(once.store)
    ends = Counter(job["status"] for job in jobs if job["submitted_by"] == "user")
    assert ends == Counter({name: figures[name] for name in ("completed", "failed", "cancelled")})
    assert len({job["tenant"] for job in jobs}) == 5
    assert str(once.store.removeprefix("sqlite:///")) in once.output


def test_jobs_of_a_killed_process_are_reaped_by_the_other_and_finish(once: Once) -> None:
    pid = once.find(r"\* worker 2, pid (\d+), is killed by SIGKILL")[1]
    # Reported by the process that reclaimed them, which may be the next one before it is read.
    told = re.search(rf"\* pid {pid} is gone; the (\d+) jobs? it ran go on", once.output)
    held = 1 if told is None else int(told[1])
    once.find(r"\* worker 3, pid \d+, takes jobs from the same file")
    crashed = [job for job in jobs_in(once.store) if job["crashes"]]
    assert len(crashed) >= held
    once.find(rf"^recovered {len(crashed)}, of which ended {len(crashed)}$")
    assert all(Status(job["status"]).terminal for job in crashed)


def test_dead_letters_are_run_again_by_the_operator_and_none_is_left(once: Once) -> None:
    failed = balance(once.output)["failed"]
    once.find(rf"^dead letters: failed {failed}, run again {failed}, dead now 0$")
    assert ask(once.store, "dead", "list")["jobs"] == []
    lines = ask(once.store, "audit", "--kind", "pool_rerun")["lines"]
    assert [line["by"] for line in lines] == ["operator"] * failed
    again = [job for job in jobs_in(once.store) if job["submitted_by"] == "operator"]
    assert [job["status"] for job in again] == ["completed"] * failed


def test_the_watchdog_names_the_job_that_blocks_an_event_loop(
    once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, session = planned(monkeypatch, "BLOCKS")
    blocks = [
        line for line in once.headlines() if line.startswith(f"{tenant} {session} blocks the event")
    ]
    assert blocks, once.headlines()
    assert re.search(r"loop, \d\.\d\d s by now: _read_page, agents\.py line \d+$", blocks[0])
    once.find(rf"^event loop blocked: [1-9]\d*, the last time by {session}$")


def test_a_job_whose_child_process_is_killed_is_retried_and_completes(
    once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, session = planned(monkeypatch, "KILLED")
    once.find(rf"\* {tenant} {session}: its process \d+ was killed by SIGKILL$")
    once.find(rf"\* {tenant} {session} completed at attempt \d$")
    crashed = [job for job in jobs_in(once.store) if job["crashes"] and job["session"] == session]
    assert ("stage.agents.rank", "completed") in [(job["name"], job["status"]) for job in crashed]


def test_every_line_in_a_pipe_reports_the_progress(once: Once) -> None:
    first, *lines = [line for line in once.output.splitlines() if " turns, " in line]
    assert "0/0 turns" in first
    assert lines
    assert all(HOW.search(line) for line in lines)


def test_the_commands_the_demo_suggests_work_on_its_file(once: Once) -> None:
    named = re.findall(r"^  (\S*poolhand .+)$", once.output, re.MULTILINE)
    assert len(named) == 3
    for command in named:
        done = run(*shlex.split(command))
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done
        assert done.stdout


@IN_FULL
def test_a_pool_is_paused_and_resumed_by_another_process(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/agents.db"
    with started("--once", *QUICK, "--store", store) as demo:
        read_until(demo.stdout, r"[1-9]\d* running")
        ask(store, "pools", "pause", "demo")
        read_until(demo.stdout, r" scheduled \(PAUSED\); ")
        ask(store, "pools", "resume", "demo")
        output, errors = demo.communicate(timeout=SECONDS)
    assert (demo.returncode, errors) == (0, "")
    balance(output)


def test_ctrl_c_drains_and_another_run_continues_with_the_waiting_jobs(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/agents.db"
    with started("--slots", "2", "--speed", "2", "--seconds", "2", "--store", store) as demo:
        read_until(demo.stdout, r" [1-9]\d* queued")
        demo.send_signal(signal.SIGINT)
        output, errors = demo.communicate(timeout=SECONDS)
    assert (demo.returncode, errors) == (0, "")
    assert "draining: " in output
    assert "what waits stays in the file" in output
    waiting = balance(output)["waiting"]
    assert waiting > 0
    kept = [job for job in jobs_in(store) if Status(job["status"]).waiting]
    assert len(kept) == waiting
    again = output.partition("To go on with them:\n")[2].splitlines()[0]
    done = run(*shlex.split(again), "--once", *FEW)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"of an earlier run: found {waiting}, ended {waiting}" in done.stdout
    assert balance(done.stdout)["waiting"] == 0


@IN_FULL
def test_a_second_ctrl_c_stops_now(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/agents.db"
    with started("--slots", "2", "--speed", "0.1", "--seconds", "1", "--store", store) as demo:
        read_until(demo.stdout, r" [1-9]\d* queued")
        demo.send_signal(signal.SIGINT)
        read_until(demo.stdout, "draining: .* Ctrl-C again stops now")
        demo.send_signal(signal.SIGINT)
        output, errors = demo.communicate(timeout=SECONDS)
    assert (demo.returncode, errors) == (130, "")
    assert balance(output)["waiting"] > 0
    assert not [job for job in jobs_in(store) if job["attempts"] and job["crashes"]]


@IN_FULL
@pytest.mark.timeout(200)
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs the pidfd of Linux")
def test_jobs_accepted_by_a_killed_demo_are_run_by_the_next(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/agents.db"
    with started("--slots", "2", "--speed", "2", "--seconds", "40", "--store", store) as demo:
        second = int(read_until(demo.stdout, "worker 2, ").partition("pid ")[2].partition(",")[0])
        gone = os.pidfd_open(second)
        read_until(demo.stdout, r" [1-9]\d* queued")
        demo.kill()
    # The second process ends by itself when the demo is gone.
    assert select.select([gone], [], [], SECONDS)[0]
    os.close(gone)
    before = jobs_in(store)
    assert not all(Status(job["status"]).terminal for job in before)
    done = run(*DEMO, "--once", *FEW, "--store", store, limit=3 * SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    balance(done.stdout)
    found = re.search(r"^of an earlier run: found (\d+), ended (\d+)$", done.stdout, re.MULTILINE)
    assert found is not None
    assert found[1] == found[2]
    after = {job["id"]: Status(job["status"]) for job in jobs_in(store)}
    assert all(after[job["id"]].terminal for job in before)


def marked(mark: str) -> set[str]:
    """Return the live processes that were started with this variable, and their children."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.add(path.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs the /proc of Linux")
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    mark = f"demo-{uuid4()}"
    store = f"sqlite:///{tmp_path}/agents.db"
    with started(*QUICK, "--store", store, MARK=mark) as demo:
        read_until(demo.stdout, "completed at attempt 2")
        assert len(marked(mark)) > 2  # itself, its resource tracker, and a process slot
        demo.send_signal(signal.SIGINT)
        output, errors = demo.communicate(timeout=SECONDS)
    assert (demo.returncode, errors) == (0, "")
    balance(output)
    assert marked(mark) == set()


def test_a_closed_pipe_ends_the_demo_quietly(tmp_path: Path) -> None:
    with started(*QUICK, "--store", f"sqlite:///{tmp_path}/agents.db") as demo:
        read_until(demo.stdout, "is killed by SIGKILL")
        assert demo.stdout is not None
        demo.stdout.close()
        assert demo.stderr is not None
        # Its children have the pipe, too: it ends when the last of them is gone.
        assert demo.stderr.read() == ""
        assert demo.wait(SECONDS) == -signal.SIGPIPE


@IN_FULL
def test_without_a_store_it_makes_a_file_in_a_temporary_folder(tmp_path: Path) -> None:
    with started("--slots", "2", TMPDIR=str(tmp_path)) as demo:
        line = read_until(demo.stdout, "Jobs are kept in ")
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=SECONDS)
    assert (demo.returncode, errors) == (0, "")
    file = Path(line.removeprefix("Jobs are kept in ").strip())
    assert file.is_relative_to(tmp_path)
    assert file.exists()


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (["--slots", "1"], "--slots: '1' is not allowed; give a whole number from 2 to 256"),
        (["--speed", "nan"], "--speed: 'nan' is not allowed; give a number from 0.1 to 50"),
        (["--tenants", "1"], "--tenants: '1' is not allowed; give a whole number from 2 to 12"),
        (["--sessions", "many"], "--sessions: 'many' is not allowed; give a whole number"),
        (["--seconds", "-3"], "--seconds: '-3' is not allowed; give a number from 1 to 3,600"),
        (["--seed", "1.5"], "--seed: '1.5' is not allowed; give a whole number from 0"),
        (["--store", "memory://"], "--store: 'memory://' is not allowed; give sqlite:///file.db"),
        (["--store", "sqlite:///"], "--store: 'sqlite:///' is not allowed; give sqlite:///file.db"),
        (["--forever"], "unrecognized arguments: --forever"),
    ],
)
def test_an_invalid_flag_is_refused_with_the_allowed_values(flags: list[str], hint: str) -> None:
    done = played(DEMO[1], *flags)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_store_that_cannot_be_opened_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "agents.db").write_text("no database, " * 1_000)
    done = played(DEMO[1], "--once", "--store", f"sqlite:///{tmp_path}/agents.db")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("demo.py: ")
    assert "agents.db" in line


def test_without_rich_the_error_names_the_package_to_install() -> None:
    code = (
        "import runpy, sys; sys.modules['rich'] = None; sys.argv = ['demo.py']; "
        f"sys.path.insert(0, {str(EXAMPLES)!r}); "
        f"runpy.run_path({DEMO[1]!r}, run_name='__main__')"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "needs rich" in line
    assert "pip install poolhand" in line


def in_a_terminal(*flags: str, columns: int, rows: int) -> tuple[int, str]:
    """Run the demo in a terminal of this size; return its exit code and its output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = environment(TERM="xterm-256color")
    command = [*DEMO, *flags]
    written = b""
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as demo:
        os.close(theirs)
        try:
            while chunk := _read(ours):
                written += chunk
        except BaseException:
            demo.kill()
            raise
        finally:
            os.close(ours)
    return demo.returncode, written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:
        # Linux's error when the other side has closed.
        return b""


def frames(written: str) -> list[list[str]]:
    """Return the frames of the live view, as lines of plain text."""
    painted = written.partition("\x1b[?1049h")[2].partition("\x1b[?1049l")[0]
    pictures = [STEERING.sub("", frame) for frame in painted.split("\x1b[H")]
    return [frame.split("\r\n") for frame in pictures if frame.strip()]


@IN_FULL
@pytest.mark.parametrize(("columns", "rows"), [(COLUMNS, ROWS), (20, 4)])
def test_the_live_view_fits_its_terminal(tmp_path: Path, columns: int, rows: int) -> None:
    store = f"sqlite:///{tmp_path}/agents.db"
    code, written = in_a_terminal("--once", *QUICK, "--store", store, columns=columns, rows=rows)
    assert code == 0, written[-2_000:]
    balance(written.replace("\r\n", "\n"))
    assert "Traceback" not in written
    assert "Error" not in written
    pictures = frames(written)
    assert len(pictures) > 3
    for picture in pictures:
        assert len(picture) <= rows
        assert max(map(len, picture)) <= columns


def test_the_live_view_shows_tenants_processes_deaths_and_events(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/agents.db"
    flags = ("--once", *QUICK, "--store", store)
    _, written = in_a_terminal(*flags, columns=150, rows=ROWS)
    pictures = ["\n".join(picture) for picture in frames(written)]
    always = ("initech", "umbrella", "wait p50", "running", "worker 1, pid", "pools pause demo")
    for text in (*always, f"export POOLHAND_STORE={store}", str(tmp_path / "agents.db")):
        assert any(text in picture for picture in pictures), text
    died = next(n for n, picture in enumerate(pictures) if re.search(r"─ killed ─", picture))
    # Not the headline: it may have scrolled away between two frames.
    taken_back = re.compile(r"[1-9]\d* jobs? recovered")
    # One job kills its own process, perhaps before; only frames after it count.
    assert any(taken_back.search(picture) for picture in pictures[died:])
    assert "worker 3, pid" in pictures[-1]


def stage(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[Any]:
    """Import the modules of the demo, found where its script finds them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return [import_module(f"stage.{name}") for name in names]


class World:
    """The state of a run in which nothing has happened yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **flags: Any) -> None:
        names = ("crew", "flags", "ledger", "news", "plan", "process", "screen", "state")
        crew, of_flags, ledgers, news, self.plan, processes, self.screens, states = stage(
            monkeypatch, *names
        )
        self.flags = of_flags.Flags(store="sqlite:///agents.db", **flags)
        self.newsroom = news.Newsroom()
        self.ledger = ledgers.Ledger(["initech"], self.newsroom, "mark")
        self.here = processes.Process("worker 1", 1984, self.flags.own_slots)
        self.crew = crew.Crew(self.flags, self.newsroom, self.hear)
        self.state = states.State(self.flags, self.newsroom, self.ledger, self.here, self.crew)

    def hear(self, event: Any) -> None:
        self.here.hear(event)
        self.newsroom.hear(event)

    def read(self, id: str, kind: str, **record: Any) -> None:
        """Let the ledger read a line of the audit log."""
        by = record.get("submitted_by")
        self.ledger.take(AuditView(0, NOON, f"pool_{kind}", "demo", id, by, "", record))

    def submit(self, id: str, key: str | None = "mark/s1/1", by: str = "user") -> None:
        self.read(id, "submit", key="initech", idempotency_key=key, submitted_by=by)

    def start(self, id: str, attempt: int = 1) -> None:
        self.read(id, "dequeue", attempt=attempt, queued_for_ms=250)

    def end(self, id: str, status: str = "completed") -> None:
        self.read(id, "outcome", status=status, error=None)

    def paint(self) -> str:
        """Render one frame of the live view as text: control characters would be visible."""
        paper = Console(file=StringIO(), width=160, height=45, color_system=None)
        with paper.capture() as capture:
            paper.print(self.screens.Screen(self.state, paper).compose(160, 45))
        assert capture.get().replace("\n", "").isprintable()
        return capture.get()


def a_job(**more: Any) -> Job:
    facts = {"id": "1", "pool": "demo", "pool_id": "p", "status": Status.RUNNING}
    return Job(submitted_at=NOON, key="initech", session="s1", **{**facts, **more})


def test_headlines_stay_visible_while_other_events_scroll(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    newsroom = world.newsroom
    newsroom.headline("", "worker 2 is killed")
    for number in range(20):
        newsroom.tell("initech", f"s{number} sent twice")
    for count, others in ((1, []), (2, ["s19"]), (3, ["s18", "s19"])):
        first, *rest = newsroom.latest(count)
        assert first.text == "worker 2 is killed"
        assert [news.text.split()[0] for news in rest] == others
    newsroom.began -= 60
    assert [news.text.split()[0] for news in newsroom.latest(2)] == ["s18", "s19"]


def test_job_text_is_shown_without_markup_or_control_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hostile = "[/] [bold]x \x1b[2J\r\n\x07 [link=http://x]"
    spelled = r"[/] [bold]x \x1b[2J\r\n\x07 [link=http://x]"
    world = World(monkeypatch, slots=2)
    world.ledger.begin_session(
        world.plan.Session("s1", "initech", "user-01", hostile, 0.0, burst=False)
    )
    world.hear(JobStarted("demo", a_job(), "worker-000"))
    assert re.search(rf"● \d+ ms {re.escape(spelled)}", world.paint())
    assert "○ idle" not in world.paint()
    failed = a_job(status=Status.FAILED, error=Fault("ValueError", hostile))
    world.hear(JobEnded("demo", failed))
    assert f"initech s1 is dead: {spelled}" in world.paint()
    assert "○ idle" in world.paint()


def test_statistics_come_from_the_log_and_include_jobs_of_dead_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    ledger, figures = world.ledger, world.ledger.tenants["initech"]
    world.submit("1")
    world.start("1")
    assert (figures.turns, figures.waiting, figures.running) == (1, 0, 1)
    for _ in range(2):  # an orderly stop later on keeps the error of the crash
        world.read("1", "retry", status="queued", error="poolhand.errors.JobLost")
        world.start("1", attempt=2)
    assert (ledger.recovered, ledger.recovered_over, figures.retried) == (1, 0, 2)
    world.end("1")
    assert (ledger.recovered, ledger.recovered_over) == (1, 1)
    assert (figures.waiting, figures.running, figures.done) == (0, 0, 1)
    assert list(figures.waits) == [0.25]
    assert ledger.ended == Counter({Status.COMPLETED: 1})
    world.submit("2", by="operator")
    world.submit("3", key="of another run")
    for id in ("2", "3"):
        world.start(id)
        world.end(id)
    assert ledger.reruns == Counter({Status.COMPLETED: 1})
    assert (ledger.submitted, ledger.ended.total(), ledger.done) == (1, 1, 3)


def test_a_lost_job_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    kept, summary, traffics = stage(monkeypatch, "kept", "summary", "traffic")
    traffic = traffics.Traffic(kept.Kept(world.flags), world.ledger, world.flags, "mark")
    report = WorkerReport(0, 0, 0, 0, 0.0)

    def conserved(left: int = 0) -> bool:
        fine: bool = summary.conserved(
            summary.Books(traffic, world.ledger, [], report, left, dead=0)
        )
        return fine

    for id in ("1", "2", "3"):
        world.submit(id)
        world.start(id)
    traffic.accepted = 3
    assert not conserved(left=3)
    traffic.left = 3
    assert conserved(left=3)
    assert not conserved(left=2)
    for id, status in (("1", "completed"), ("2", "completed"), ("3", "failed")):
        world.end(id, status)
    traffic.left = 0
    traffic.heard.update([Status.COMPLETED, Status.COMPLETED, Status.FAILED])
    assert conserved()
    traffic.heard[Status.FAILED] -= 1
    assert not conserved()
    traffic.heard[Status.COMPLETED] += 1
    assert not conserved()


def test_an_interrupted_submit_may_or_may_not_be_in_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    kept, summary, traffics = stage(monkeypatch, "kept", "summary", "traffic")
    traffic = traffics.Traffic(kept.Kept(world.flags), world.ledger, world.flags, "mark")
    report = WorkerReport(0, 0, 0, 0, 0.0)

    def conserved(left: int) -> bool:
        fine: bool = summary.conserved(
            summary.Books(traffic, world.ledger, [], report, left, dead=0)
        )
        return fine

    traffic.unknown = 1
    assert conserved(left=0)
    world.submit("1")
    assert conserved(left=1)
    world.start("1")
    world.end("1")
    assert conserved(left=0)
    traffic.unknown = 0
    assert not conserved(left=0)
