"""The row of the orderly stop: SIGTERM while jobs run."""

from __future__ import annotations

from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import begin
from tests.faults.ground import Ground
from tests.faults.history import History
from tests.faults.load import Item, Plan
from tests.faults.row_kills import SLOTS
from tests.faults.rows import Settings

GRACE = 1.0
LONG = 2.5
EXIT_SECONDS = GRACE + 1.0


def drain(ground: Ground, settings: Settings) -> Verdict:
    """Drain a process while half of its running jobs take longer than its grace."""
    tasks = ("brief", "brief", "polite")
    plan = Plan(
        tuple(
            Item(number, tasks[number % len(tasks)], LONG if number % 2 else 0.6)
            for number in range(2 * SLOTS)
        )
    )
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        first = crew.start(lanes=[0], slots=SLOTS, grace=GRACE)
        progress.until_runs(SLOTS, first.name)
        seconds = first.terminate()
        crew.start(lanes=[0], slots=SLOTS, grace=GRACE)
        crew.finish()
    verdict = check(ground.folder)
    history = History(ground.folder)
    verdict.faults += charged(history)
    back = sum(len(runs) - 1 for runs in history.attempts_of.values())
    if not back:
        verdict.faults.append("missed: no job was handed back")
    verdict.figures |= {"exit_s": seconds, "handed_back": back}
    return verdict


def timed_drain(ground: Ground, settings: Settings) -> Verdict:
    """The same, within the promised time."""
    verdict = drain(ground, settings)
    if verdict.figures["exit_s"] > EXIT_SECONDS:
        verdict.faults.append(f"late: it ended after {verdict.figures['exit_s']:.2f} s")
    return verdict


def charged(history: History) -> list[str]:
    """An orderly stop costs no attempt, and finished jobs do not run again."""
    faults = []
    for id, job in history.jobs.items():
        if id in history.taken_back:
            continue
        if job["attempts"] != 1 or job["crashes"]:
            faults.append(f"charged: job {id} has {job['attempts']} attempts")
        if sum(run.how == "returned" for run in history.attempts_of[id]) > 1:
            faults.append(f"charged: job {id} was done twice")
    return faults
