"""Rows of programs that harm themselves: blocked loops, no descriptors, oversized submits."""

from __future__ import annotations

from collections import Counter

from tests.faults import outside
from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import begin, until
from tests.faults.ground import Ground
from tests.faults.history import History
from tests.faults.load import Item, Plan
from tests.faults.rows import Settings

SLOTS = 4
BLOCKED = 20.0
NAMED_SECONDS = 1.0
DESCRIPTORS = 64
LEAKED = 8  # descriptors that a process may have more at its end than at its start
MEGABYTE = 1_000_000
BULK = 10 * MEGABYTE
DOOR = 1  # the lane that other processes submit


def blocked(ground: Ground, settings: Settings, seconds: float = 2.0) -> Verdict:
    """Let a job block the event loop of its process; another process continues beside it."""
    beside = range(1 + SLOTS, 1 + SLOTS + int(seconds * 20))
    plan = Plan(
        (
            Item(0, "blocker", seconds),
            *(Item(number, "threaded", 0.3) for number in range(1, 1 + SLOTS)),
            *(Item(number, "brief", 0.05, lane=DOOR) for number in beside),
        )
    )
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        one = crew.start("one", lanes=[0], slots=SLOTS)
        until("it blocks", lambda: progress.look() or 0 in progress.running.get(one.name, ()))
        settings.say(f"a job blocks its event loop for {seconds:g} s")
        crew.start("other", lanes=[DOOR], pause=0.03, slots=SLOTS)
        crew.finish()
    verdict = check(ground.folder)
    history = History(ground.folder)
    blocker = next(run for run in history.attempts if run.number == 0)
    named = [
        line["at"] - blocker.began
        for line in outside.read(ground.folder / outside.TOLD)
        if line["what"] == "LoopBlocked" and line["job"] == blocker.job
    ]
    assert blocker.ended is not None
    meanwhile = [
        run for run in history.attempts if run.ended and blocker.began < run.ended < blocker.ended
    ]
    if not named:
        verdict.faults.append("missed: nobody named the job that blocked its loop")
    if not meanwhile:
        verdict.faults.append("missed: no job ended while the loop of another was blocked")
    verdict.faults += repeated(history)
    verdict.figures |= {"named_s": min(named, default=0.0), "meanwhile": len(meanwhile)}
    return verdict


def timed_blocked(ground: Ground, settings: Settings) -> Verdict:
    """The same for the promised duration; the job is named in time."""
    verdict = blocked(ground, settings, BLOCKED)
    if verdict.figures["named_s"] > NAMED_SECONDS:
        verdict.faults.append(f"late: it was named after {verdict.figures['named_s']:.2f} s")
    return verdict


def descriptors(ground: Ground, settings: Settings) -> Verdict:
    """Let a process have no file descriptor left when it starts, and again while it works."""
    plan = Plan(
        tuple(
            Item(number, "hog", 1.0) if number % 20 == 10 else Item(number, "brief", 0.02)
            for number in range(60)
        )
    )
    with begin(ground, plan) as crew:
        crew.start(lanes=[0], pause=0.05, slots=SLOTS, patient=True, descriptors=DESCRIPTORS)
        crew.finish()
    verdict = check(ground.folder)
    told = outside.read(ground.folder / outside.TOLD)
    ready = [line["value"] for line in told if line["what"] == "ready"]
    if ready[0] or not ready[-1]:
        verdict.faults.append(f"ready: it was {ready[0]} at first, and {ready[-1]} in the end")
    before, after = (line["count"] for line in told if line["what"] == "descriptors")
    if after > before + LEAKED:
        verdict.faults.append(f"leaked: {before} descriptors at its start, {after} at its end")
    verdict.faults += repeated(History(ground.folder))
    verdict.figures |= {"refused": refusals(ground).total(), "descriptors_left": after}
    return verdict


def payload(ground: Ground, settings: Settings) -> Verdict:
    """Submit ten megabytes: refused as too large or, where allowed, received intact."""
    many = range(4)
    plan = Plan(
        tuple(Item(number, "bulky", size=BULK) for number in many)
        + tuple(Item(4 + number, "brief", 0.02, lane=DOOR) for number in range(40))
        + tuple(Item(44 + number, "bulky", size=BULK, lane=2) for number in range(2))
    )
    with begin(ground, plan) as crew:
        crew.start("wide", lanes=[0], slots=SLOTS, payload=2 * BULK)
        crew.start("beside", lanes=[DOOR], pause=0.05, slots=0)
        # By default at most a quarter of a megabyte is accepted.
        crew.start("narrow", lanes=[2], slots=0, persists=False)
        crew.finish()
    verdict = check(ground.folder)
    refused = refusals(ground)
    if refused != Counter(TooLarge=2):
        verdict.faults.append(f"refused: {dict(refused)}, where 2 were too large")
    verdict.faults += repeated(History(ground.folder))
    verdict.figures |= {"megabytes": len(many) * BULK / MEGABYTE, "refused": refused.total()}
    return verdict


def refusals(ground: Ground) -> Counter[str]:
    """Count the submits that were refused, by the name of the error."""
    lines = outside.read(ground.folder / outside.ACKS)
    return Counter(line["error"] for line in lines if line["what"] == "refused")


def repeated(history: History) -> list[str]:
    """Without a fault of a process every job runs once."""
    return [
        f"duplicated: job {id} ran {len(runs)} times"
        for id, runs in history.attempts_of.items()
        if len(runs) > 1
    ]
