"""Aiming: when in a run a process is killed, and during which phase.

Nothing of poolhand is imported here.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event
from typing import Protocol

from tests.faults import outside
from tests.faults.crew import PAUSE, RunFailed, until
from tests.faults.load import Item, Plan
from tests.faults.marks import Marks

PHASES = ("add", "claim", "run", "settle")
AIM_SECONDS = 2.0  # seconds to wait for a phase
AIM_PAUSE = 0.0002
STALLED = 30.0  # seconds without any progress after which the wait ends
BLIND = 0.4  # the largest delay in seconds of a kill without an aim: it may hit a start


class Target(Protocol):
    """A process that can be killed during a phase."""

    name: str
    marks: Marks

    @property
    def alive(self) -> bool: ...

    def kill(self) -> frozenset[str]: ...

    def hold(self) -> frozenset[str]: ...

    def let_go(self) -> None: ...


class Progress:
    """The progress of a plan, from the files outside."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._acks = outside.Tail(folder / outside.ACKS)
        self._effects = outside.Tail(folder / outside.EFFECTS)
        self._items: dict[int, Item] = {item.number: item for item in plan.items}
        self.acked: dict[int, str] = {}
        self.running: dict[str, set[int]] = {}  # numbers of items, by the life they run in
        self.last_begun: dict[str, float] = {}  # when a life last began a job
        self.ended: set[str] = set()
        self._done: set[int] = set()

    def look(self) -> float:
        """Return the progress from 0 to 1: half for submitted, half for ended items."""
        for line in self._acks.news():
            if line["what"] == "ack":
                self.acked[line["number"]] = line["job"]
        for line in self._effects.news():
            running = self.running.setdefault(line["life"], set())
            if line["what"] == "begin":
                running.add(line["number"])
                self.last_begun[line["life"]] = line["at"]
            else:
                running.discard(line["number"])
                if self._is_last(line):
                    self.ended.add(line["job"])
                    self._done.add(line["number"])
        jobs = set(self.acked.values())
        open_jobs = len(jobs - self.ended) + len(self._items) - len(self.acked)
        done = len(self.acked) + len(self._items) - open_jobs
        return done / (2 * len(self._items))

    def until_at(self, share: float, life: Target) -> None:
        """Wait until that much is done, or nothing happens any more."""
        rest, done, since = Event(), 0.0, time.monotonic()
        while done < share and life.alive and time.monotonic() < since + STALLED:
            before, done = done, self.look()
            if done > before:
                since = time.monotonic()
            rest.wait(PAUSE)

    def until_rested(self, life: Target) -> None:
        """Wait until the jobs that were interrupted in other lives have ended."""

        def is_rested() -> bool:
            self.look()
            others = [numbers for name, numbers in self.running.items() if name != life.name]
            return all(numbers <= self._done for numbers in others) or not life.alive

        with suppress(RunFailed):
            until("what was cut short has ended", is_rested, STALLED)

    def until_runs(self, count: int, *lives: str) -> None:
        """Wait until so many jobs run in each of these lives."""

        def run() -> bool:
            self.look()
            return all(len(self.running.get(life, ())) >= count for life in lives)

        until(f"{count} jobs run in {lives}", run)

    def _is_last(self, line: outside.Line) -> bool:
        item = self._items[line["number"]]
        how = line["how"]
        return how == "returned" or (item.ends == "failed" and line["attempt"] >= item.attempts)


@dataclass(frozen=True)
class Shot:
    """A kill at a share of the run: aimed at a phase, or blind after some seconds."""

    at: float
    phase: str | None
    delay: float

    def fire(self, life: Target, progress: Progress) -> frozenset[str]:
        """Wait for the moment, kill, and return the phases that were hit."""
        progress.until_at(self.at, life)
        if self.phase is None:
            Event().wait(self.delay)
        else:
            self._aim(life, self.phase)
        return life.kill()

    def _aim(self, life: Target, phase: str) -> None:
        """Stop the process inside a phase, if it enters it in time."""
        rest, deadline = Event(), time.monotonic() + AIM_SECONDS
        pause = self.delay / 100  # anywhere inside the phase, not always at its first step
        while time.monotonic() < deadline and life.alive:
            if phase not in life.marks.now():
                rest.wait(AIM_PAUSE)
                continue
            rest.wait(pause)
            if phase in life.hold():
                return
            life.let_go()
            pause = 0.0


def shots(seed: int, kills: int, phases: tuple[str, ...] = PHASES) -> list[Shot]:
    """Return kills spread over the whole run; two in three are aimed, at each phase in turn.

    The last ones are blind: some phases do not occur any more near the end of a run.
    """
    random = Random(f"shots {seed}")
    moments = [(number + random.random()) / kills for number in range(kills)]
    early = kills * 4 // 5
    aims: list[str | None] = [phases[number % len(phases)] for number in range(kills * 2 // 3)]
    aims += [None] * (early - len(aims))
    random.shuffle(aims)
    aims += [None] * (kills - len(aims))
    return [
        Shot(at, aim, random.uniform(0.0, BLIND)) for at, aim in zip(moments, aims, strict=True)
    ]
