"""The row of the fence: a worker that was given up, and goes on as if it had not been."""

from __future__ import annotations

import asyncio
from pathlib import Path

from poolhand.execute.executor import crashed
from poolhand.runtime import Runtime
from poolhand.stores.sqlite import SqliteStore
from tests.faults import outside
from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import until
from tests.faults.history import History
from tests.faults.load import Item, Plan
from tests.faults.row_kills import begin
from tests.faults.rows import Settings

JOBS = 4


def fence(folder: Path, settings: Settings) -> Verdict:
    """Bury a worker while its jobs run; another runs them to their end, then the first one ends."""
    plan = Plan(tuple(Item(number, "held") for number in range(JOBS)))
    with begin(folder, plan) as crew:
        progress = Progress(folder, plan)
        one = crew.start("one", lanes=[0], slots=JOBS)
        progress.until_runs(JOBS, one.name)
        # To the checker a blow like any other: from here on its leases are not its own.
        crew.blows.write("stop", life=one.name, phases=[])
        asyncio.run(bury_all(folder / outside.STORE))
        other = crew.start("other", slots=JOBS)
        progress.until_runs(JOBS, other.name)
        open_gate(folder, one.name)
        until(
            "the first one has ended late",
            lambda: progress.look() and not progress.running[one.name],
        )
        open_gate(folder, other.name)
        crew.finish()
    verdict = check(folder)
    history = History(folder)
    late = [run for run in history.attempts if run.life == one.name and run.how == "returned"]
    kept = [job for job in history.jobs.values() if job["attempts"] == 2 and job["crashes"] == 1]
    if len(late) != JOBS:
        verdict.faults.append(f"missed: only {len(late)} of {JOBS} jobs ended late")
    if len(kept) != JOBS:
        verdict.faults.append(f"overwritten: {JOBS - len(kept)} jobs, by a lease that was lost")
    verdict.figures["late_results"] = len(late)
    return verdict


def open_gate(folder: Path, life: str) -> None:
    """Let the held jobs of a process go on."""
    (folder / f"gate-{life}").touch()


async def bury_all(path: Path) -> None:
    """Take back the leases of all owners, as a reaper does that holds them for dead."""
    store = SqliteStore(path, Runtime())
    await store.open()
    try:
        for lease in await store.leases():
            claims = await store.bury(lease.owner.id, lease.renewal)
            await store.replace([crashed(claim, Runtime().wall()) for claim in claims])
    finally:
        await store.close()
