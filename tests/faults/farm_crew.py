"""A farm under test, as the harness sees it: a supervisor, and workers that it did not start."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from tests.faults.crew import AT_ONCE, LIMIT, Crew, Life, RunFailed, pass_time, until
from tests.faults.marks import Marks

WORKERS, SLOTS = 2, 10
MEANT_ONCE = 0.2  # seconds after which a second signal counts as another one
APP = "tests.faults.farm_app:app"
ENTRY = b"poolhand.worker_process"
STARTED = re.compile(r"process started worker=(\S+) pid=(\d+)")
READY = re.compile(r"process ready worker=(\S+)")
MOMENT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) [A-Z]+ (.*)")


class FarmWorker:
    """A worker process of a farm; its life bears the name of the farm and its process."""

    def __init__(self, crew: Crew, farm: str, pid: int) -> None:
        self.name = f"{farm}.{pid}"
        self.pid = pid
        self.marks = Marks(crew.folder / f"marks-{self.name}")
        self._crew = crew
        self._handle = os.pidfd_open(pid)

    @property
    def alive(self) -> bool:
        return not self._is_gone(0.0)

    def kill(self) -> frozenset[str]:
        """Kill it; return the phases it was in."""
        at = time.monotonic()
        self._send(signal.SIGKILL)
        gone = self.until_gone()
        phases = self.marks.now()
        self._crew.blows.write("kill", at=at, gone=gone, life=self.name, phases=sorted(phases))
        return phases

    def hold(self) -> frozenset[str]:
        """Stop it for a moment, to read the phases it is in."""
        self._send(signal.SIGSTOP)
        until(f"{self.name} stands still", lambda: _stat(self.pid)[0] in "TZ", pause=AT_ONCE)
        return self.marks.now()

    def let_go(self) -> None:
        self._send(signal.SIGCONT)

    def until_gone(self, limit: float = LIMIT) -> float:
        """Wait for its end, and return when that was."""
        if not self._is_gone(limit):
            raise RunFailed(f"{self.name} is still there after {limit:g} s")
        return time.monotonic()

    def close(self) -> None:
        os.close(self._handle)
        self.marks.close()

    def _send(self, number: int) -> None:
        # By its pidfd: its pid may be reused as soon as it is gone.
        signal.pidfd_send_signal(self._handle, number)

    def _is_gone(self, limit: float) -> bool:
        return bool(select.select([self._handle], [], [], limit)[0])


class Farm(Life):
    """A supervisor, started as a user does it, and the workers it has now."""

    def __init__(self, crew: Crew, name: str, options: list[str], app: str = APP) -> None:
        command = ["-m", "poolhand", "work", app, *options]
        super().__init__(crew, crew.next_name(name), crew.ground.url, command)
        self._known: dict[int, FarmWorker] = {}

    def workers(self) -> list[FarmWorker]:
        """Return the live worker processes, oldest first."""
        for pid in _children(self.pid):
            if pid not in self._known:
                with suppress(ProcessLookupError):
                    self._known[pid] = FarmWorker(self._crew, self.name, pid)
        return [one for one in self._known.values() if one.alive]

    def ready(self) -> list[FarmWorker]:
        """Return the workers that claim jobs, as the supervisor reports."""
        said = [text for _, text in self.told()]
        pids = {one[1]: int(one[2]) for text in said if (one := STARTED.search(text))}
        ready = {pids[one[1]] for text in said if (one := READY.search(text))}
        return [one for one in self.workers() if one.pid in ready]

    def until_ready(self, count: int = WORKERS) -> list[FarmWorker]:
        """Wait until so many claim jobs, and return them."""
        until(
            f"{count} workers of {self.name} are ready",
            lambda: len(self.ready()) >= count,
            pause=0.02,
        )
        return self.ready()

    def told(self) -> list[tuple[float, str]]:
        """Return the lines of its log, with their times."""
        since = time.monotonic() - time.time()
        lines = map(MOMENT.match, self.log.read_text(errors="replace").splitlines())
        return [(since + _seconds(line[1]), line[2]) for line in lines if line]

    def until_told(self, words: str) -> None:
        """Wait until its log has such a line."""
        until(f"{self.name} says {words}", lambda: any(words in text for _, text in self.told()))

    def note(self, what: str, **about: Any) -> None:
        """Record a fault of it, or of one of its workers."""
        self._crew.blows.write(what, **about)

    def renew(self) -> None:
        """Have all its workers replaced."""
        self._crew.blows.write("renew", life=self.name)
        self._process.send_signal(signal.SIGHUP)

    def stop_twice(self) -> float:
        """Ask it to end, and ask again; return the seconds from then on."""
        at = time.monotonic()
        self._crew.blows.write("term", life=self.name)
        self._process.terminate()
        self.until_told("farm stopping")
        pass_time(at, MEANT_ONCE)
        return self.terminate()

    def close(self) -> None:
        for worker in self._known.values():
            worker.close()


def start_farm(
    crew: Crew,
    name: str = "farm",
    workers: int = WORKERS,
    slots: int = SLOTS,
    grace: float = 15.0,
    app: str = APP,
) -> Farm:
    """Start a farm with a fixed number of workers."""
    options = {"--min": workers, "--max": workers, "--concurrency": slots, "--grace": grace}
    farm = Farm(crew, name, [str(word) for word in chain.from_iterable(options.items())], app)
    crew.lives.append(farm)
    return farm


def finish(crew: Crew) -> None:
    """Let farms finish the remaining work, stop them, and export the store."""
    crew.allow_end()
    farms = [life for life in crew.lives if isinstance(life, Farm)]
    for life in crew.lives:
        if life not in farms:
            life.wait(2 * LIMIT)
    for farm in farms:
        if farm.alive:
            # A farm that has just begun to start would not notice it.
            farm.until_told("farm started")
            farm.terminate()
    crew.finish()
    for farm in farms:
        farm.close()


def _children(pid: int) -> Iterator[int]:
    """Yield the worker processes of a supervisor."""
    for path in Path("/proc").glob("[0-9]*"):
        child = int(path.name)
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if ENTRY in words and int(_stat(child)[1]) == pid:
                yield child
        except OSError:
            continue


def _stat(pid: int) -> list[str]:
    """Return the kernel's record of a process, from its state and its parent on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _seconds(moment: str) -> float:
    return datetime.strptime(moment, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
