"""The app: the store of the demo, the rules of its pool, and its tasks.

Every process of the demo makes the same one from the same flags; that is all they need to share
the work.
"""

from __future__ import annotations

from typing import Any

from poolhand import App, Task, bounded, fair_round_robin
from poolhand.settings import Keep
from stage.agents import Pace, call_tool, rank, think
from stage.flags import Flags
from stage.plan import Habit, Turn

POOL = "demo"
QUEUE_PER_SLOT = 5
PROCESS_SECONDS = 30.0  # the first job of a process waits until it is up
KEEP_RESULTS = 900.0  # a demo that runs for hours must not fill the disk
IN_A_THREAD = {Habit.TOOL, Habit.HANGS}
IN_A_PROCESS = {Habit.RANKS, Habit.KILLED}

AgentTask = Task[[Turn, Pace], Any, str]


class Kept:
    """One app, its pool and its tasks; the rules of the pool hold over all processes together."""

    def __init__(self, flags: Flags) -> None:
        self.pace = pace = Pace(flags.speed)
        self.app = App(flags.store, keep=Keep(results=KEEP_RESULTS))
        self.app.pool(
            POOL,
            max_concurrent=flags.slots,
            queue=fair_round_robin("tenant_id"),
            backpressure=bounded(QUEUE_PER_SLOT * flags.slots),
            soft_timeout=pace.soft_timeout,
            timeout=pace.timeout,
            retry=pace.retry,
        )
        task = self.app.task(pool=POOL)
        apart = self.app.task(
            pool=POOL, run_in="process", timeout=PROCESS_SECONDS, soft_timeout=None
        )
        self._think: AgentTask = task(think)
        self._call_tool: AgentTask = task(call_tool)
        self._rank: AgentTask = apart(rank)

    def task_for(self, turn: Turn) -> AgentTask:
        """Return the task that answers a turn."""
        if turn.habit in IN_A_PROCESS:
            return self._rank
        return self._call_tool if turn.habit in IN_A_THREAD else self._think
