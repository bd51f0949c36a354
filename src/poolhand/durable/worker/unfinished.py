"""Jobs that still run when their worker has to end: which ones, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from poolhand.durable.leases.heartbeat import LEASE
from poolhand.durable.worker.running_claim import RunningClaim
from poolhand.rules.values.escape import safe

MOST_NAMED = 5
LONGEST_NAME = 200


class Unfinished(Struct, frozen=True):
    """A job that was still running when its worker had to end.

    `fails`: it must not start again, as `on_crash="fail"` says. `stuck`: its code did not stop.
    """

    id: str
    name: str
    in_thread: bool = False
    fails: bool = False
    stuck: bool = False

    def __str__(self) -> str:
        return f"job {self.id} of task {safe(self.name[:LONGEST_NAME])!r}"


def unfinished(work: RunningClaim, stuck: bool = False) -> Unfinished:
    """Return the record of a running job."""
    job, brief = work.job, work.errand.brief
    return Unfinished(job.id, job.name, work.run_in == "thread", not brief.rerun, stuck)


def draining_text(jobs: int, seconds: float) -> str:
    """Say how many jobs a drain waits for, and how long at most."""
    return f"stopping: {_are(jobs)} still running; waiting up to {seconds:g} s"


def stopping_text(jobs: Sequence[Unfinished]) -> str:
    """Return a text on what becomes of the jobs that run when their worker must stop now."""
    threads = [one for one in jobs if one.in_thread]
    others = len(jobs) - len(threads)
    parts = [f"{_are(others)} handed back to the store"] if others else []
    if threads:
        runs, goes, is_back = ("runs", "it runs", "is") if len(threads) == 1 else _MANY
        parts.append(
            f"{_named(threads)} {runs} in a thread, which cannot be stopped: {goes} on until the "
            f"code ends or this process ends, and {is_back} handed back then"
        )
    return "; ".join(parts)


_MANY = ("run", "they run", "are")


def stopped_text(jobs: Sequence[Unfinished], seconds: float) -> str:
    """Return a text on which jobs still ran when their worker ended, and what became of them."""
    within = f" after {seconds:g} s" if seconds else ""
    parts = [f"{_were(len(jobs))} still running{within}"]
    back = [one for one in jobs if not (one.stuck or one.fails)]
    failed = [one for one in jobs if one.fails and not one.stuck]
    stuck = [one for one in jobs if one.stuck]
    if back:
        parts.append(f"handed back to the store, to run again: {_named(back)}")
    if failed:
        parts.append(f"failed, as on_crash='fail' says: {_named(failed)}")
    if stuck:
        where = "in a thread, " if all(one.in_thread for one in stuck) else ""
        again = "fails" if all(one.fails for one in stuck) else "runs again in another worker"
        parts.append(
            f"not stopped: {_named(stuck)}; the code runs on {where}until it ends or this process "
            f"ends, its result is discarded, and the job {again} when this process has ended, at "
            f"the latest after about {LEASE:.0f} s"
        )
    return "; ".join(parts)


def cut_short_text(jobs: Sequence[Unfinished]) -> str:
    """Return a text on the jobs that a worker process could not finish before it ends."""
    back = [one for one in jobs if not one.fails]
    failed = [one for one in jobs if one.fails]
    parts = [f"{_were(len(jobs))} still running when the worker had to end"]
    if back:
        threads = sum(one.in_thread for one in back)
        ends = ""
        if threads:
            ends = f" ({threads} in a thread, which ends with its process)"
        parts.append(f"handed back to the store, to run again: {_named(back)}{ends}")
    if failed:
        parts.append(f"failed, as on_crash='fail' says: {_named(failed)}")
    return "; ".join(parts)


def _named(jobs: Sequence[Unfinished]) -> str:
    more = f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else ""
    return ", ".join(str(one) for one in jobs[:MOST_NAMED]) + more


def _are(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"


def _were(count: int) -> str:
    return "1 job was" if count == 1 else f"{count} jobs were"
