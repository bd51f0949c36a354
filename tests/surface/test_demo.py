"""The demo runs as its users run it: in a terminal, in a pipe, interrupted, and called wrongly."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import pytest
from rich.console import Console

from poolhand import DrainReport, Pool, Status, wait
from poolhand.observe.events import Events, PoolResized

EXAMPLES = Path(__file__).parents[2] / "examples"
DEMO = [sys.executable, str(EXAMPLES / "demo.py")]
QUICK = ["--sessions", "40", "--seconds", "8", "--speed", "12"]
CROWDED = [*QUICK, "--slots", "4"]
RESIZE = re.compile(r"(\d+) → (\d+) slots: (?:utilisation|queue fill) \d\.\d\d")
HEALTH = re.compile(r"\d+ slots \d+% busy, \d+ stale")
SECONDS = 50
COLUMNS, ROWS = 80, 24
STEERING = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

pytestmark = pytest.mark.slow


def environment(**more: str) -> dict[str, str]:
    """The variables of this process without those that tell programs how to paint."""
    painting = {"COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TERM"}
    kept = {name: value for name, value in os.environ.items() if name not in painting}
    return {**kept, "PYTHONWARNINGS": "default", **more}


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [*DEMO, *flags]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment()
    )


@contextmanager
def started(*flags: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The demo while it runs, its output in a pipe; ended in any case."""
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


