"""The state of one worker process, from its own events."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import get_args

import msgspec

from poolhand.observe.events import (
    JobEnded,
    JobMarked,
    JobRetried,
    JobStarted,
    LoopBlocked,
    OwnerReaped,
    SlotFreed,
    SlotStuck,
    StoreTrouble,
    WorkerVanished,
)
from poolhand.views import Event, Job

# Messages between processes. Events are tagged records: as JSON they are read back whole.
Told = (
    JobEnded
    | JobMarked
    | JobRetried
    | JobStarted
    | LoopBlocked
    | OwnerReaped
    | SlotFreed
    | SlotStuck
    | StoreTrouble
    | WorkerVanished
)
TOLD: tuple[type[Event], ...] = get_args(Told)
READY = "ready"  # its first line; all others are events
READER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Told)


class Fate(StrEnum):
    """The state of a process."""

    STARTING = "starting"
    AT_WORK = "at work"
    KILLED = "killed"
    TAKEN_BACK = "its jobs taken back"
    OVER = "ended"


@dataclass(slots=True)
class Held:
    """A job in a slot; a stuck one is over, but its code still runs."""

    job: Job
    since: float
    stuck: bool = False


@dataclass(slots=True)
class Process:
    """A worker process: its identity, its state, and the job in each of its slots."""

    name: str
    pid: int
    slots: int
    fate: Fate = Fate.AT_WORK
    held: dict[str, Held] = field(default_factory=dict)

    @property
    def busy(self) -> int:
        return sum(not held.stuck for held in self.held.values())

    def hear(self, event: Event) -> None:
        """Apply one of its events."""
        match event:
            case JobStarted(job=job, slot=slot):
                self.held[slot] = Held(job, time.monotonic())
            case JobEnded(job=job) | JobRetried(job=job):
                self._let_go(job.id)
            case SlotStuck(slot=slot) if slot in self.held:
                self.held[slot].stuck = True
            case SlotFreed(slot=slot):
                self.held.pop(slot, None)
            case _:
                pass

    def lose(self) -> None:
        """Clear its slots: others have its jobs."""
        self.held.clear()

    def _let_go(self, id: str) -> None:
        for slot, held in list(self.held.items()):
            if held.job.id == id and not held.stuck:
                del self.held[slot]
