"""The row of poison: jobs that kill their process, among many good ones."""

from __future__ import annotations

from random import Random

from tests.faults.checker import Verdict, check
from tests.faults.crew import RunFailed, begin
from tests.faults.ground import Ground
from tests.faults.history import History
from tests.faults.load import LANES, Item, Plan
from tests.faults.rows import Settings

POISONS = 3
SLOTS = 4
MOST_DEATHS = 2 * POISONS  # crashes beside others; from then on a poison job has its own process


def poison(ground: Ground, settings: Settings) -> Verdict:
    """Restart the process whenever a poison job has killed it, until all is over."""
    plan = some_poisoned(settings.seed, max(20, settings.jobs // 5))
    deaths = 0
    with begin(ground, plan) as crew:
        crew.allow_end()
        while crew.start(lanes=list(range(LANES)), pause=0.02, slots=SLOTS).wait():
            deaths += 1
            settings.say(f"the process died {deaths} times")
            if deaths > MOST_DEATHS:
                raise RunFailed(f"{POISONS} poisons killed the process {deaths} times")
        crew.finish()
    verdict = check(ground.folder)
    dead = [job for job in History(ground.folder).jobs.values() if job["dead"]]
    if len(dead) != POISONS:
        verdict.faults.append(f"wrong_end: {len(dead)} jobs are dead, not {POISONS}")
    verdict.figures |= {"deaths": deaths, "dead": len(dead)}
    return verdict


def some_poisoned(seed: int, good: int, poisons: int = POISONS) -> Plan:
    """Return good jobs with poison jobs spread among them."""
    random = Random(f"poison {seed}")
    places = {(one + 1) * good // (poisons + 1) for one in range(poisons)}
    return Plan(
        tuple(
            # With a key: it may kill the process before its acknowledgement is written.
            Item(number, "poison", lane=number % LANES, idempotency_key=f"poison-{number}")
            if number in places
            else Item(
                number,
                random.choice(("brief", "brief", "threaded")),
                random.uniform(0.005, 0.05),
                lane=number % LANES,
            )
            for number in range(good + poisons)
        )
    )
