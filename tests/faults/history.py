"""The history of a run, put together from the files outside. Nothing of poolhand is imported."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from tests.faults import outside
from tests.faults.load import Item, Plan, read_plan
from tests.faults.outside import Line

JOB_LOST = "poolhand.errors.JobLost"
TERMINAL = frozenset({"completed", "failed", "cancelled", "expired", "rejected"})
ENDING = ("kill", "died", "term")  # faults that end a life
UNWRITTEN = 10.0  # seconds within which the end of an attempt is written, on the busiest machine


@dataclass(frozen=True)
class Attempt:
    """One run of a job's code, from the effect file.

    `ended` is None when its end was never written. `cut` is when a fault hit its process after it
    had begun, or infinity.
    """

    job: str
    number: int
    attempt: int
    token: int
    life: str
    began: float
    ended: float | None
    how: str | None
    cut: float

    @property
    def until(self) -> float:
        """How long it must have had its lease, as far as can be seen from outside."""
        return min(self.cut, math.inf if self.ended is None else self.ended)


class History:
    """All facts of a run; jobs are records as they were exported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: Plan = read_plan(folder / outside.PLAN)
        self.items: dict[int, Item] = {item.number: item for item in self.plan.items}
        self.submits = outside.read(folder / outside.ACKS)
        self.blows = outside.read(folder / outside.BLOWS)
        self.effects = outside.read(folder / outside.EFFECTS)
        self.jobs: dict[str, Line] = {one["id"]: one for one in outside.read(folder / outside.JOBS)}
        self.audit = outside.read(folder / outside.AUDIT)

    @cached_property
    def acks(self) -> list[Line]:
        return [line for line in self.submits if line["what"] == "ack"]

    @cached_property
    def accepted(self) -> set[str]:
        return {line["job"] for line in self.acks}

    @cached_property
    def attempts(self) -> list[Attempt]:
        """Every run of code, by its token."""
        ends = {_run(line): line for line in self.effects if line["what"] == "end"}
        begun = [line for line in self.effects if line["what"] == "begin"]
        made = [self._attempt(line, ends.get(_run(line))) for line in begun]
        return sorted(made, key=lambda one: (one.token, one.began))

    @cached_property
    def attempts_of(self) -> dict[str, list[Attempt]]:
        found: dict[str, list[Attempt]] = defaultdict(list)
        for one in self.attempts:
            found[one.job].append(one)
        return found

    @cached_property
    def audit_of(self) -> dict[str, list[Line]]:
        found: dict[str, list[Line]] = defaultdict(list)
        for record in self.audit:
            if record["body"].get("task_id"):
                found[record["body"]["task_id"]].append(record)
        return found

    @cached_property
    def taken_back(self) -> set[str]:
        """The jobs whose submitter gave up before the answer, and that were cancelled for it."""
        return {
            id
            for id, records in self.audit_of.items()
            if id not in self.accepted and any(is_withdrawal(record) for record in records)
        }

    @cached_property
    def endings(self) -> dict[str, float]:
        """When lives ended, by the harness or by a poison job."""
        return {blow["life"]: blow["at"] for blow in self.blows if blow["what"] in ENDING}

    def kills(self) -> list[Line]:
        return [blow for blow in self.blows if blow["what"] == "kill"]

    def task_of(self, job: Line) -> str:
        return str(job["name"]).rpartition(".")[2]

    def followed(self, run: Attempt) -> set[str]:
        """Return the audit record about the end of the attempt with this number."""
        said = set()
        for before, after in pairwise(self.audit_of.get(run.job, [])):
            if before["kind"] != "pool_dequeue" or before["body"]["attempt"] != run.attempt:
                continue
            if after["kind"] != "pool_retry":
                said.add("outcome")
            elif after["body"]["attempt"] < run.attempt:
                said.add("handed back")
            else:
                said.add("crash" if after["body"]["error"] == JOB_LOST else "raised")
        return said

    def _attempt(self, begin: Line, end: Line | None) -> Attempt:
        ended = None if end is None else end["at"]
        return Attempt(
            begin["job"],
            begin["number"],
            begin["attempt"],
            begin["token"],
            begin["life"],
            begin["at"],
            ended,
            None if end is None else end["how"],
            self._cut(begin, math.inf if ended is None else ended),
        )

    def _cut(self, begin: Line, ended: float) -> float:
        """Return when the process of an attempt was killed, or stopped while it ran."""
        if self.items[begin["number"]].task == "poison":
            # A poison job kills its process, also one of its own, as the first thing it does.
            return float(begin["at"])
        moments = [math.inf]
        for blow in self.blows:
            if not _hits(blow, begin["life"]):
                continue
            at = float(blow["at"])
            if at < begin["at"] < blow.get("gone", at):
                # Children of the process end after it, some of them a moment after the kill.
                at = float(begin["at"])
            if blow["what"] == "stop" and at < begin["at"] < self._went_on(blow):
                # Claimed before, begun while nothing could be written.
                at = float(begin["at"])
            # A kill soon after its end may have prevented the record of its end.
            if begin["at"] <= at < ended + UNWRITTEN:
                moments.append(at)
        return min(moments)

    def _went_on(self, stop: Line) -> float:
        """Return when a stopped process was continued."""
        conts = [
            one["at"] for one in self.blows if one["what"] == "cont" and one["life"] == stop["life"]
        ]
        return min((at for at in conts if at > stop["at"]), default=math.inf)


def _hits(blow: Line, life: str) -> bool:
    """Return whether a fault concerns a life."""
    if blow["what"] in ENDING:
        return bool(blow["life"] == life)
    # A process that is stopped while it holds the lock keeps all others from writing.
    return blow["what"] == "stop" and (blow["life"] == life or "lock" in blow["phases"])


def _run(line: Line) -> tuple[str, int, int, str]:
    return line["job"], line["attempt"], line["token"], line["life"]


def is_withdrawal(record: Line) -> bool:
    """Return whether an audit record says that a submitter withdrew its job."""
    return bool(record["kind"] == "pool_cancel" and record["body"]["by"] == "submitter")
