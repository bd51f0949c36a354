"""The row of schedules: all operations at once, in a seeded order, in virtual time."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter

from tests.faults.checker import Verdict
from tests.faults.ground import Ground
from tests.faults.rows import Settings
from tests.schedules.soak import BATCH, run_batch

SCHEDULES = 20_000


def schedules(ground: Ground, settings: Settings, count: int = SCHEDULES) -> Verdict:
    """Run schedules of submit, cancel, timeout, resize and drain: each ticket resolves once."""
    verdict = Verdict()
    seen: Counter[str] = Counter()
    played = 0
    starts = range(settings.seed * SCHEDULES, settings.seed * SCHEDULES + count, BATCH)
    # Spawned, as a fork would share the state of this process.
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as workers:
        for done, occurred, failure in workers.imap_unordered(run_batch, starts):
            played += done
            seen += occurred
            if failure:
                verdict.faults.append(f"schedule: {failure}")
            if played % (count // 4) == 0:
                settings.say(f"{played} schedules")
    verdict.figures = {"schedules": played, "jobs": seen["JobEnded"]}
    return verdict
