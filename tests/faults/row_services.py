"""The row of services: two apps with different tasks share a store, in one pool and in two."""

from __future__ import annotations

import json

from tests.faults import outside
from tests.faults.checker import Verdict
from tests.faults.crew import Crew, Life, begin, export, until
from tests.faults.ground import Ground
from tests.faults.load import Plan
from tests.faults.rows import Settings

RUN = ("-c", "from tests.faults.services_runner import run; run()")
OF_EACH = 5  # times the jobs of the settings
LAST = 900.0


def services(ground: Ground, settings: Settings) -> Verdict:
    """Let two services share a store; restart one and kill the other meanwhile."""
    verdict = Verdict()
    for name, pools in (("one", ("shared", "shared")), ("two", ("of-a", "of-b"))):
        played = play(ground.beside(name), settings, dict(zip("ab", pools, strict=True)))
        verdict.faults += [f"{name} pool{'s' * (name == 'two')}: {one}" for one in played.faults]
        verdict.figures |= {f"{figure}_{name}": n for figure, n in played.figures.items()}
    return verdict


def play(ground: Ground, settings: Settings, pools: dict[str, str]) -> Verdict:
    count = OF_EACH * settings.jobs
    with begin(ground, Plan(())) as crew:
        seen: set[tuple[str, int]] = set()
        tail = outside.Tail(ground.folder / outside.EFFECTS)

        def ran(share: float) -> bool:
            seen.update((one["service"], one["number"]) for one in tail.news())
            return len(seen) >= share * 2 * count

        working = {name: start(crew, name, pools, works=True) for name in pools}
        submitting = [start(crew, name, pools, numbers=[0, count]) for name in pools]
        until("a third has run", lambda: ran(1 / 3), LAST)
        working["b"].kill()
        settings.say(f"service b is killed at {len(seen)} of {2 * count}")
        working["b"] = start(crew, "b", pools, works=True)
        until("two thirds have run", lambda: ran(2 / 3), LAST)
        working["a"].terminate()
        settings.say(f"service a is restarted at {len(seen)} of {2 * count}")
        working["a"] = start(crew, "a", pools, works=True)
        for one in submitting:
            one.wait(LAST)
        until("all have run", lambda: ran(1.0), LAST)
        for one in working.values():
            one.terminate()
        crew.finish()
    export(ground.folder)
    return judge(ground, count)


def start(crew: Crew, service: str, pools: dict[str, str], **role: object) -> Life:
    words = json.dumps({"service": service, "pool": pools[service], **role})
    life = Life(crew, crew.next_name(f"service-{service}"), crew.ground.url, [*RUN, words])
    crew.lives.append(life)
    return life


def judge(ground: Ground, count: int) -> Verdict:
    """Judge by the files outside: every accepted job is completed, none is dead."""
    verdict = Verdict()
    accepted = {one["job"] for one in outside.read(ground.folder / outside.ACKS)}
    jobs = {one["id"]: one for one in outside.read(ground.folder / outside.JOBS)}
    dead = [id for id, job in jobs.items() if job["dead"]]
    open_ = [id for id, job in jobs.items() if job["status"] != "completed"]
    lost = accepted - jobs.keys()
    runs: dict[tuple[str, int], int] = {}
    for one in outside.read(ground.folder / outside.EFFECTS):
        call = (one["service"], one["number"])
        runs[call] = runs.get(call, 0) + 1
    for what, found in (("lost", lost), ("dead", dead), ("not completed", open_)):
        if found:
            verdict.faults.append(f"{what}: {len(found)}, first {sorted(found)[0]}")
    if len(accepted) != 2 * count or len(runs) != 2 * count:
        verdict.faults.append(f"{len(accepted)} accepted, {len(runs)} ran, of {2 * count}")
    again = sum(times - 1 for times in runs.values())
    verdict.figures = {"accepted": len(accepted), "dead": len(dead), "again": again}
    return verdict
