"""Rows of jobs that kill or block the workers of their farm."""

from __future__ import annotations

from tests.faults import outside
from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import Crew, begin, until
from tests.faults.farm_crew import SLOTS, WORKERS, Farm, finish, start_farm
from tests.faults.ground import Ground
from tests.faults.history import Attempt, History
from tests.faults.load import LANES, Item, Plan
from tests.faults.row_inside import BLOCKED, DOOR, NAMED_SECONDS, repeated
from tests.faults.row_poison import some_poisoned
from tests.faults.rows import Settings

POISONS = 5
GOOD = 495
NEIGHBOURS = WORKERS * SLOTS - 4  # jobs that run when the loop of one worker is blocked


def farm_poison(
    ground: Ground, settings: Settings, good: int = GOOD, poisons: int = POISONS
) -> Verdict:
    """Let jobs kill the workers they run in, among many good ones."""
    plan = some_poisoned(settings.seed, good, poisons)
    with begin(ground, plan) as crew:
        start_farm(crew)
        crew.start("door", lanes=list(range(LANES)), pause=0.02, slots=0)
        finish(crew)
        deaths = note_deaths(crew, plan)
    verdict = check(ground.folder)
    dead = [job for job in History(ground.folder).jobs.values() if job["dead"]]
    if len(dead) != poisons:
        verdict.faults.append(f"wrong_end: {len(dead)} jobs are dead, not {poisons}")
    verdict.figures |= {"deaths": deaths, "dead": len(dead)}
    return verdict


def note_deaths(crew: Crew, plan: Plan) -> int:
    """Record which workers died of a poison job, and return how many.

    A poison job that runs alone kills a process of its own, and no worker.
    """
    poisons = {item.number for item in plan.items if item.task == "poison"}
    deaths = 0
    for line in outside.read(crew.folder / outside.EFFECTS):
        worker = line["life"].rpartition(".")[2] == str(line["pid"])
        if line["what"] == "begin" and line["number"] in poisons and worker:
            at, life = line["at"], line["life"]
            crew.blows.write("died", at=at, gone=at + 1.0, life=life, code=-9, said="")
            deaths += 1
    return deaths


def farm_blocked(ground: Ground, settings: Settings, seconds: float = 3.0) -> Verdict:
    """Let a job block the event loop of its worker while others run in it, and in another."""
    beside = range(NEIGHBOURS + 1, NEIGHBOURS + 1 + int(seconds * 20))
    neighbours = (
        Item(number, "threaded" if number % 2 else "brief", 1.0) for number in range(NEIGHBOURS)
    )
    plan = Plan(
        (
            *neighbours,
            Item(NEIGHBOURS, "blocker", seconds),
            *(Item(number, "brief", 0.05, lane=DOOR) for number in beside),
        )
    )
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        farm = start_farm(crew)
        before = [worker.pid for worker in farm.until_ready()]
        crew.start("door", lanes=[0], slots=0)
        until(
            "it blocks",
            lambda: progress.look() or any(NEIGHBOURS in one for one in progress.running.values()),
        )
        settings.say(f"a job blocks the event loop of its worker for {seconds:g} s")
        crew.start("door", lanes=[DOOR], pause=0.03, slots=0)
        until("all is over", lambda: progress.look() >= 1.0, 2 * 60.0)
        after = [worker.pid for worker in farm.ready()]
        said = [text for _, text in farm.told() if "leaving" in text or "replaced" in text]
        finish(crew)
    verdict = check(ground.folder)
    if before != after or said:
        verdict.faults.append(f"replaced: workers {before} are {after}; the farm said {said}")
    judge_blocked(verdict, History(ground.folder), farm)
    return verdict


def judge_blocked(verdict: Verdict, history: History, farm: Farm) -> None:
    """Return what happened to the neighbours of a blocking job, and when it was named."""
    blocker = next(run for run in history.attempts if run.number == NEIGHBOURS)
    assert blocker.ended is not None
    named = [
        at - blocker.began
        for at, text in farm.told()
        if "farm trouble" in text and "loop blocked" in text and blocker.job in text
    ]
    others = [run for run in history.attempts if run is not blocker]
    neighbours = [run for run in others if run.life == blocker.life and runs_at(run, blocker.began)]
    meanwhile = [run for run in others if run.ended and blocker.began < run.ended < blocker.ended]
    elsewhere = [run for run in meanwhile if run.life != blocker.life]
    for what, found in (
        ("job that blocked its loop was named", named),
        ("job ran beside it", neighbours),
        ("job ended in the other worker meanwhile", elsewhere),
    ):
        if not found:
            verdict.faults.append(f"missed: no {what}")
    verdict.faults += repeated(history)
    verdict.figures |= {
        "named_s": min(named, default=0.0),
        "neighbours": len(neighbours),
        "meanwhile": len(elsewhere),
    }


def runs_at(run: Attempt, moment: float) -> bool:
    return run.began <= moment < run.until


def timed_farm_blocked(ground: Ground, settings: Settings) -> Verdict:
    """The same for the promised duration; the job is named in time."""
    verdict = farm_blocked(ground, settings, BLOCKED)
    if verdict.figures["named_s"] > NAMED_SECONDS:
        verdict.faults.append(f"late: it was named after {verdict.figures['named_s']:.2f} s")
    return verdict
