"""The figures of a report, counted from the history of a run. Nothing of poolhand is imported."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

from tests.faults.history import JOB_LOST, TERMINAL, History


def figures(history: History, faults: list[str]) -> dict[str, float]:
    """Return the figures of a run."""
    found = Counter(fault.partition(":")[0] for fault in faults)
    again = [id for id in history.attempts_of if _crashed(history, id)]
    recovered = [id for id in again if history.jobs.get(id, {}).get("status") in TERMINAL]
    return {
        "accepted": len(history.accepted),
        "unknown": len(history.jobs.keys() - history.accepted),
        "lost": found["lost"],
        "unexpected": found["unexpected"] + found["doubled_key"],
        "duplicated": found["duplicated"] + found["overlap"],
        "recovered": len(recovered),
        "kills": len(history.kills()),
    }


def _crashed(history: History, id: str) -> bool:
    return any(
        record["kind"] == "pool_retry" and record["body"]["error"] == JOB_LOST
        for record in history.audit_of.get(id, [])
    )


def most_leased(history: History) -> Counter[str]:
    """Count the largest number of leases of each pool at a time, from the audit."""
    held: Counter[str] = Counter()
    most: Counter[str] = Counter()
    running: set[str] = set()
    for record in history.audit:
        id, pool = record["body"].get("task_id"), record["body"]["pool"]
        if record["kind"] == "pool_dequeue":
            running.add(id)
            held[pool] += 1
            most[pool] = max(most[pool], held[pool])
        elif id in running and record["kind"] in ("pool_retry", "pool_outcome"):
            running.remove(id)
            held[pool] -= 1
    return most


def rerun_seconds(history: History) -> list[float]:
    """Return how long each job waited whose process was killed or stopped while it ran."""
    return [
        following.began - run.cut
        for runs in history.attempts_of.values()
        for run, following in pairwise(runs)
        if run.cut < math.inf and "crash" in history.followed(run)
    ]


def hits(history: History) -> Counter[str]:
    """Count the phases that processes were in when they were killed."""
    return Counter(phase for blow in history.kills() for phase in blow["phases"])
