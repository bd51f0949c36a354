"""The row of the crowd: four processes on one store, under the usual load, without a fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import begin, until
from tests.faults.figures import most_leased
from tests.faults.ground import Ground
from tests.faults.history import History
from tests.faults.load import Item, Plan, standard
from tests.faults.row_kills import SLOTS
from tests.faults.rows import Settings

PROCESSES = 4
POOL = "turns"
KEYS = ("ant", "bee", "cat", "doe", "elk", "fox")
CAP = 6
FIRST = 99  # the lane that is submitted before any process works
CHORUS = 100  # turns of one session, each in its own lane: all are submitted at once


def crowd(ground: Ground, settings: Settings, chorus: int = CHORUS) -> Verdict:
    """Let four processes submit and work; a fair pool is filled before they begin."""
    plan = standard(settings.seed, settings.jobs, settings.longest)
    plan = with_chorus(with_turns(plan, settings.jobs // 10), chorus)
    waiting = {item.number for item in plan.items if item.lane == FIRST}
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        door = crew.start("door", lanes=[FIRST], slots=0)
        until(
            "the fair pool is filled", lambda: progress.look() and waiting <= progress.acked.keys()
        )
        door.terminate()
        settings.say(f"{len(waiting)} jobs wait in the fair pool")
        for number in range(PROCESSES):
            singers = range(FIRST + 1 + number, FIRST + 1 + chorus, PROCESSES)
            crew.start(f"worker-{number}", lanes=[number, *singers], slots=SLOTS)
        crew.finish()
    verdict = check(ground.folder)
    history = History(ground.folder)
    verdict.faults += unfair(history)
    shares = Counter(run.life for run in history.attempts)
    if len(shares) != PROCESSES:
        verdict.faults.append(f"missed: only {sorted(shares)} have worked")
    most = most_leased(history)[POOL]
    if most != CAP:
        verdict.faults.append(f"missed: the fair pool had {most} leases at most, not its {CAP}")
    if again := [
        id for id, runs in history.attempts_of.items() if needless(history, id, len(runs))
    ]:
        verdict.faults.append(f"duplicated: {again} ran more than once without a fault")
    verdict.figures |= {"processes": len(shares), "least_share": min(shares.values())}
    return verdict


def with_turns(plan: Plan, per_key: int) -> Plan:
    """Return a plan with an additional fair pool in which every key has as many jobs."""
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


def with_chorus(plan: Plan, count: int) -> Plan:
    """Return a plan with many additional turns of one session, submitted everywhere at once."""
    start = len(plan.items)
    turns = [
        Item(start + one, "brief", 0.002, "chorus", FIRST + 1 + one, session="chorus")
        for one in range(count)
    ]
    return replace(plan, items=(*plan.items, *turns))


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
