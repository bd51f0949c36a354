"""Schedules with fresh seeds for as long as one likes, or one seed in detail.

python -m tests.schedules.soak --minutes 30
python -m tests.schedules.soak --seed 1234
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import sys
import time
from collections import Counter, deque

from tests.schedules.plan import make_plan
from tests.schedules.world import ScheduleFailed, run_schedule

BATCH = 200
SECONDS_BETWEEN_LINES = 10.0


def run_batch(first: int) -> tuple[int, Counter[str], str]:
    """Run a batch of seeds; return their number, what occurred, and the first failure."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + BATCH):
        try:
            seen += run_schedule(seed)
        except ScheduleFailed as failure:
            return seed - first + 1, seen, str(failure)
    return BATCH, seen, ""


def soak(minutes: float, jobs: int) -> int:
    """Run fresh schedules until the time is over or one fails; return the exit code."""
    began = said = time.monotonic()
    count = 0
    seen: Counter[str] = Counter()
    # Forked workers would share the state of this process; spawned ones match a test run.
    with multiprocessing.get_context("spawn").Pool(jobs) as workers:
        pending = deque(workers.apply_async(run_batch, (fresh(),)) for _ in range(2 * jobs))
        while pending:
            done, occurred, failure = pending.popleft().get()
            if time.monotonic() < began + 60 * minutes:
                pending.append(workers.apply_async(run_batch, (fresh(),)))
            count += done
            seen += occurred
            if failure:
                say(f"after {count} schedules:\n{failure}")
                return 1
            if time.monotonic() - said > SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                say(f"{said - began:6.0f} s  {count} schedules, {seen['JobEnded']} jobs, no fault")
    say(f"{count} schedules, no fault: {dict(sorted(seen.items()))}")
    return 0


def fresh() -> int:
    return secrets.randbits(48)


def replay(seed: int) -> int:
    """Run one seed and print every event; return the exit code."""
    trace: list[str] = []
    failure = ""
    try:
        run_schedule(seed, trace=trace)
    except ScheduleFailed as error:
        failure = str(error)
    say("\n".join([str(make_plan(seed)), *trace, failure or "no fault"]))
    return 1 if failure else 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="run this one and print its events")
    options = parser.parse_args()
    return soak(options.minutes, options.jobs) if options.seed is None else replay(options.seed)


if __name__ == "__main__":
    sys.exit(main())
