"""The row of the crowd: three processes on one file, under the usual load, without a fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import until
from tests.faults.history import History
from tests.faults.load import Item, Plan, standard
from tests.faults.row_kills import SLOTS, begin
from tests.faults.rows import Settings

POOL = "turns"
KEYS = ("ant", "bee", "cat", "doe", "elk", "fox")
CAP = 6
FIRST = 99  # the lane that is handed in before anybody works


def crowd(folder: Path, settings: Settings) -> Verdict:
    """Let three processes submit and work; a fair pool is filled before they begin."""
    plan = with_turns(standard(settings.seed, settings.jobs, longest=1.0), settings.jobs // 10)
    waiting = {item.number for item in plan.items if item.lane == FIRST}
    with begin(folder, plan) as crew:
        progress = Progress(folder, plan)
        door = crew.start("door", lanes=[FIRST], slots=0)
        until(
            "the fair pool is filled", lambda: progress.look() and waiting <= progress.acked.keys()
        )
        door.terminate()
        settings.say(f"{len(waiting)} jobs wait in the fair pool")
        for number, lanes in enumerate(([0], [1], [2, 3])):
            crew.start(f"worker-{number}", lanes=lanes, slots=SLOTS)
        crew.finish()
    verdict = check(folder)
    history = History(folder)
    verdict.faults += unfair(history)
    shares = Counter(run.life for run in history.attempts)
    verdict.figures |= {"least_share": min(shares.values()) if len(shares) == 3 else 0}
    if len(shares) != 3:
        verdict.faults.append(f"missed: only {sorted(shares)} have worked")
    if again := [
        id for id, runs in history.attempts_of.items() if needless(history, id, len(runs))
    ]:
        verdict.faults.append(f"duplicated: {again} ran more than once without a fault")
    return verdict


def with_turns(plan: Plan, per_key: int) -> Plan:
    """Return a plan with a fair pool besides, in which every key has as much to do."""
    start = len(plan.items)
    turns = [
        Item(start + number, "brief", 0.01, POOL, FIRST, KEYS[number // per_key])
        for number in range(per_key * len(KEYS))
    ]
    return replace(
        plan,
        items=(*plan.items, *turns),
        caps={**plan.caps, POOL: CAP},
        fair=(*plan.fair, POOL),
    )


def unfair(history: History) -> list[str]:
    """While all keys have jobs waiting, none is more than one turn ahead of another."""
    served = dict.fromkeys(KEYS, 0)
    left = Counter(item.key for item in history.plan.items if item.pool == POOL)
    for run in history.attempts:
        item = history.items[run.number]
        if item.pool != POOL:
            continue
        served[item.key] += 1
        left[item.key] -= 1
        if max(served.values()) - min(served.values()) > 1:
            return [f"unfair: at token {run.token} the keys have had {served}"]
        if not left[item.key]:
            break
    return []


def needless(history: History, id: str, runs: int) -> bool:
    raises = {"flaky": 2, "hopeless": 2}
    return runs > raises.get(history.task_of(history.jobs[id]), 1)
