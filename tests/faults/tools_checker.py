"""Checks of calls that must happen once. Nothing of poolhand is imported.

It knows the records of the calls, which processes were killed when, and the store's account of its
jobs before and after the unknown calls were decided.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.faults import outside
from tests.faults.checker import Verdict
from tests.faults.outside import Line

BEFORE = "jobs-undecided.jsonl"
TOOLS = ("pay", "book", "remind")
OVER = ("slept", "end")
UNKNOWN = "ToolOutcomeUnknown"
PARTS = {"enter": "before", "effect": "during", "leave": "after"}  # by the last part of a call

Call = tuple[int, str]


class Calls:
    """All facts about the calls of a run."""

    def __init__(self, folder: Path) -> None:
        self.lines = outside.read(folder / outside.EFFECTS)
        self.blows = outside.read(folder / outside.BLOWS)
        self.acks = outside.read(folder / outside.ACKS)
        self.undecided = outside.read(folder / BEFORE)
        self.jobs = outside.read(folder / outside.JOBS)
        self.of: defaultdict[Call, list[Line]] = defaultdict(list)
        for line in self.lines:
            if line.get("tool"):
                self.of[line["number"], line["tool"]].append(line)
        self.number_of = {line["run"]: line["number"] for line in self.lines if "run" in line}

    def effects(self, call: Call) -> int:
        return sum(line["what"] == "effect" for line in self.of[call])

    def hits(self) -> list[tuple[Call, str]]:
        """Return the calls that were hit by a kill, and in which part."""
        found = []
        for blow in self.blows:
            if blow["what"] != "kill":
                continue
            for call, lines in self.of.items():
                own = [one for one in lines if _is_of(one, blow) and one["at"] <= blow["gone"]]
                if own and own[-1]["what"] in PARTS:
                    found.append((call, PARTS[own[-1]["what"]]))
        return found

    def cut(self) -> set[int]:
        """Return the numbers of jobs that were hit by a kill while they ran."""
        found = set()
        for blow in self.blows:
            if blow["what"] != "kill":
                continue
            last = {
                one["number"]: one["what"]
                for one in self.lines
                if "number" in one and _is_of(one, blow) and one["at"] <= blow["gone"]
            }
            found |= {number for number, what in last.items() if what not in OVER}
        return found


def _is_of(line: Line, blow: Line) -> bool:
    """Return whether a line belongs to the killed process, or to a farm whose worker was killed."""
    return bool(line["life"] == blow["life"].partition(".")[0])


def check(folder: Path) -> Verdict:
    """Judge a run by the files that it left."""
    calls = Calls(folder)
    verdict = Verdict()
    for one in (twice, unreported, unexplained, missing, unfinished):
        verdict.faults += [f"{one.__name__}: {text}" for text in one(calls)]
    parts = Counter(part for _, part in calls.hits())
    unknown = [job for job in calls.undecided if job["dead"]]
    verdict.figures = {
        "accepted": len({line["number"] for line in calls.acks}),
        "calls": len(calls.of),
        "duplicated": sum(calls.effects(call) > 1 for call in calls.of),
        "kills": sum(blow["what"] == "kill" for blow in calls.blows),
        "hit_before": parts["before"],
        "hit_during": parts["during"],
        "hit_after": parts["after"],
        "unknown": len(unknown),
        "slept": sum(line["what"] == "slept" for line in calls.lines),
    }
    return verdict


def twice(calls: Calls) -> Iterator[str]:
    """No effect happens twice."""
    for call in calls.of:
        if calls.effects(call) > 1:
            yield f"{call[1]} of job {call[0]} happened {calls.effects(call)} times"


def unreported(calls: Calls) -> Iterator[str]:
    """Jobs that ended undecided have an unknown call and say so; no other job is dead."""
    for job in calls.undecided:
        error = (job["error"] or {}).get("type", "")
        if job["dead"] and not error.endswith(UNKNOWN):
            yield f"job {job['id']} is dead of {error}: {job['error']['message'][:300]}"
        elif job["status"] not in ("completed", "failed"):
            yield f"job {job['id']} is {job['status']} when all should be over"


def unexplained(calls: Calls) -> Iterator[str]:
    """Only calls that a kill hit are unknown, and only those that cannot be verified."""
    cut = calls.cut()
    for job in calls.undecided:
        number = calls.number_of.get(job["id"])
        if not job["dead"]:
            continue
        if number not in cut:
            yield f"job {job['id']} ({number}) is dead, and no kill fell on it"
        if "call of book" in job["error"]["message"]:
            yield f"job {job['id']} ({number}) is dead of a call that could be looked up"


def missing(calls: Calls) -> Iterator[str]:
    """A completed job has done everything."""
    for job in calls.jobs:
        if job["status"] != "completed":
            continue
        number = calls.number_of[job["continues"] or job["id"]]
        for name in TOOLS:
            if not calls.effects((number, name)):
                yield f"job {job['id']} ({number}) is done, and {name} never happened"


def unfinished(calls: Calls) -> Iterator[str]:
    """When everything is decided, all accepted jobs are done."""
    done = {job["continues"] or job["id"] for job in calls.jobs if job["status"] == "completed"}
    for line in calls.acks:
        if line["job"] not in done:
            yield f"job {line['job']} ({line['number']}) was accepted, decided and is not done"
