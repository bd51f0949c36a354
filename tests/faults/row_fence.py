"""The row of the fence: a worker that was declared dead continues."""

from __future__ import annotations

import asyncio

from poolhand.durable.worker.executor import crashed
from poolhand.runtime import Runtime
from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import begin, until
from tests.faults.ground import Ground
from tests.faults.history import History
from tests.faults.load import Item, Plan
from tests.faults.opened import opened
from tests.faults.rows import Settings

JOBS = 4


def fence(ground: Ground, settings: Settings) -> Verdict:
    """Expire a worker while its jobs run; another one completes them, then the first one ends."""
    plan = Plan(tuple(Item(number, "held") for number in range(JOBS)))
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        one = crew.start("one", lanes=[0], slots=JOBS)
        progress.until_runs(JOBS, one.name)
        # To the checker a fault like any other: from here on its leases are lost.
        crew.blows.write("stop", life=one.name, phases=[])
        asyncio.run(bury_all(ground.url))
        other = crew.start("other", slots=JOBS)
        progress.until_runs(JOBS, other.name)
        crew.open_gate(one.name)
        until(
            "the first one has ended late",
            lambda: progress.look() and not progress.running[one.name],
        )
        crew.open_gate(other.name)
        crew.finish()
    verdict = check(ground.folder)
    history = History(ground.folder)
    late = [run for run in history.attempts if run.life == one.name and run.how == "returned"]
    kept = [job for job in history.jobs.values() if job["attempts"] == 2 and job["crashes"] == 1]
    if len(late) != JOBS:
        verdict.faults.append(f"missed: only {len(late)} of {JOBS} jobs ended late")
    if len(kept) != JOBS:
        verdict.faults.append(f"overwritten: {JOBS - len(kept)} jobs, by a lease that was lost")
    verdict.figures["late_results"] = len(late)
    return verdict


async def bury_all(url: str) -> None:
    """Expire the leases of all owners, as a reaper does that counts them as dead."""
    async with opened(url) as store:
        for lease in await store.leases():
            claims = await store.expire_owner(lease.owner.id, lease.renewal)
            await store.replace([crashed(claim, Runtime().wall()) for claim in claims])
