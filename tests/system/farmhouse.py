"""A farm in its own processes, as `poolhand work` runs it, seen from outside.

Tests wait for lines of its log, for its record in the store, or for reports of its jobs.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from poolhand.app import App
from poolhand.contract import Filter
from poolhand.farm.records import FarmRecord
from poolhand.operate.actions import Operator
from poolhand.operate.views import JobView
from poolhand.rules.job import Status
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of
from tests import warm
from tests.conditions import STRANGER
from tests.system import farm_app

T = TypeVar("T")

LIMIT = 40.0  # seconds after which a wait gives up
APP = "tests.system.farm_app:app"
QUICK = {
    # The default: on a busy machine a live thread may not run for a second.
    "HEARTBEAT_INTERVAL_S": "1.0",
    "SCALE_CHECK_INTERVAL_S": "0.1",
    "SCALE_DOWN_COOLDOWN_S": "0.5",
    "SCALE_UP_WAIT_S": "0.5",
    "WORKER_SHUTDOWN_GRACE_S": "60",
}
_LINE = re.compile(r"\S+ (?P<time>\S+) [A-Z]+ (?P<text>[a-z ]+?) (?P<more>\w+=.*)")
_FIELD = re.compile(r"(\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\S+)")


def until(found: Callable[[], T | None], what: str, limit: float = LIMIT) -> T:
    """Repeat a check until it returns something, and return that."""
    pause, ends_at = Event(), time.monotonic() + limit
    while True:
        value = found()
        if value:
            return value
        assert time.monotonic() < ends_at, f"within {limit:g} s there was no {what}"
        pause.wait(0.03)


class Line:
    """A line of a log: its title and its fields."""

    def __init__(self, match: re.Match[str]) -> None:
        self.title: str = match["text"]
        hours, minutes, seconds = match["time"].replace(",", ".").split(":")
        self.at = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        self.fields: dict[str, str] = {
            name: value.strip("'\"") for name, value in _FIELD.findall(match["more"])
        }

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, "")

    def __repr__(self) -> str:
        return f"<{self.title} {self.fields}>"


class Yard:
    """A store, the file that its jobs report to, and farms that run them."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder / 'jobs.db'}"
        self.story = folder / "story"
        self.story.touch()
        self.gate = folder / "gate"

    def farm(self, *words: str, app: str = APP, **settings: object) -> Farm:
        """Start a farm; flags as text, settings by name."""
        log = self.folder / f"log-{len(list(self.folder.glob('log-*')))}"
        made = {name.upper(): str(value) for name, value in settings.items()}
        environment = {
            # As usual, output is buffered: without PYTHONUNBUFFERED.
            **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            **{f"POOLHAND_{name}": value for name, value in {**QUICK, **made}.items()},
            **{name: value for name, value in made.items() if name.startswith("FARM_")},
            "FARM_STORE": self.url,
            "FARM_STORY": str(self.story),
            "FARM_GATE": str(self.gate),
        }
        with log.open("wb") as output:
            process = warm.start(
                ["-m", "poolhand", "work", app, *words],
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Farm(self, process, log)

    @contextmanager
    def running(self, *words: str, **settings: Any) -> Iterator[Farm]:
        """Run a farm inside a block; all its processes end with the block."""
        farm = self.farm(*words, **settings)
        try:
            yield farm
        finally:
            farm.clear()

    def open_gate(self) -> None:
        self.gate.touch()

    # The store

    def do(self, act: Callable[[App, dict[str, Any]], Awaitable[T]]) -> T:
        """Do something with an app of this process."""

        async def main() -> T:
            app = App(self.url)
            tasks = farm_app.add_to(app)
            async with app:
                return await act(app, tasks)

        return asyncio.run(main())

    def submit(self, task: str, *calls: Any, **options: Any) -> list[str]:
        """Submit a task once for each of these arguments; return the ids."""

        async def act(app: App, tasks: dict[str, Any]) -> list[str]:
            chosen = tasks[task].with_options(**options) if options else tasks[task]
            # No arguments: one call of a task without parameters.
            arguments: list[tuple[Any, ...]] = [(call,) for call in calls] or [()]
            tickets = await chosen.submit_many(arguments)
            return [ticket.id for ticket in tickets]

        return self.do(act)

    def ask(self, question: Callable[[Operator], Awaitable[T]]) -> T:
        """Ask an operator, who only looks and acts: this process reaps no job."""

        async def main() -> T:
            runtime = Runtime()
            store = store_of(self.url, runtime)
            await store.open()
            try:
                return await question(Operator(store, runtime))
            finally:
                await store.close()

        return asyncio.run(main())

    def farms(self) -> list[FarmRecord]:
        return self.ask(lambda operator: operator.farms())

    def counts(self) -> dict[Status, int]:
        """Count jobs by status, without jobs that were in the store before."""

        async def look(operator: Operator) -> dict[Status, int]:
            others = Counter(await operator.count(Filter(pool=STRANGER)))
            return dict(Counter(await operator.count(Filter())) - others)

        return self.ask(look)

    def job(self, id: str) -> JobView:
        found = self.ask(lambda operator: operator.job(id))
        assert found is not None
        return found

    def until_done(self, count: int, status: Status = Status.COMPLETED) -> None:
        """Wait until so many jobs have ended with that status."""

        async def look(operator: Operator) -> None:
            async with asyncio.timeout(LIMIT):
                while (await operator.count(Filter())).get(status, 0) < count:
                    await farm_app.pause(0.02)

        self.ask(look)

    # Reports of jobs

    def told(self, *words: str) -> list[list[str]]:
        """Return the lines with this first word; a second word is a prefix of their third."""
        lines = [line.split() for line in self.story.read_text().splitlines()]
        what, name = words[0], words[1] if len(words) > 1 else ""
        return [one for one in lines if one[0] == what and (not name or one[2].startswith(name))]

    def until_told(self, *words: str, count: int = 1) -> list[list[str]]:
        def look() -> list[list[str]] | None:
            found = self.told(*words)
            return found if len(found) >= count else None

        return until(look, f"{count} × {words}")


class Farm:
    """One run of `poolhand work`."""

    def __init__(self, yard: Yard, process: warm.Program, log: Path) -> None:
        self.yard = yard
        self.process = process
        self.pid = process.pid
        self.log = log

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def lines(self, title: str = "", **fields: str) -> list[Line]:
        found = [Line(match) for line in self.text.splitlines() if (match := _LINE.match(line))]
        return [
            line
            for line in found
            if line.title.startswith(title)
            and all(re.search(value, line[name]) for name, value in fields.items())
        ]

    def until_line(self, title: str, count: int = 1, **fields: str) -> list[Line]:
        def look() -> list[Line] | None:
            found = self.lines(title, **fields)
            return found if len(found) >= count else None

        try:
            return until(look, f"{count} × {title} {fields}")
        except AssertionError as error:
            raise AssertionError(f"{error} in\n{self.text}") from None

    def until_ready(self, count: int = 1) -> list[int]:
        """Wait until so many workers were ready in all; return the pids of all that started."""
        self.until_line("process ready", count)
        return self.pids

    @property
    def pids(self) -> list[int]:
        return [int(line["pid"]) for line in self.lines("process started")]

    @property
    def id(self) -> str:
        return self.until_line("farm started")[0]["farm"]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ended(self, limit: float = LIMIT) -> int:
        """Wait until the farm has ended by itself; return the exit code."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.text}") from None

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()

    def clear(self) -> None:
        """Kill all processes that are left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of poolhand on its store."""
        return warm.run(["-m", "poolhand", *words, "--store", self.yard.url], timeout=LIMIT)


def state_of(pid: int) -> str:
    """Return the state letter of a process; an empty text means that it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def children_of(pid: int) -> list[int]:
    """Return the child processes of a process, including zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(entry.name))
    return found


def all_gone(pids: Sequence[int]) -> bool:
    return not any(state_of(pid) for pid in pids)
