"""The processes of a run, as the harness sees them: started, killed, stopped, continued.

Every fault is recorded with its moment, for the checker. Waits use the kernel and the files
outside, with a limit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self

from tests import warm
from tests.faults import outside
from tests.faults.ground import Ground
from tests.faults.load import Plan
from tests.faults.marks import Marks

REPOSITORY = Path(__file__).parents[2]
LIMIT = 60.0  # seconds after which a wait gives up
PAUSE = 0.002
AT_ONCE = 0.0002
RUN = ("-c", "from tests.faults.runner import run; run()")
STRAY_SECONDS = 10.0


class RunFailed(Exception):
    """The run did not reach a state in which it can be judged."""


def until(what: str, holds: Callable[[], Any], limit: float = LIMIT, pause: float = PAUSE) -> None:
    """Wait until the condition holds, or raise."""
    rest, deadline = Event(), time.monotonic() + limit
    while not holds():
        if time.monotonic() > deadline:
            raise RunFailed(f"waited {limit:g} s in vain until {what}")
        rest.wait(pause)


def pass_time(since: float, seconds: float) -> None:
    """Wait until so many seconds are over."""
    Event().wait(max(0.0, since + seconds - time.monotonic()))


def export(folder: Path) -> None:
    """Have another process export the store of a run."""
    environment = {**os.environ, "PYTHONPATH": import_path()}
    words = ["-m", "tests.faults.export", str(folder)]
    warm.run(words, env=environment, timeout=2 * LIMIT).check_returncode()


def import_path() -> str:
    """Return an environment in which processes find the same modules."""
    return os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))


def begin(ground: Ground, plan: Plan) -> Crew:
    """Write a plan and return a crew to carry it out."""
    plan.save(ground.folder / outside.PLAN)
    return Crew(ground)


class Life:
    """One process under test, from its start to its end."""

    def __init__(self, crew: Crew, name: str, url: str, command: list[str]) -> None:
        self.name = name
        self._crew = crew
        self.log = crew.folder / f"log-{name}.txt"
        self.marks = Marks(crew.folder / f"marks-{name}")
        self._seen_off = False  # whether it is known how it ended
        about = {"FAULTS_LIFE": name, "FAULTS_URL": url}
        environment = {**os.environ, **crew.environment, **about}
        crew.blows.write("started", life=name)
        with self.log.open("wb") as log:
            self._process = warm.start(
                command,
                env=environment,
                stdout=log,
                stderr=log,
                # A session of its own: when a shell ends, its stopped processes are continued.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> frozenset[str]:
        """Kill it; return the phases it was in."""
        at = time.monotonic()
        self._process.kill()
        code = self._process.wait(LIMIT)
        gone = time.monotonic()
        self._seen_off = True
        phases = self.marks.now()
        if code != -signal.SIGKILL:
            self._note_end()
            raise RunFailed(f"{self.name} ended by itself with {code}: {self._said()}")
        self._crew.blows.write("kill", at=at, gone=gone, life=self.name, phases=sorted(phases))
        return phases

    def stop(self) -> frozenset[str]:
        """Stop it for long; return the phases it is in."""
        at = time.monotonic()
        phases = self.hold()
        self._crew.blows.write("stop", at=at, life=self.name, phases=sorted(phases))
        return phases

    def go_on(self) -> None:
        self._crew.blows.write("cont", life=self.name)
        self.let_go()

    def hold(self) -> frozenset[str]:
        """Stop it for a short moment, to read the phases it is in."""
        self._process.send_signal(signal.SIGSTOP)
        until(f"{self.name} stands still", lambda: self._state() in "TZ", pause=AT_ONCE)
        return self.marks.now()

    def let_go(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self, limit: float = LIMIT) -> float:
        """Ask it to drain; return the seconds that took."""
        at = time.monotonic()
        self._crew.blows.write("term", life=self.name)
        self._process.terminate()
        self.wait(limit)
        return time.monotonic() - at

    def wait(self, limit: float = LIMIT) -> int:
        """Wait for its end, record it unless all is well, and return its exit code."""
        try:
            code = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{self.name} has not come to an end in {limit:g} s") from None
        if code and not self._seen_off:
            self._note_end()
        self._seen_off = True
        return code

    def _note_end(self) -> None:
        """Record that it ended without a fault of the harness."""
        code = self._process.returncode
        self._crew.blows.write("died", life=self.name, code=code, said=self._said())

    def _said(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def _state(self) -> str:
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]


class Crew:
    """All processes of one run; leaving the block ends them all."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.folder = folder = ground.folder
        self.blows = outside.Lines(folder / outside.BLOWS)
        self.environment = {
            "FAULTS_FOLDER": str(folder),
            "FAULTS_HARNESS": str(warm.parent()),
            "PYTHONPATH": import_path(),
        }
        self.lives: list[Life] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for life in self.lives:
            if life.alive:
                with suppress(RunFailed):
                    life.kill()
            life.marks.close()
        for pid in self._strays():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.blows.close()

    def start(self, name: str = "runner", url: str = "", **role: Any) -> Life:
        """Start a process under test; its role is that of the runner, the URL its store."""
        # Not as a module: each of its children would import that again.
        life = Life(self, self.next_name(name), url or self.ground.url, [*RUN, json.dumps(role)])
        self.lives.append(life)
        return life

    def next_name(self, name: str) -> str:
        """Return the name of the next life of a process."""
        return f"{name}-{sum(life.name.startswith(f'{name}-') for life in self.lives)}"

    def finish(self, limit: float = 2 * LIMIT) -> None:
        """Let the processes finish the remaining work, end them, and export the store."""
        self.allow_end()
        for life in self.lives:
            # Also those that are gone: how they ended may not have been recorded.
            life.wait(limit)
        try:
            until("all processes are gone", lambda: not self._strays(), STRAY_SECONDS, 0.1)
        except RunFailed:
            self.blows.write("stray", pids=self._strays())
        export(self.folder)

    def allow_end(self) -> None:
        """Let processes end when no work is left."""
        (self.folder / "finish").touch()

    def open_gate(self, life: str) -> None:
        """Release the jobs of a process that wait for its gate."""
        (self.folder / f"gate-{life}").touch()

    def shift_wall(self, seconds: float) -> None:
        """Move the wall clock of all processes and servers to so many seconds from the true one."""
        new = self.folder / "wall.new"
        new.write_text(str(seconds))
        new.replace(self.folder / "wall")
        self.ground.move_clock(seconds)
        self.blows.write("wall", shift=seconds)

    def _strays(self) -> list[int]:
        """Return the live processes of this run, and their children."""
        mark = f"FAULTS_FOLDER={self.folder}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue
        return found
