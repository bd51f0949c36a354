"""The crew: worker processes beside this one, of which one is killed while it works."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio import Event as Flag
from asyncio import Task, TaskGroup
from asyncio.subprocess import PIPE, STDOUT
from asyncio.subprocess import Process as Child
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from poolhand.views import Event
from stage.flags import Flags
from stage.news import BAD, GOOD, Newsroom
from stage.process import READER, READY, Fate, Process

EXAMPLES = Path(__file__).parents[1]
LONGEST_LINE = 1 << 20
UP_WITHIN = 15.0
# When a process is killed after its start, in parts of a round: the first one in the middle of
# the burst, the others now and then.
FIRST_KILL, NEXT_KILL = 0.35, 1.0
REPLACED_AFTER = 2.0
STOP_WITHIN = 12.0
LAST_WORDS = 5

Hear = Callable[[Event, Process], None]


@dataclass(slots=True)
class Fall:
    """A process that was killed: when, and how soon others had its jobs."""

    pid: int
    at: float
    jobs: int = 0
    taken_back_after: float | None = None


class Second:
    """A worker process beside this one, from its start to its end."""

    def __init__(self, process: Process, child: Child, hear: Hear) -> None:
        self.process = process
        self.up = Flag()
        self.gone = Flag()
        self.changed = Flag()
        self.words: list[str] = []
        self._child = child
        self._hear = hear
        self._reader = asyncio.create_task(self._read())

    @property
    def code(self) -> int | None:
        return self._child.returncode

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._child.send_signal(number)

    async def _read(self) -> None:
        """Read its events until it ends."""
        assert self._child.stdout is not None
        try:
            async for line in self._child.stdout:
                self._take(line)
            await self._child.wait()
        finally:
            for flag in (self.up, self.gone, self.changed):
                flag.set()

    def _take(self, line: bytes) -> None:
        if line.strip() == READY.encode():
            self.process.fate = Fate.AT_WORK
            self.up.set()
            return
        try:
            event = READER.decode(line)
        except msgspec.MsgspecError:
            # Not an event: Python's output when it ends with an error.
            self.words = [*self.words, line.decode(errors="replace").strip()][-LAST_WORDS:]
        else:
            self._hear(event, self.process)
            self.changed.set()


class Crew:
    """Starts a second process, kills it while it works, and replaces it."""

    def __init__(self, flags: Flags, newsroom: Newsroom, hear: Hear) -> None:
        self.falls: list[Fall] = []
        self.up = Flag()
        self._flags = flags
        self._newsroom = newsroom
        self._hear = hear
        self._number = 1
        self._second: Second | None = None
        self._task: Task[None] | None = None

    @property
    def process(self) -> Process | None:
        """The second process, or the last one."""
        return None if self._second is None else self._second.process

    def begin(self, tasks: TaskGroup) -> None:
        self._task = tasks.create_task(self._work())

    async def stop(self) -> None:
        """Let the second process finish its running jobs and hand back the rest; wait for it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        second = self._second
        if second is not None and not second.gone.is_set():
            second.send(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_WITHIN):
                    await second.gone.wait()
            except TimeoutError:
                second.send(signal.SIGKILL)
                await second.gone.wait()
            self._mourn(second)

    def hurry(self) -> None:
        """Stop the second process now; it hands back its running jobs."""
        if self._second is not None:
            self._second.send(signal.SIGTERM)

    def taken_back(self, pid: int, count: int) -> None:
        """Record that others have the jobs of a killed process."""
        process = self.process
        if process is not None and process.pid == pid:
            fall = self._fall(process)
            fall.jobs += count
            fall.taken_back_after = self._newsroom.elapsed - fall.at
            process.fate = Fate.TAKEN_BACK
            process.lose()

    async def _work(self) -> None:
        """Keep a second process running; in one round only the first of them is killed."""
        while True:
            second = self._second = await self._start()
            await self._see_it_up(second)
            if not (self._flags.once and self.falls):
                await self._kill(second)
            await second.gone.wait()
            if not self._mourn(second):
                return
            await asyncio.sleep(REPLACED_AFTER / self._flags.speed)

    async def _start(self) -> Second:
        self._number += 1
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "stage.second",
            msgspec.json.encode(self._flags).decode(),
            env={**os.environ, "PYTHONPATH": _path()},
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            limit=LONGEST_LINE,
            start_new_session=True,  # Ctrl-C is for the demo, which stops the others
        )
        name, slots = f"worker {self._number}", self._flags.second_slots
        return Second(Process(name, child.pid, slots, Fate.STARTING), child, self._hear)

    async def _see_it_up(self, second: Second) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(UP_WITHIN):
                await second.up.wait()
        process = second.process
        if process.fate is Fate.AT_WORK:
            text = f"{process.name}, pid {process.pid}, takes jobs from the same file"
            self._newsroom.headline("", text, GOOD)
        self.up.set()

    async def _kill(self, second: Second) -> None:
        """Kill it at its time if it is working."""
        process, wanted = second.process, max(1, self._flags.second_slots // 2)
        part = NEXT_KILL if self.falls else FIRST_KILL
        with suppress(TimeoutError):
            async with asyncio.timeout(self._flags.seconds * part / self._flags.speed):
                await second.gone.wait()
        while process.busy < wanted and not second.gone.is_set():
            second.changed.clear()
            await second.changed.wait()
        if not second.gone.is_set():
            second.send(signal.SIGKILL)
            self._fall(process)

    def _mourn(self, second: Second) -> bool:
        """Report how a process ended, and return whether to replace it."""
        process, code = second.process, second.code
        if code == -signal.SIGKILL:
            self._fall(process)
            return True
        process.fate = Fate.OVER
        process.lose()
        if code == 0:
            text = f"{process.name}, pid {process.pid}, has finished its jobs and ended"
            self._newsroom.headline("", text, GOOD)
            return True
        text = f"{process.name}, pid {process.pid}, has ended with code {code}: "
        self._newsroom.headline("", text + " / ".join(second.words), BAD)
        return False

    def _fall(self, process: Process) -> Fall:
        """Return the record of a killed process, also one that the demo did not kill."""
        if not self.falls or self.falls[-1].pid != process.pid:
            self.falls.append(Fall(process.pid, self._newsroom.elapsed))
            process.fate = Fate.KILLED
            text = (
                f"{process.name}, pid {process.pid}, is killed by SIGKILL in the middle of its work"
            )
            self._newsroom.headline("", text, BAD)
        return self.falls[-1]


def _path() -> str:
    """Return an environment in which another process finds the same modules."""
    return os.pathsep.join(filter(None, (str(EXAMPLES), os.environ.get("PYTHONPATH"))))