def balance(output: str) -> dict[str, int]:
    """The figures of the line that accounts for every job."""
    (line,) = [line for line in output.splitlines() if line.startswith("accepted ")]
    figures = {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", line)}
    assert set(figures) == {
        "accepted",
        "completed",
        "failed",
        "cancelled",
        "rejected",
        "expired",
        "lost",
    }
    return figures


def expect_balanced(output: str) -> dict[str, int]:
    figures = balance(output)
    ends = ("completed", "failed", "cancelled", "rejected", "expired")
    assert figures["accepted"] == sum(figures[end] for end in ends)
    assert figures["lost"] == 0
    return figures


def test_one_round_ends_by_itself_and_accounts_for_every_job() -> None:
    done = run("--once", *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = done.stdout.splitlines()
    assert "40 sessions of 5 tenants in one fair pool of 12 slots" in first
    assert "README.md" in last
    assert re.search(r"\d+/\d+ turns, \d+/s, ETA ", done.stdout)
    figures = expect_balanced(done.stdout)
    assert figures["completed"] > 0
    assert figures["failed"] > 0
    assert figures["cancelled"] > 0
    (total,) = [line.split() for line in done.stdout.splitlines() if line.startswith("all ")]
    assert [int(word) for word in total[1:8]] == [
        40,
        figures["accepted"],
        figures["completed"],
        int(total[4]),
        figures["failed"],
        figures["rejected"],
        figures["cancelled"],
    ]
    assert int(total[4]) > 0
    assert "drained in" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.fixture(scope="module")
def crowded() -> str:
    """What one round in a pool that is too small for it writes into a pipe."""
    done = run("--once", *CROWDED)
    assert (done.returncode, done.stderr) == (0, "")
    assert expect_balanced(done.stdout)["lost"] == 0
    return done.stdout


def headlines(output: str) -> list[str]:
    """What is told beside the line of every second."""
    return re.findall(r"^ *[\d.]+ s  \* (.+)$", output, re.MULTILINE)


def planned(monkeypatch: pytest.MonkeyPatch, habit: str) -> str:
    """Tenant and session of the one turn that has this habit."""
    flags, plan = stage(monkeypatch, "flags", "plan")
    sessions = plan.make_round(flags.parse(["--once", *CROWDED]), 1)
    (found,) = [one for one in sessions for turn in one.turns if turn.habit is plan.Habit[habit]]
    return f"{found.tenant} {found.id}"


def test_a_pool_under_load_grows_and_then_shrinks_again_and_says_why(crowded: str) -> None:
    changes = [match for line in headlines(crowded) if (match := RESIZE.fullmatch(line))]
    sizes = [(int(change[1]), int(change[2])) for change in changes]
    (before, _), *_, (_, after) = sizes
    assert before == after == 4
    assert all(one[1] == other[0] for one, other in pairwise(sizes))
    assert all(4 <= size <= 8 for change in sizes for size in change)
    up = sum(one < other for one, other in sizes)
    most = max(map(max, sizes))
    assert f"changes of size: {up} up, to {most} slots, {len(sizes) - up} down" in crowded


def test_the_watchdog_names_the_job_that_blocks_the_event_loop(
    crowded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = planned(monkeypatch, "BLOCKS")
    blocks = [line for line in headlines(crowded) if line.startswith(f"{who} blocks the event")]
    assert blocks, headlines(crowded)
    assert re.search(r"loop, \d\.\d\d s by now: _read_page, agents\.py line \d+$", blocks[0])
    assert re.search(r"^event loop blocked: [1-9]", crowded, re.MULTILINE)


def test_the_job_of_a_killed_process_runs_again_and_completes(
    crowded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = planned(monkeypatch, "KILLED")
    told = [line for line in headlines(crowded) if line.startswith(who)]
    killed, again, completed = (line for line in told if "blocks the event loop" not in line)
    assert re.fullmatch(rf"{who}: its process \d+ was killed by SIGKILL", killed)
    assert again == f"{who} runs again, in another process"
    assert completed == f"{who} completed at attempt 2"
    assert "processes killed: 1, their jobs completed: 1" in crowded


def test_every_line_of_a_pipe_says_how_the_pool_is(crowded: str) -> None:
    lines = [line for line in crowded.splitlines() if " turns, " in line]
    assert lines
    assert all(HEALTH.search(line) for line in lines)


def test_ctrl_c_drains_and_ends_well() -> None:
    with started("--sessions", "40", "--seconds", "8", "--speed", "4") as demo:
        read_until(demo.stdout, r"round \d+, [1-9]\d*/")
        demo.send_signal(signal.SIGINT)
        output, errors = demo.communicate(timeout=SECONDS)
    assert (demo.returncode, errors) == (0, "")
    assert "draining: " in output
    assert expect_balanced(output)["rejected"] == 0


def test_ctrl_c_does_not_wait_for_a_grown_pool_to_shrink() -> None:
    # At this speed an idle pool would be given a minute for that.
    with started("--slots", "1", "--speed", "0.5", "--seconds", "2") as demo:
        read_until(demo.stdout, "1 → 2 slots: ")
        demo.send_signal(signal.SIGINT)
        output, errors = demo.communicate(timeout=SECONDS)
    assert (demo.returncode, errors) == (0, "")
    expect_balanced(output)


def test_a_second_ctrl_c_stops_now() -> None:
    with started("--slots", "1", "--speed", "0.2", "--seconds", "2") as demo:
        read_until(demo.stdout, r" [1-9]\d* queued")
        demo.send_signal(signal.SIGINT)
        read_until(demo.stdout, "draining: .* Ctrl-C again stops now")
        demo.send_signal(signal.SIGINT)
        output, errors = demo.communicate(timeout=SECONDS)
    assert (demo.returncode, errors) == (130, "")
    assert expect_balanced(output)["rejected"] > 0


def marked(mark: str) -> set[str]:
    """The living processes that were started with this variable, or by one that was."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.add(path.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs the /proc of Linux")
def test_ctrl_c_leaves_no_process_behind() -> None:
    mark = f"demo-{uuid4()}"
    with started("--sessions", "40", "--seconds", "60", "--speed", "8", MARK=mark) as demo:
        read_until(demo.stdout, "completed at attempt 2")
        assert len(marked(mark)) > 2  # itself, who tracks its resources, and a process slot
        demo.send_signal(signal.SIGINT)
        output, errors = demo.communicate(timeout=SECONDS)
    assert (demo.returncode, errors) == (0, "")
    expect_balanced(output)
    assert marked(mark) == set()


def test_it_ends_quietly_when_nobody_reads_any_more() -> None:
    with started(*QUICK) as demo:
        read_until(demo.stdout, "runs again, in another process")
        assert demo.stdout is not None
        demo.stdout.close()
        assert demo.stderr is not None
        # Its processes have it, too: it is at its end when the last of them is gone.
        assert demo.stderr.read() == ""
        assert demo.wait(SECONDS) == -signal.SIGPIPE


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (["--slots", "0"], "--slots: '0' is not allowed; give a whole number from 1 to 256"),
        (["--speed", "nan"], "--speed: 'nan' is not allowed; give a number from 0.1 to 50"),
        (["--tenants", "1"], "--tenants: '1' is not allowed; give a whole number from 2 to 12"),
        (["--sessions", "many"], "--sessions: 'many' is not allowed; give a whole number"),
        (["--seconds", "-3"], "--seconds: '-3' is not allowed; give a number from 1 to 3,600"),
        (["--seed", "1.5"], "--seed: '1.5' is not allowed; give a whole number from 0"),
        (["--forever"], "unrecognized arguments: --forever"),
    ],
)
def test_a_bad_flag_is_refused_with_what_is_allowed(flags: list[str], hint: str) -> None:
    done = run(*flags)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_rich_it_says_what_to_install() -> None:
    code = (
        "import runpy, sys; sys.modules['rich'] = None; sys.argv = ['demo.py']; "
        f"sys.path.insert(0, {str(EXAMPLES)!r}); "
        f"runpy.run_path({DEMO[1]!r}, run_name='__main__')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "needs rich" in line
    assert "pip install 'poolhand[demo]'" in line


def in_a_terminal(*flags: str, columns: int, rows: int) -> tuple[int, str]:
    """Run the demo in a terminal of this size; return its exit code and all it wrote."""
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
        finally:
            os.close(ours)
    return demo.returncode, written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:
        # What Linux says when the other side has closed.
        return b""


def frames(written: str) -> list[list[str]]:
    """The pictures of the live view, as lines of plain text."""
    painted = written.partition("\x1b[?1049h")[2].partition("\x1b[?1049l")[0]
    pictures = [STEERING.sub("", frame) for frame in painted.split("\x1b[H")]
    return [frame.split("\r\n") for frame in pictures if frame.strip()]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (130, 45), (48, 12), (20, 4)])
def test_the_live_view_fits_its_terminal(columns: int, rows: int) -> None:
    code, written = in_a_terminal("--once", *QUICK, columns=columns, rows=rows)
    assert code == 0, written[-2_000:]
    expect_balanced(written.replace("\r\n", "\n"))
    assert "Traceback" not in written
    assert "Error" not in written
    pictures = frames(written)
    assert len(pictures) > 3
    for picture in pictures:
        assert len(picture) <= rows
        assert max(map(len, picture)) <= columns


def test_the_live_view_shows_tenants_pool_slots_and_news() -> None:
    _, written = in_a_terminal("--once", *QUICK, columns=COLUMNS, rows=ROWS)
    # A pool that has shrunk may have kept another slot than the twelfth.
    picture = "\n".join(frames(written)[0])
    for text in ("initech", "umbrella", "wait p50", "active", "worker-000", "worker-011", "news"):
        assert text in picture


def test_the_live_view_shows_how_the_pool_is_and_why_its_size_changed() -> None:
    _, written = in_a_terminal("--once", *CROWDED, columns=COLUMNS, rows=ROWS)
    lines = [picture[2] for picture in frames(written)]
    assert all(HEALTH.match(line) for line in lines)
    assert any(RESIZE.search(line) for line in lines)


def test_headlines_stay_in_view_while_other_news_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers, plan = stage(monkeypatch, "ledger", "plan")
    ledger = ledgers.Ledger(["initech"])
    ledger.hear(PoolResized("demo", 4, 5, "utilisation 1.00"))
    for number in range(20):
        session = plan.Session(f"s{number}", "initech", "user-01", "", 0.0, False)
        ledger.note_double(session)
    for count, others in ((1, []), (2, ["s19"]), (3, ["s18", "s19"])):
        first, *rest = ledger.latest(count)
        assert first.text == "4 → 5 slots: utilisation 1.00"
        assert [news.text.split()[0] for news in rest] == others
    ledger.began -= 60
    assert [news.text.split()[0] for news in ledger.latest(2)] == ["s18", "s19"]


async def test_text_of_jobs_is_neither_markup_nor_a_command_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags, ledgers, plan, screen, state = stage(
        monkeypatch, "flags", "ledger", "plan", "screen", "state"
    )
    hostile = "[/] [bold]x \x1b[2J\r\n\x07 [link=http://x]"
    spelled = r"[/] [bold]x \x1b[2J\r\n\x07 [link=http://x]"
    events, ledger = Events(), ledgers.Ledger(["initech"])
    events.subscribe(ledger.hear)
    ledger.begin_session(plan.Session("s1", "initech", "user-01", hostile, 0.0, False))
    running, end = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        running.set()
        await end.wait()
        raise ValueError(hostile)

    async with Pool("hostile", events=events) as pool:
        ticket = await pool.with_options(key="initech", session="s1").submit(fail)
        await running.wait()
        shown = paint(screen.Screen(state.State(pool, ledger, flags.Flags()), Console()))
        assert f"worker-000 ● {spelled}" in shown
        end.set()
        await wait(ticket)
        shown = paint(screen.Screen(state.State(pool, ledger, flags.Flags()), Console()))
        assert f"initech s1 failed: {spelled} ({spelled})" in shown


def stage(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[Any]:
    """The modules of the demo, found where its script finds them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return [import_module(f"stage.{name}") for name in names]


def paint(screen: Any) -> str:
    """One picture of the live view on paper: whatever steers a terminal would show."""
    paper = Console(file=StringIO(), width=160, height=45, color_system=None)
    with paper.capture() as capture:
        paper.print(screen.compose(160, 45))
    assert capture.get().replace("\n", "").isprintable()
    return capture.get()


def report(**ends: int) -> DrainReport:
    zero = {"completed": 0, "failed": 0, "cancelled": 0, "rejected": 0, "expired": 0}
    ends = {**zero, **ends}
    return DrainReport(submitted=sum(ends.values()), stuck=0, seconds=0.0, **ends)


def test_a_lost_job_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    flags, ledgers, summary, traffics = stage(monkeypatch, "flags", "ledger", "summary", "traffic")
    ledger = ledgers.Ledger(["initech"])
    traffic = traffics.Traffic(None, ledger, flags.Flags())
    traffic.accepted = 3
    traffic.heard.update([Status.COMPLETED, Status.COMPLETED, Status.FAILED])
    ledger.tenants["initech"].ended.update(traffic.heard)
    assert summary.conserved(report(completed=2, failed=1), traffic, ledger)
    assert not summary.conserved(report(completed=2), traffic, ledger)
    assert not summary.conserved(report(completed=1, failed=2), traffic, ledger)
    traffic.heard[Status.FAILED] -= 1
    assert not summary.conserved(report(completed=2, failed=1), traffic, ledger)
