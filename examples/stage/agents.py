"""The agents: they think in steps, call tools, fail, and hit limits, all without a network."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from poolhand import Retry, RetryLater
from stage.plan import Habit, Turn


class ToolFailed(Exception):
    """A fault that may pass: worth another attempt."""


class BadRequest(Exception):
    """A fault of the question itself: no attempt will help."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take at this speed; timeouts stay long enough for a busy machine."""

    speed: float

    def seconds(self, seconds: float) -> float:
        return seconds / self.speed

    @property
    def soft_timeout(self) -> float:
        return max(0.3, self.seconds(1.2))

    @property
    def timeout(self) -> float:
        return self.soft_timeout + max(0.1, self.seconds(0.4))

    @property
    def patience(self) -> float:
        return self.seconds(0.25)

    @property
    def retry(self) -> Retry:
        return Retry(
            attempts=3,
            first=self.seconds(0.4),
            cap=self.seconds(2.0),
            give_up_on=(BadRequest,),
        )


async def think(turn: Turn, pace: Pace) -> str:
    """Answer one turn: a job on the event loop."""
    turn.attempts += 1
    for number, step in enumerate(turn.steps):
        await asyncio.sleep(pace.seconds(step))
        if number == 0:
            await _act(turn, pace)
    return f"answer {turn.number}"


def call_tool(turn: Turn, pace: Pace) -> str:
    """Answer one turn by blocking code: a plain function, which the pool runs in a thread."""
    turn.attempts += 1
    if turn.habit is Habit.HANGS and turn.attempts == 1:
        # Nobody can interrupt this: the job times out, its slot is stuck until the tool returns.
        time.sleep(pace.timeout * 1.7)
    time.sleep(pace.seconds(sum(turn.steps)))
    return f"answer {turn.number}, by a tool"


async def _act(turn: Turn, pace: Pace) -> None:
    """Do what is special about a turn."""
    first = turn.attempts == 1
    match turn.habit:
        case Habit.STUMBLES if first:
            raise ToolFailed("the search tool gave up")
        case Habit.HOPELESS:
            raise ToolFailed("[blink]the archive is gone[/blink]")
        case Habit.BROKEN:
            raise BadRequest("the prompt is empty")
        case Habit.LIMITED if first:
            raise RetryLater(pace.seconds(0.5), "rate limit of the provider")
        case Habit.DAWDLES if first:
            await asyncio.sleep(pace.timeout * 10)
        case Habit.HURRIES:
            await _until_told(pace.timeout * 10)
        case Habit.ABANDONED:
            await asyncio.sleep(pace.patience * 4)
        case _:
            pass


async def _until_told(seconds: float) -> None:
    """Work until the soft timeout comes, then leave it at what there is."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
