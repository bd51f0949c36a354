"""The checker of tools names every fault of a history, and none in a good one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults import outside
from tests.faults.tools_checker import BEFORE, TOOLS, check

UNKNOWN = {
    "type": "poolhand.errors.ToolOutcomeUnknown",
    "message": "this call of pay (0) was begun",
}
LOST = {"type": "poolhand.errors.JobLost", "message": "lost"}


class Run:
    """A history: job 1 was done at once; job 2 was killed in a call, was unknown, and is done."""

    def __init__(self) -> None:
        self.effects: list[dict[str, Any]] = []
        self.blows = [{"what": "kill", "at": 50.0, "gone": 50.0, "life": "one"}]
        self.acks = [{"what": "ack", "number": n, "job": f"job-{n}"} for n in (1, 2)]
        self.before = [job("job-1"), job("job-2", "failed", error=UNKNOWN, dead=True)]
        self.after = [job("job-1"), job("job-2", "failed"), job("again", continues="job-2")]
        for name in TOOLS:
            self.call(1, name, "one", 1.0)
        self.note("end", 1, "", "one", 9.0)
        self.note("enter", 2, "pay", "one", 40.0)
        self.note("effect", 2, "pay", "one", 41.0)
        for name in TOOLS[1:]:
            self.call(2, name, "two", 60.0)

    def note(self, what: str, number: int, name: str, life: str, at: float) -> None:
        about = {"number": number, "tool": name, "job": f"job-{number}", "run": f"job-{number}"}
        self.effects.append({"what": what, "life": life, "at": at, **about})

    def call(self, number: int, name: str, life: str, at: float) -> None:
        for what in ("enter", "effect", "leave", "kept"):
            self.note(what, number, name, life, at)

    def faults(self, folder: Path) -> list[str]:
        files = {
            outside.EFFECTS: self.effects,
            outside.BLOWS: self.blows,
            outside.ACKS: self.acks,
            BEFORE: self.before,
            outside.JOBS: self.after,
        }
        for name, lines in files.items():
            (folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return [fault.partition(":")[0] for fault in check(folder).faults]


def job(id: str, status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"id": id, "status": status, "dead": False, "error": None, "continues": None, **more}


def test_a_correct_history_has_no_faults(tmp_path: Path) -> None:
    assert Run().faults(tmp_path) == []


def paid_twice(run: Run) -> None:
    run.call(2, "pay", "two", 60.0)


def dead_of_something_else(run: Run) -> None:
    run.before[1]["error"] = LOST


def not_killed(run: Run) -> None:
    run.blows.clear()


def unknown_though_it_can_be_looked_up(run: Run) -> None:
    run.before[1]["error"] = {**UNKNOWN, "message": "this call of book (0) was begun"}


def done_without_an_effect(run: Run) -> None:
    run.effects = [one for one in run.effects if (one["number"], one["tool"]) != (1, "book")]


def never_done(run: Run) -> None:
    run.after.pop()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (paid_twice, "twice"),
        (dead_of_something_else, "unreported"),
        (not_killed, "unexplained"),
        (unknown_though_it_can_be_looked_up, "unexplained"),
        (done_without_an_effect, "missing"),
        (never_done, "unfinished"),
    ],
)
def test_every_fault_is_reported_by_name(tmp_path: Path, spoil: Any, named: str) -> None:
    run = Run()
    spoil(run)
    assert run.faults(tmp_path) == [named]
