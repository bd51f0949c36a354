"""The row of the wall clock: it is moved by an hour while jobs run and wait."""

from __future__ import annotations

import time
from threading import Event

from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import Crew, begin, pass_time, until
from tests.faults.figures import rerun_seconds
from tests.faults.ground import Ground
from tests.faults.history import History
from tests.faults.load import Item, Plan
from tests.faults.row_stop import MOVED_SECONDS, STOPPED, stop_between
from tests.faults.rows import Settings

HOUR = 3600.0
DELAY = 4.0
LATE_SECONDS = 2.0  # one second is promised; one more for a busy machine
BACK_SECONDS = 4.0
EARLY_SECONDS = 24.0  # a lease that was just renewed lives at least so long
SLOTS = 5  # fewer than long jobs, so that each of two workers has one
RUNNING, DELAYED, HALF_HOUR, SOON = range(6), range(6, 10), range(10, 13), range(13, 16)
SECOND = 1  # the lane that is submitted while the clock is an hour ahead


def plan_of(seconds: float) -> Plan:
    return Plan(
        tuple(Item(number, "brief", seconds) for number in RUNNING)
        + tuple(Item(number, "brief", delay=DELAY) for number in DELAYED)
        + tuple(Item(number, "brief", run_at=HOUR / 2) for number in HALF_HOUR)
        + tuple(Item(number, "brief", run_at=2.0, lane=SECOND) for number in SOON)
    )


def clock(ground: Ground, settings: Settings) -> Verdict:
    """Move the clock back and forth: leases and delays do not change, run_at follows it."""
    plan = plan_of(seconds=8.0)
    with begin(ground, plan) as crew:
        moves = _to_and_fro(crew, Progress(ground.folder, plan), settings)
        crew.finish()
    return _judged(ground, moves)


def timed_clock(ground: Ground, settings: Settings) -> Verdict:
    """The same; then a worker is stopped while the clock goes back: its lease ends in time."""
    plan = plan_of(seconds=30.0)
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        moves = _to_and_fro(crew, progress, settings)
        one = next(life for life in crew.lives if life.name.startswith("one"))
        # The server ends idle transactions by the clock that goes back here.
        stopped = stop_between(one, ground)
        crew.shift_wall(-HOUR)
        settings.say("a worker stands still, the clock went back by two hours")
        pass_time(stopped, STOPPED)
        one.go_on()
        crew.finish()
    verdict = _judged(ground, moves)
    late = max(verdict.figures["delayed_late_s"], verdict.figures["run_at_late_s"])
    if late > LATE_SECONDS:
        verdict.faults.append(f"late: a job began {late:.1f} s after its time")
    moved = rerun_seconds(History(ground.folder))
    if not moved or max(moved) > MOVED_SECONDS or min(moved) < EARLY_SECONDS:
        verdict.faults.append(f"late: leases of a stopped worker moved after {moved} s")
    verdict.figures["moved_s"] = max(moved, default=0.0)
    return verdict


def _to_and_fro(crew: Crew, progress: Progress, settings: Settings) -> tuple[float, float]:
    """Move the clock; return when it went ahead the first and the second time."""
    for name in ("one", "other"):
        crew.start(name, slots=SLOTS)
    crew.start("door", lanes=[0], slots=0)
    until("all is handed in", lambda: progress.look() and set(HALF_HOUR) <= progress.acked.keys())
    until("the long ones run", lambda: progress.look() and _running(progress) >= len(RUNNING))
    first = time.monotonic()
    crew.shift_wall(HOUR)
    settings.say("the clock is an hour ahead")
    until("the half hour is over", lambda: progress.look() and _ended(progress, HALF_HOUR))
    crew.start("door", lanes=[SECOND], slots=0)
    until("all is handed in", lambda: progress.look() and set(SOON) <= progress.acked.keys())
    crew.shift_wall(0.0)
    settings.say("the clock is back")
    Event().wait(BACK_SECONDS)
    second = time.monotonic()
    crew.shift_wall(HOUR)
    until("the last are over", lambda: progress.look() and _ended(progress, SOON))
    return first, second


def _running(progress: Progress) -> int:
    return sum(len(numbers & set(RUNNING)) for numbers in progress.running.values())


def _ended(progress: Progress, numbers: range) -> bool:
    return all(progress.acked.get(number) in progress.ended for number in numbers)


def _judged(ground: Ground, moves: tuple[float, float]) -> Verdict:
    verdict = check(ground.folder)
    history = History(ground.folder)
    began = {run.number: run.began for run in reversed(history.attempts)}
    asked = {line["number"]: line["at"] for line in history.submits if line["what"] == "asked"}
    late = {
        "delayed": [began[number] - asked[number] - DELAY for number in DELAYED],
        "run_at": [began[number] - moves[0] for number in HALF_HOUR]
        + [began[number] - moves[1] for number in SOON],
    }
    for what, seconds in late.items():
        if min(seconds) < 0.0 or max(seconds) > HOUR / 4:
            verdict.faults.append(f"moved: {what} jobs began {seconds} s after their time")
        verdict.figures[f"{what}_late_s"] = max(seconds)
    stopped = {blow["life"] for blow in history.blows if blow["what"] == "stop"}
    for id, runs in history.attempts_of.items():
        if len(runs) > 1 and runs[0].life not in stopped:
            verdict.faults.append(f"lease: job {id} ran {len(runs)} times, nothing was stopped")
    return verdict
