"""Rows that kill processes of a farm: its workers, its supervisor, a fully loaded worker."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from random import Random

from tests.faults.aim import Progress, shots
from tests.faults.checker import Verdict, check
from tests.faults.crew import begin
from tests.faults.farm_crew import WORKERS, Farm, finish, start_farm
from tests.faults.figures import rerun_seconds
from tests.faults.ground import Ground
from tests.faults.history import JOB_LOST, History
from tests.faults.load import LANES, Item, Plan, standard
from tests.faults.row_kills import AT_WORK, RERUN_SECONDS, hit_figures, missed
from tests.faults.rows import Settings

GONE_SECONDS = 5.0  # seconds within which workers without a supervisor end
MIDDLE = 0.8  # of a run, in which it is certain that jobs run
MANY = 200  # slots of a fully loaded worker
DONE_SECONDS = 5.0  # seconds within which all its jobs are done elsewhere


def farm_workers(ground: Ground, settings: Settings) -> Verdict:
    """Kill a worker of a farm, a fifth as often as in other rows; its supervisor replaces it."""
    random = Random(f"farm {settings.seed}")
    count = max(1, settings.kills // 5)
    plan = standard(settings.seed, settings.jobs, settings.longest)
    replaced = []
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        farm = start_farm(crew)
        crew.start("door", lanes=list(range(LANES)), pause=pause_for(settings, count), slots=0)
        for number, shot in enumerate(shots(settings.seed, count, AT_WORK), start=1):
            progress.until_at(shot.at, farm)
            hit = shot.fire(random.choice(farm.until_ready()), progress)
            at = time.monotonic()
            farm.until_ready()
            replaced.append(time.monotonic() - at)
            settings.say(f"kill {number} of {count}, hit {', '.join(sorted(hit)) or 'none'}")
        finish(crew)
    verdict = check(ground.folder)
    history = History(ground.folder)
    longest = max(rerun_seconds(history), default=0.0)
    if longest > RERUN_SECONDS:
        verdict.faults.append(f"late: a job ran again {longest:.1f} s after its worker was killed")
    verdict.faults += missed(history, AT_WORK) if count > 2 * len(AT_WORK) else []
    verdict.figures |= {"rerun_s": longest, "replaced_s": max(replaced), **hit_figures(history)}
    return verdict


def pause_for(settings: Settings, blows: int) -> float:
    """Return the pause of a lane between two submits, so that faults spread over the run.

    Workers live about as long as the longest jobs take, or those would never end.
    """
    return max(2.0, 0.8 * settings.longest) * blows * LANES / settings.jobs


def farm_supervisor(ground: Ground, settings: Settings) -> Verdict:
    """Kill the supervisor: its workers hand back their jobs and end; then it is started again."""
    count = max(1, settings.kills // 20)
    plan = with_steady(standard(settings.seed, settings.jobs, settings.longest))
    gone = []
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        crew.start("door", lanes=[*range(LANES + 1)], pause=pause_for(settings, count), slots=0)
        for number, shot in enumerate(shots(settings.seed, count), start=1):
            farm = start_farm(crew)
            farm.until_ready()
            progress.until_at(MIDDLE * shot.at, farm)
            progress.until_runs(1, *(worker.name for worker in farm.workers()))
            gone.append(kill_supervisor(farm))
            settings.say(f"kill {number} of {count}, all gone after {gone[-1]:.2f} s")
        start_farm(crew)
        finish(crew)
    verdict = check(ground.folder)
    history = History(ground.folder)
    if max(gone) > GONE_SECONDS:
        verdict.faults.append(f"late: a worker was there {max(gone):.1f} s after its supervisor")
    back, crashes = handed_back(history), crashed(history)
    if not back:
        verdict.faults.append("missed: no job was handed back")
    verdict.faults += [f"charged: job {id} paid for the end of its farm" for id in crashes]
    verdict.figures |= {"gone_s": max(gone), "handed_back": back, "crashes": len(crashes)}
    return verdict


def with_steady(plan: Plan) -> Plan:
    """Return a plan with an additional lane of jobs that take a while, so that some always run."""
    start = len(plan.items)
    steady = [Item(start + one, "brief", 0.5, lane=LANES) for one in range(start // LANES)]
    return replace(plan, items=(*plan.items, *steady))


def kill_supervisor(farm: Farm) -> float:
    """Kill a supervisor and return the seconds until the last of its workers was gone."""
    workers = farm.workers()
    at = time.monotonic()
    farm.kill()
    ends = [worker.until_gone() for worker in workers]
    for worker, end in zip(workers, ends, strict=True):
        # Not killed, but ended at once because its supervisor is gone.
        farm.note("term", at=at, gone=end, life=worker.name)
    return max(ends) - at


def handed_back(history: History) -> int:
    """Count how often a job was handed back without a charge."""
    return sum(
        after["kind"] == "pool_retry" and after["body"]["attempt"] < before["body"]["attempt"]
        for records in history.audit_of.values()
        for before, after in pairwise(records)
        if before["kind"] == "pool_dequeue"
    )


def crashed(history: History) -> list[str]:
    """Return the jobs that were charged for the end of their process."""
    return [
        id
        for id, records in history.audit_of.items()
        if any(one["body"].get("error") == JOB_LOST for one in records)
    ]


def farm_crash(ground: Ground, settings: Settings, many: int = MANY) -> Verdict:
    """Kill a worker with all slots busy, beside another one with the same load."""
    # Together: all are stored before the first of them is over.
    plan = Plan(tuple(Item(number, "brief", 1.0, batch=0) for number in range(2 * many)))
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        farm = start_farm(crew, slots=many)
        one, _ = farm.until_ready(WORKERS)
        crew.start("door", lanes=[0], slots=0)
        progress.until_runs(many, one.name)
        at = time.monotonic()
        one.kill()
        settings.say(f"killed with {many} jobs running")
        finish(crew)
    verdict = check(ground.folder)
    history = History(ground.folder)
    cut = {run.job for run in history.attempts if run.life == one.name and run.cut < float("inf")}
    ends = [run.ended - at for run in history.attempts if run.job in cut and run.ended is not None]
    if verdict.figures["recovered"] != many:
        verdict.faults.append(f"missed: {verdict.figures['recovered']} jobs were hit, not {many}")
    rerun = max(rerun_seconds(history), default=0.0)
    verdict.figures |= {"rerun_s": rerun, "done_s": max(ends)}
    return verdict


def timed_crash(ground: Ground, settings: Settings) -> Verdict:
    """The same, and all jobs are done in time."""
    verdict = farm_crash(ground, settings)
    if verdict.figures["done_s"] > DONE_SECONDS:
        verdict.faults.append(f"late: all was done after {verdict.figures['done_s']:.1f} s")
    return verdict
