"""The row of tools: processes are killed inside calls that must happen once."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from random import Random

from tests.faults import outside
from tests.faults.checker import Verdict
from tests.faults.crew import Crew, Life, RunFailed, begin, export, pass_time, until
from tests.faults.farm_crew import start_farm
from tests.faults.ground import Ground
from tests.faults.load import Plan
from tests.faults.outside import Line, Tail
from tests.faults.rows import Settings
from tests.faults.tools_checker import BEFORE, check

RUN = ("-c", "from tests.faults.tools_runner import run; run()")
APP = "tests.faults.tools_app:app"
AIMS = ("enter", "effect", "leave")
LATE = 0.02  # the largest delay in seconds of a kill after its aim
FARM_EVERY = 5
NEW_JOBS = 3  # of each process, with three calls each
MOST_SEEN = 6  # calls of a process, of which the last is the one to hit
ENOUGH = 30  # kills from which on every part of a call must have been hit
AIM_PAUSE = 0.0005
LAST = 600.0  # seconds for the remaining jobs: suspects run one by one


def tools(ground: Ground, settings: Settings) -> Verdict:
    """Kill processes in calls, twice as often as elsewhere; then decide the unknown calls."""
    random = Random(f"tools {settings.seed}")
    count = 2 * settings.kills
    with begin(ground, Plan(())) as crew:
        crew.environment["PYTHONHASHSEED"] = "random"
        effects = Tail(ground.folder / outside.EFFECTS)
        for number in range(count):
            crew.environment["FAULTS_RING"] = random.choice("ab")
            crew.environment["FAULTS_CODEC"] = random.choice(("json", "msgpack"))
            aim = AIMS[number % len(AIMS)]
            jobs = list(range(number * NEW_JOBS, (number + 1) * NEW_JOBS))
            if number % FARM_EVERY == FARM_EVERY - 1:
                start(crew, numbers=jobs, until="submitted").wait()
                kill_in_farm(crew, effects, aim, random)
            else:
                life = start(crew, numbers=jobs)
                until_seen(effects, life, aim, random)
                life.kill()
            settings.say(f"kill {number + 1} of {count}, aimed at {aim}")
        start(crew, until="over").wait(LAST)
        export(ground.folder)
        shutil.copy(ground.folder / outside.JOBS, ground.folder / BEFORE)
        start(crew, until="settled").wait(LAST)
        crew.finish()
    verdict = check(ground.folder)
    hit = Counter({part: verdict.figures[f"hit_{part}"] for part in ("before", "during", "after")})
    if count >= ENOUGH:
        verdict.faults += [
            f"missed: no kill fell {part} an effect" for part in hit if not hit[part]
        ]
    return verdict


def start(crew: Crew, **role: object) -> Life:
    """Start a process that submits jobs and works."""
    life = Life(crew, crew.next_name("tools"), crew.ground.url, [*RUN, json.dumps(role)])
    crew.lives.append(life)
    return life


def kill_in_farm(crew: Crew, effects: Tail, aim: str, random: Random) -> None:
    """Kill the worker of a farm in a call, then stop or kill the farm."""
    farm = start_farm(crew, workers=1, slots=4, app=APP)
    until_seen(effects, farm, aim, random)
    for worker in farm.workers():
        worker.kill()
    if random.random() < 0.5:
        farm.kill()
    else:
        farm.terminate()


def until_seen(effects: Tail, life: Life, aim: str, random: Random) -> None:
    """Wait until a process makes a call, and a moment longer."""
    seen: list[Line] = []
    count = random.randint(1, MOST_SEEN)

    def look() -> bool:
        if not life.alive:
            raise RunFailed(f"{life.name} ended by itself: {life.log.read_text()[-2000:]}")
        seen.extend(one for one in effects.news() if (one["what"], one["life"]) == (aim, life.name))
        return len(seen) >= count

    until(f"a call of {life.name} is at {aim}", look, pause=AIM_PAUSE)
    pass_time(float(seen[-1]["at"]), random.random() * LATE)
