"""What one worker process does, as its own events tell it."""

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

# What one process tells another. Events are records with a tag: as JSON they are read back whole.
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
    """How it is with a process."""

    STARTING = "starting"
    AT_WORK = "at work"
    KILLED = "killed"
    TAKEN_BACK = "its jobs taken back"
    OVER = "ended"


@dataclass(slots=True)
class Held:
    """A job in a slot; a stuck one is over, but its code runs on."""

    job: Job
    since: float
    stuck: bool = False


@dataclass(slots=True)
class Process:
    """A worker process: who it is, how it is, and what each of its slots holds."""

    name: str
    pid: int
    slots: int
    fate: Fate = Fate.AT_WORK
    held: dict[str, Held] = field(default_factory=dict)

    @property
    def busy(self) -> int:
        return sum(not held.stuck for held in self.held.values())

    def hear(self, event: Event) -> None:
        """Take in one of its events."""
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
        """Hold nothing any more: others have it."""
        self.held.clear()

    def _let_go(self, id: str) -> None:
        for slot, held in list(self.held.items()):
            if held.job.id == id and not held.stuck:
                del self.held[slot]
