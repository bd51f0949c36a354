"""The agents: they work in steps, call tools, fail, and hit limits, all without a network.

Plain functions, which `kept` registers as tasks. An agent asks its job about earlier attempts:
another process may have made them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from dataclasses import dataclass
from zlib import crc32

from poolhand import GiveUp, Retry, RetryLater, current_job
from poolhand.views import Job
from stage.plan import Habit, Turn

OPERATOR = "operator"  # the operator that retries dead letters when the cause is fixed
PASSAGES = 1_500
DIMENSIONS = 64
BLOCKS_FOR = 0.3


def keep_log_quiet() -> None:
    """Keep failures out of the log: agents fail on purpose, and the screen shows it."""
    logging.getLogger("poolhand").setLevel(logging.CRITICAL)


class ToolFailed(Exception):
    """A temporary fault: worth another attempt."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations at this speed; timeouts stay long enough for a busy machine."""

    speed: float

    def seconds(self, seconds: float) -> float:
        return seconds / self.speed

    @property
    def soft_timeout(self) -> float:
        return max(0.5, self.seconds(1.4))

    @property
    def timeout(self) -> float:
        return self.soft_timeout + max(0.2, self.seconds(0.4))

    @property
    def patience(self) -> float:
        return self.seconds(0.25)

    @property
    def retry(self) -> Retry:
        return Retry(attempts=3, first=self.seconds(0.4), cap=self.seconds(2.0))


async def think(turn: Turn, pace: Pace) -> str:
    """Answer one turn: a job on the event loop."""
    for number, step in enumerate(turn.steps):
        await asyncio.sleep(pace.seconds(step))
        if number == 0:
            await _act(turn, pace, _me())
    return f"answer {turn.number}"


def call_tool(turn: Turn, pace: Pace) -> str:
    """Answer one turn with blocking code: a plain function, which a worker runs in a thread."""
    if turn.habit is Habit.HANGS and _me().attempts == 1:
        # A thread cannot be interrupted: the job times out, and its slot is stuck until then.
        time.sleep(pace.timeout * 1.7)
    time.sleep(pace.seconds(sum(turn.steps)))
    return f"answer {turn.number}, by a tool"


def rank(turn: Turn, pace: Pace) -> str:
    """Answer one turn from the nearest of many passages: CPU work, which runs in a process."""
    if turn.habit is Habit.KILLED and _me().attempts == 1:
        # As the kernel does when the machine runs out of memory.
        os.kill(os.getpid(), signal.SIGKILL)
    question = _embed(f"question {turn.number}")
    passages = range(max(1, round(pace.seconds(PASSAGES))))
    best = max(passages, key=lambda number: _likeness(question, _embed(f"passage {number}")))
    return f"answer {turn.number}, from passage {best}"


def _me() -> Job:
    job = current_job()
    assert job is not None
    return job


def _embed(text: str) -> list[float]:
    return [crc32(text.encode(), dimension) / 2**31 - 1 for dimension in range(DIMENSIONS)]


def _likeness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def _act(turn: Turn, pace: Pace, me: Job) -> None:
    """Do what is special about a turn."""
    first = me.attempts == 1
    mended = me.submitted_by == OPERATOR
    match turn.habit:
        case Habit.STUMBLES if first:
            raise ToolFailed("the search tool gave up")
        case Habit.HOPELESS if not mended:
            raise ToolFailed("[blink]the archive is gone[/blink]")
        case Habit.BROKEN if not mended:
            raise GiveUp("the key to the archive has expired")
        case Habit.BLOCKS:
            _read_page()
        case Habit.LIMITED if first:
            raise RetryLater(pace.seconds(0.5), "rate limit of the provider")
        case Habit.DAWDLES if first:
            await asyncio.sleep(pace.timeout * 10)
        case Habit.HURRIES:
            await _until_told(pace.timeout * 10)
        case Habit.ABANDONED:
            await asyncio.sleep(pace.patience * 8)
        case _:
            pass


def _read_page() -> None:
    """Block as a client without async does: nothing else on the loop runs until it returns."""
    time.sleep(BLOCKS_FOR)


async def _until_told(seconds: float) -> None:
    """Work until the soft timeout, then return the partial result."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
