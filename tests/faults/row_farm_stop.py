"""Rows of orders to a farm: stop, replace its workers, stop beside another farm."""

from __future__ import annotations

import time
from random import Random

from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import begin, until
from tests.faults.farm_crew import SLOTS, WORKERS, Farm, finish, start_farm
from tests.faults.ground import Ground
from tests.faults.history import History
from tests.faults.load import LANES, Item, Plan
from tests.faults.row_drain import EXIT_SECONDS, GRACE, LONG, charged
from tests.faults.row_farm import crashed, handed_back
from tests.faults.row_inside import repeated
from tests.faults.rows import Settings

FAST_SECONDS = 1.0  # seconds from the second signal to the end
LONG_GRACE = 15.0
ROLLING = 5  # times the usual number of jobs
RENEWALS = 2
GENERATIONS = RENEWALS + 1


def farm_term(ground: Ground, settings: Settings) -> Verdict:
    """Stop a farm while half of its running jobs take longer than its grace; another at once."""
    tasks = ("brief", "brief", "polite")
    plan = Plan(
        tuple(
            Item(number, tasks[number % len(tasks)], LONG if number % 2 else 0.6)
            for number in range(WORKERS * SLOTS * 3 // 2)
        )
    )
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        first = start_farm(crew, grace=GRACE)
        first.until_ready()
        crew.start("door", lanes=[0], slots=0)
        until_busy(progress, first, SLOTS)
        seconds = first.terminate()
        second = start_farm(crew, grace=LONG_GRACE)
        # Fewer: a farm that is ready first may have done much of the rest.
        until_busy(progress, second, SLOTS // 2)
        fast = second.stop_twice()
        settings.say(f"ended after {seconds:.2f} s, and {fast:.2f} s when told twice")
        start_farm(crew)
        finish(crew)
    verdict = check(ground.folder)
    history = History(ground.folder)
    verdict.faults += charged(history)
    back = handed_back(history)
    lives = {run.life.partition(".")[0] for run in history.attempts if run.how == "CancelledError"}
    if lives != {first.name, second.name}:
        verdict.faults.append(f"missed: jobs were cut short in {sorted(lives)}")
    verdict.figures |= {"exit_s": seconds, "fast_s": fast, "handed_back": back}
    return verdict


def until_busy(progress: Progress, farm: Farm, slots: int) -> None:
    """Wait until so many slots of each worker of a farm are busy."""
    progress.until_runs(slots, *(worker.name for worker in farm.until_ready()))


def timed_term(ground: Ground, settings: Settings) -> Verdict:
    """The same, both within the promised time."""
    verdict = farm_term(ground, settings)
    for name, most in (("exit_s", EXIT_SECONDS), ("fast_s", FAST_SECONDS)):
        if verdict.figures[name] > most:
            verdict.faults.append(f"late: {name} is {verdict.figures[name]:.2f}, not {most:g}")
    return verdict


def farm_rolling(ground: Ground, settings: Settings, seconds: float = 60.0) -> Verdict:
    """Replace all workers of a farm twice while it works."""
    lanes = GENERATIONS * LANES
    plan = harmless(settings.seed, ROLLING * settings.jobs, min(2.0, settings.longest), lanes)
    pause = seconds * LANES / len(plan.items)
    windows = []
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        farm = start_farm(crew)
        for generation in range(GENERATIONS):
            farm.until_ready()
            # Each has its own gate: however long the one before took, there is work to do.
            own = list(range(generation, lanes, GENERATIONS))
            crew.start("door", lanes=own, pause=pause, slots=0)
            until("all work", lambda: progress.look() and all_have_begun(progress, farm))
            if generation < RENEWALS:
                progress.until_at((generation + 0.5) / GENERATIONS, farm)
                windows.append(renew(farm))
                settings.say(f"all replaced at {progress.look():.0%}")
        finish(crew)
    verdict = check(ground.folder)
    history = History(ground.folder)
    verdict.faults += repeated(history) + charged(history)
    workers = len({run.life for run in history.attempts})
    if workers != WORKERS * GENERATIONS:
        verdict.faults.append(f"missed: {workers} workers have worked")
    meanwhile = [
        run for run in history.attempts for since, until in windows if since < run.began < until
    ]
    if not meanwhile:
        verdict.faults.append("missed: nothing was begun while workers were replaced")
    verdict.figures |= {"workers": workers, "meanwhile": len(meanwhile)}
    return verdict


def all_have_begun(progress: Progress, farm: Farm) -> bool:
    return all(worker.name in progress.last_begun for worker in farm.workers())


def renew(farm: Farm) -> tuple[float, float]:
    """Have all workers of a farm replaced, and return when that began and was over."""
    old = farm.until_ready()
    began = time.monotonic()
    farm.renew()
    return began, max(worker.until_gone() for worker in old)


def harmless(seed: int, jobs: int, longest: float, lanes: int = LANES) -> Plan:
    """Return jobs that never fail, mostly 5 to 50 ms; one in a hundred takes longest."""
    random = Random(f"harmless {seed}")
    return Plan(
        tuple(
            Item(
                number,
                random.choice(("brief", "brief", "threaded")),
                longest if number % 100 == 50 else random.uniform(0.005, 0.05),
                lane=number % lanes,
            )
            for number in range(jobs)
        )
    )


def farm_two(ground: Ground, settings: Settings) -> Verdict:
    """Stop one of two farms on one store, then another at once; the other one continues."""
    plan = harmless(settings.seed, settings.jobs, min(2.0, settings.longest))
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        stays, leaves = start_farm(crew, "stays"), start_farm(crew, "leaves")
        before = [worker.pid for worker in stays.until_ready()]
        leaves.until_ready()
        pause = max(4.0, settings.jobs / 100) * LANES / settings.jobs
        crew.start("door", lanes=list(range(LANES)), pause=pause, slots=0)
        progress.until_at(0.3, leaves)
        until("both work", lambda: progress.look() and working(progress) == {"stays-0", "leaves-0"})
        leaves.terminate()
        done = progress.look()
        settings.say(f"one of two farms is gone at {done:.0%}")
        until("all is over", lambda: progress.look() >= 1.0, 2 * 60.0, 0.02)
        after = [worker.pid for worker in stays.ready()]
        said = [text for _, text in stays.told() if "leaving" in text or "trouble" in text]
        finish(crew)
    verdict = check(ground.folder)
    history = History(ground.folder)
    if done >= 1.0:
        verdict.faults.append("missed: all was done when a farm was stopped")
    if before != after or said:
        verdict.faults.append(f"touched: workers {before} are {after}; the farm said {said}")
    verdict.faults += charged(history)
    shares = [
        sum(run.life.startswith(f"{name}.") for run in history.attempts)
        for name in (stays.name, leaves.name)
    ]
    verdict.figures |= {"stayed": shares[0], "left": shares[1], "crashes": len(crashed(history))}
    return verdict


def working(progress: Progress) -> set[str]:
    """Return the farms that have run something."""
    return {life.partition(".")[0] for life in progress.last_begun}
