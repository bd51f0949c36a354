"""Log blocked event loops and stuck slots on the logger "poolhand", without a subscriber."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from poolhand.observe.events import Events, LoopBlocked, SlotStuck
from poolhand.observe.failures import LOG, is_reported, warn
from poolhand.rules.job import HARD_TIMEOUT, Job
from poolhand.rules.values.escape import indented, safe

LOGGED_AFTER = 1.0  # seconds; shorter blocks are only emitted as events
LONGEST_NAME = 200


def logs_blocks(events: Events) -> bool:
    """Return whether a blocked loop is logged by default."""
    return LOG.isEnabledFor(logging.WARNING) and not is_reported(events, LoopBlocked)


def warn_blocked(blocks: Sequence[LoopBlocked], channels: Sequence[Events]) -> None:
    """Log a blocked event loop once: `blocks` are the same block for several pools."""
    for block, events in zip(blocks, channels, strict=True):
        if logs_blocks(events):
            LOG.warning("%s", blocked_text(block))
            return


def blocked_text(block: LoopBlocked) -> str:
    """Describe what blocks a loop, where, and what to do; the indented stack follows."""
    what = f"code outside of any job, in the process of pool {block.pool!r},"
    if block.job is not None:
        what = _named(block.job)
    return (
        f"{what} has blocked the event loop for {block.seconds:.1f} s; no other job, timeout or "
        "cancellation goes on meanwhile: use await, or make the call with asyncio.to_thread, or in "
        "a task that is a plain function"
        + indented(f"Blocked here (most recent call last):\n{block.stack.rstrip()}", "    ")
    )


def warn_stuck(job: Job, slot: str, events: Events) -> None:
    """Log that the code of a finished job does not stop."""
    late = HARD_TIMEOUT in job.marks
    why = "ran past its timeout" if late else "was cancelled"
    warn(
        f"{_named(job)} {why}, and its code does not stop: slot {slot} is stuck and takes no other "
        "job until that code ends; let CancelledError pass, ask stop_requested() in threads, or "
        'use run_in="process", which can be killed',
        SlotStuck,
        events,
    )


def _named(job: Job) -> str:
    return f"job {job.id} of task {safe(job.name[:LONGEST_NAME])!r} in pool {safe(job.pool)!r}"
