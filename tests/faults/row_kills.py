"""Rows that kill: the only process, restarted each time, or one of several."""

from __future__ import annotations

from random import Random
from threading import Event
from typing import Any

from tests.faults.aim import PHASES, Progress, shots
from tests.faults.checker import Verdict, check
from tests.faults.crew import begin
from tests.faults.figures import hits, rerun_seconds
from tests.faults.ground import Ground
from tests.faults.history import JOB_LOST, History
from tests.faults.load import LANES, Item, Plan, standard
from tests.faults.rows import Settings

PAUSE = 0.7  # seconds between two submits of a lane, so that kills spread over the run
REST_EVERY = 5  # attempts: no job may be given up, however often it loses its process
SLOTS = 10
RERUN_SECONDS = 5.0
APART = 8.0  # seconds between two kills of one of two workers, about
AT_WORK = ("claim", "run", "settle")  # phases in which a worker that submits nothing can be killed


def kills(ground: Ground, settings: Settings) -> Verdict:
    """Kill the only process again and again, at seeded moments, and restart it."""
    plan = standard(settings.seed, settings.jobs, settings.longest)
    pause = settings.pace * PAUSE * 10 * settings.kills / settings.jobs
    role: dict[str, Any] = {"lanes": list(range(LANES)), "pause": pause, "slots": SLOTS}
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        for number, shot in enumerate(shots(settings.seed, settings.kills), start=1):
            life = crew.start(**role)
            if number % REST_EVERY == 0:
                progress.until_rested(life)
            hit = shot.fire(life, progress)
            if number % 10 == 0:
                done = progress.look()
                settings.say(f"kill {number} at {done:.0%}, hit {', '.join(sorted(hit)) or 'none'}")
        crew.start(**role)
        crew.finish()
    verdict = check(ground.folder)
    history = History(ground.folder)
    verdict.faults += missed(history, PHASES)
    verdict.faults += slot_given_twice(history)
    verdict.figures |= hit_figures(history)
    return verdict


def workers(ground: Ground, settings: Settings) -> Verdict:
    """Kill one of two workers, a fifth as often; the other takes over, then it is restarted."""
    random = Random(f"workers {settings.seed}")
    count = max(1, settings.kills // 5)
    plan = standard(settings.seed, settings.jobs, settings.longest)
    # If workers live for less than the longest jobs take, those never end: they fill all slots,
    # and interrupted jobs wait for one.
    pause = APART * count * LANES / settings.jobs
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        crew.start("door", lanes=list(range(LANES)), pause=pause, slots=0)
        living = [crew.start(f"worker-{number}", slots=SLOTS) for number in range(2)]
        for number, shot in enumerate(shots(settings.seed, count, AT_WORK), start=1):
            which = random.randrange(2)
            hit = shot.fire(living[which], progress)
            settings.say(f"kill {number} of {count}, hit {', '.join(sorted(hit)) or 'none'}")
            Event().wait(random.uniform(0.0, 2.0))
            living[which] = crew.start(f"worker-{which}", slots=SLOTS)
        crew.finish()
    verdict = check(ground.folder)
    history = History(ground.folder)
    longest = max(rerun_seconds(history), default=0.0)
    if longest > RERUN_SECONDS:
        verdict.faults.append(f"late: a job ran again {longest:.1f} s after its process was killed")
    verdict.faults += missed(history, AT_WORK) if count > 2 * len(AT_WORK) else []
    verdict.figures |= {"rerun_s": longest, **hit_figures(history)}
    return verdict


def restart(ground: Ground, settings: Settings) -> Verdict:
    """Kill the only process while all its slots are busy: its next life reclaims all at once."""
    plan = Plan(tuple(Item(number, "brief", 1.0) for number in range(2 * SLOTS)))
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        first = crew.start(lanes=[0], slots=SLOTS)
        progress.until_runs(SLOTS, first.name)
        first.kill()
        crew.start(lanes=[0], slots=SLOTS)
        crew.finish()
    verdict = check(ground.folder)
    history = History(ground.folder)
    verdict.faults += slot_given_twice(history)
    kinds = [
        "lost" if record["body"].get("error") == JOB_LOST else record["kind"]
        for record in history.audit
    ]
    took_back = kinds.count("lost")
    first_back = kinds.index("lost") if took_back else 0
    if took_back != SLOTS or "pool_dequeue" in kinds[first_back : first_back + SLOTS]:
        verdict.faults.append(f"late: {took_back} of {SLOTS} leases taken back, in {kinds}")
    verdict.figures["rerun_s"] = max(rerun_seconds(history), default=0.0)
    return verdict


def hit_figures(history: History) -> dict[str, float]:
    counts = hits(history)
    return {f"hit_{phase}": counts[phase] for phase in (*PHASES, "lock")}


def missed(history: History, phases: tuple[str, ...]) -> list[str]:
    """A run whose kills never hit a phase proves nothing about it."""
    counts = hits(history)
    return [f"missed: no kill hit {phase}" for phase in phases if not counts[phase]]


def slot_given_twice(history: History) -> list[str]:
    """With one process at a time, it reclaims the jobs of its predecessor before it claims."""
    holders: dict[int, str] = {}
    slots: dict[str, int] = {}
    faults = []
    for record in history.audit:
        id = record["body"].get("task_id")
        if record["kind"] == "pool_dequeue":
            slot = record["body"]["slot_index"]
            if slot in holders:
                faults.append(f"slot_given_twice: {slot} to {id} while {holders[slot]} held it")
            holders[slot], slots[id] = id, slot
        elif id in slots and record["kind"] in ("pool_retry", "pool_outcome"):
            holders.pop(slots.pop(id), None)
    return faults
