"""What must hold after every run, checked from outside: nothing of poolhand is imported.

It knows the plan, the records of submitters and jobs, the faults of the processes, and the store's
own account of its jobs and its audit. Each check yields its findings under the name of the broken
promise.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.faults.figures import figures, most_leased
from tests.faults.history import TERMINAL, Attempt, History, is_withdrawal
from tests.faults.outside import Line
from tests.faults.whole import damage

UNKNOWN = ("Unavailable",)  # refusals after which a job may exist all the same
STEPS = ("submit", "dequeue", "outcome")
PATH = re.compile(r"submit( dequeue retry)* dequeue outcome")
TAKEN_BACK = re.compile(r"submit( dequeue retry)*( dequeue)? outcome")
Faults = Iterator[str]


@dataclass
class Verdict:
    """The verdict of a run; `figures` are shown in the report, `faults` must be empty.

    `server` is the version of the store's server, if it has one.
    """

    faults: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    server: str = ""

    @property
    def holds(self) -> bool:
        return not self.faults


def check(folder: Path) -> Verdict:
    """Judge a run by the files that it left."""
    history = History(folder)
    verdict = Verdict()
    for one in CHECKS:
        verdict.faults += [f"{one.__name__}: {text}" for text in one(history)]
    verdict.figures = figures(history, verdict.faults)
    return verdict


# Conservation


def lost(history: History) -> Faults:
    """Every accepted job is kept and over."""
    for id in sorted(history.accepted):
        job = history.jobs.get(id)
        if job is None:
            yield f"job {id} was accepted and is not kept"
        elif job["status"] not in TERMINAL:
            yield f"job {id} was accepted and is {job['status']} in the end"
    for id, job in history.jobs.items():
        if id not in history.accepted and job["status"] not in TERMINAL:
            yield f"job {id}, never acknowledged, is {job['status']} in the end"


def unexpected(history: History) -> Faults:
    """Only submitted jobs are kept, and each once."""
    asked, answered = _tries(history)
    kept: dict[str, list[str]] = defaultdict(list)
    for id, job in history.jobs.items():
        kept[str(job["user"] or job["key"])].append(id)
    acked: dict[str, set[str]] = defaultdict(set)
    for line in history.acks:
        acked[line["mark"]].add(line["job"])
    for mark, ids in kept.items():
        if len(ids) > len(asked[mark]):
            yield f"try {mark} asked for {len(asked[mark])} jobs and {len(ids)} are kept"
        elif answered[mark] == len(asked[mark]):
            extra = sorted(set(ids) - acked[mark])
            if extra:
                yield f"try {mark} was answered, and {extra} are kept besides"
        if len(asked[mark]) > 1 and len(ids) < len(asked[mark]):
            yield f"only {len(ids)} of the {len(asked[mark])} jobs of batch {mark} are kept"


def _tries(history: History) -> tuple[dict[str, set[int]], Counter[str]]:
    """Return what each try submitted, and how many definite answers it got."""
    asked: dict[str, set[int]] = defaultdict(set)
    answered: Counter[str] = Counter()
    for line in history.submits:
        if line["what"] == "asked":
            asked[line["mark"]].add(line["number"])
        elif line["what"] == "ack" or line["error"] not in UNKNOWN:
            answered[line["mark"]] += 1
    return asked, answered


def unanswered(history: History) -> Faults:
    """Every submit is answered, unless its process was killed."""
    answers = Counter(line["mark"] for line in history.submits if line["what"] != "asked")
    for line in history.submits:
        if line["what"] != "asked" or answers[line["mark"]] or line["life"] in history.endings:
            continue
        yield f"item {line['number']} got no answer (try {line['mark']})"


def wrong_end(history: History) -> Faults:
    """Dead letters are exactly the jobs that had to fail."""
    ends = {item.task: item.ends for item in history.plan.items}
    for id, job in history.jobs.items():
        if id in history.taken_back and job["status"] == "cancelled":
            continue
        expected = ends.get(history.task_of(job), "completed")
        if job["status"] in TERMINAL and job["status"] != expected:
            yield f"job {id} ({job['name']}) is {job['status']}, not {expected}: {job['error']}"
        if job["dead"] != (job["status"] == "failed"):
            yield f"job {id} is {job['status']}, and dead is {job['dead']}"


def doubled_key(history: History) -> Faults:
    """One idempotency key is one job."""
    jobs: dict[str, set[str]] = defaultdict(set)
    for line in history.acks:
        key = history.items[line["number"]].idempotency_key
        if key is not None:
            jobs[key].add(line["job"])
    for id, job in history.jobs.items():
        if job["idempotency_key"] is not None:
            jobs[job["idempotency_key"]].add(id)
    for key, ids in jobs.items():
        if len(ids) > 1:
            yield f"key {key} stands for {sorted(ids)}"


# The audit


def gap(history: History) -> Faults:
    """The numbers of the audit have no gaps."""
    for number, record in enumerate(history.audit, start=1):
        if record["number"] != number:
            yield f"audit record {number} is missing; {record['number']} stands there"
            return


def disorder(history: History) -> Faults:
    """Each job is submitted, dequeued for each attempt, and over once."""
    for id, job in history.jobs.items():
        records = [one for one in history.audit_of.get(id, []) if not is_withdrawal(one)]
        path = PATH if id not in history.taken_back else TAKEN_BACK
        kinds = " ".join(record["kind"].removeprefix("pool_") for record in records)
        if not path.fullmatch(kinds):
            yield f"job {id} has the audit {kinds!r}"
        elif records[-1]["body"]["status"] != job["status"]:
            yield f"job {id} is {job['status']}, its audit says {records[-1]['body']['status']}"
        else:
            yield from _miscounted(id, records)


def _miscounted(id: str, records: list[Line]) -> Faults:
    used = 0
    for record in records[1:]:
        attempt = record["body"]["attempt"]
        if record["kind"] == "pool_dequeue" and attempt != used + 1:
            yield f"job {id}: attempt {attempt} follows {used}"
        used = attempt


def unknown_job(history: History) -> Faults:
    """The audit has no job that is not kept."""
    for id in history.audit_of.keys() - history.jobs.keys():
        yield f"the audit tells of job {id}, which is not kept"


# Effects


def unfounded_effect(history: History) -> Faults:
    """Code ran at most as often as it was dequeued; a completed job ran at least once."""
    for id, job in history.jobs.items():
        runs = history.attempts_of.get(id, [])
        dequeued = Counter(
            record["body"]["attempt"]
            for record in history.audit_of.get(id, [])
            if record["kind"] == "pool_dequeue"
        )
        begun = Counter(run.attempt for run in runs)
        if begun - dequeued:
            yield f"job {id} began {dict(begun)}, and was dequeued {dict(dequeued)}"
        returned = sum(run.how == "returned" for run in runs)
        if job["status"] == "completed" and not returned:
            yield f"job {id} is completed, but its code never came to its end"
        if returned > job["attempts"]:
            yield f"job {id} ended {returned} times in {job['attempts']} attempts"
    for id in history.attempts_of.keys() - history.jobs.keys():
        yield f"job {id} ran and is not kept"


def duplicated(history: History) -> Faults:
    """A job runs again only because it raised, was handed back, or a fault hit its process."""
    for id, runs in history.attempts_of.items():
        for run, _ in pairwise(runs):
            if not _may_run_again(history, run):
                yield f"job {id} ran again after attempt {run.attempt} ({run.how}) in {run.life}"


def _may_run_again(history: History, run: Attempt) -> bool:
    if run.how not in (None, "returned", "CancelledError"):
        return True
    followed = history.followed(run)
    if "crash" in followed and run.cut < math.inf:
        return True
    return "handed back" in followed and run.how == "CancelledError"


def stale_token(history: History) -> Faults:
    """Fencing tokens are given once and grow with every attempt of a job."""
    holders: dict[int, tuple[str, int]] = {}
    for run in history.attempts:
        holder = holders.setdefault(run.token, (run.job, run.attempt))
        if holder != (run.job, run.attempt):
            yield f"token {run.token} was given to {holder} and to {(run.job, run.attempt)}"
    for id, runs in history.attempts_of.items():
        by_time = sorted(runs, key=lambda run: run.began)
        tokens = [run.token for run in by_time]
        if any(one >= other for one, other in pairwise(tokens)):
            yield f"job {id} ran under the tokens {tokens}"


def overlap(history: History) -> Faults:
    """No two leases of one job, nor of one session, at a time."""
    for id, runs in history.attempts_of.items():
        yield from _overlaps(f"job {id}", runs)
    sessions: dict[str, list[Attempt]] = defaultdict(list)
    for run in history.attempts:
        session = history.items[run.number].session
        if session is not None:
            sessions[session].append(run)
    for session, runs in sessions.items():
        yield from _overlaps(f"session {session}", runs)


def _overlaps(what: str, runs: list[Attempt]) -> Faults:
    for one, other in pairwise(sorted(runs, key=lambda run: run.began)):
        if one.until > other.began:
            yield (
                f"{what}: token {one.token} in {one.life} ran until {one.until:.3f}, token"
                f" {other.token} in {other.life} began at {other.began:.3f}"
            )


def over_cap(history: History) -> Faults:
    """No pool and no key runs more at a time than it may."""
    pools: dict[str, list[Attempt]] = defaultdict(list)
    keys: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for run in history.attempts:
        item = history.items[run.number]
        pools[item.pool].append(run)
        keys[item.pool, item.key].append(run)
    for pool, cap in history.plan.caps.items():
        if (most := _most_at_once(pools[pool])) > cap:
            yield f"pool {pool} ran {most} at a time, its cap is {cap}"
    for (pool, key), runs in keys.items():
        allowed = history.plan.key_caps.get(pool, math.inf)
        if (most := _most_at_once(runs)) > allowed:
            yield f"key {key} of pool {pool} ran {most} at a time, its cap is {allowed}"


def _most_at_once(runs: list[Attempt]) -> int:
    steps = [(run.began, 1) for run in runs] + [(run.until, -1) for run in runs]
    now = most = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def over_claimed(history: History) -> Faults:
    """No pool has more leases at a time than allowed, by the audit."""
    most = most_leased(history)
    for pool, cap in history.plan.caps.items():
        if most[pool] > cap:
            yield f"pool {pool} had {most[pool]} leases at a time, its cap is {cap}"


def session_order(history: History) -> Faults:
    """Turns of a session run one after the other, in submit order."""
    sessions: dict[str, list[tuple[int, int, int, str]]] = defaultdict(list)
    for id, job in history.jobs.items():
        if job["session"] is not None:
            first: dict[str, int] = {}
            for record in history.audit_of.get(id, []):
                first.setdefault(record["kind"], record["number"])
            submit, dequeue, outcome = (first.get(f"pool_{kind}", 0) for kind in STEPS)
            sessions[job["session"]].append((submit, dequeue, outcome, id))
    for session, turns in sessions.items():
        for one, other in pairwise(sorted(turns)):
            if one[2] > other[1]:
                yield f"session {session}: job {other[3]} began before {one[3]} was over"
    accepted = {line["number"]: line["job"] for line in history.acks}
    yield from _out_of_turn(history, accepted)


def _out_of_turn(history: History, accepted: dict[int, str]) -> Faults:
    """Items of one lane are submitted by number, so those of a session must run in that order."""
    sessions: dict[tuple[str, int], list[str]] = defaultdict(list)
    for number in sorted(accepted):
        item = history.items[number]
        if item.session is not None:
            sessions[item.session, item.lane].append(accepted[number])
    for (session, _), ids in sessions.items():
        submits = [records[0]["number"] for id in ids if (records := history.audit_of.get(id))]
        if submits != sorted(submits):
            yield f"session {session} was submitted as {ids}, and taken otherwise"


def early(history: History) -> Faults:
    """A delayed job does not begin before its time."""
    asked: dict[int, float] = {}
    for line in history.submits:
        if line["what"] == "asked":
            asked.setdefault(history.items[line["number"]].call, line["at"])
    for id, runs in history.attempts_of.items():
        item = history.items[runs[0].number]
        due = asked[item.number] + (item.delay or 0.0)
        if runs[0].began < due:
            yield f"job {id} began {due - runs[0].began:.3f} s before its time"


# Processes and the store


def died(history: History) -> Faults:
    """No process ends except by a fault of the harness, a poison job, or the end of its work."""
    poisons = {run.life for run in history.attempts if _is_poison(history, run)}
    for blow in history.blows:
        if blow["what"] == "died" and blow["life"] not in poisons:
            yield f"{blow['life']} ended by itself with {blow['code']}: {blow['said']}"
        if blow["what"] == "stray":
            yield f"processes were left behind: {blow['pids']}"


def _is_poison(history: History, run: Attempt) -> bool:
    return history.items[run.number].task == "poison"


def damaged(history: History) -> Faults:
    """The store is intact."""
    yield from damage(history.folder)


CHECKS: tuple[Callable[[History], Faults], ...] = (
    lost,
    unexpected,
    unanswered,
    wrong_end,
    doubled_key,
    gap,
    disorder,
    unknown_job,
    unfounded_effect,
    duplicated,
    stale_token,
    overlap,
    over_cap,
    over_claimed,
    session_order,
    early,
    died,
    damaged,
)
