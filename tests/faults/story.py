"""Stories: histories made by hand, with faults that the checker must find."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.faults import outside
from tests.faults.history import JOB_LOST
from tests.faults.load import Item, Plan
from tests.faults.outside import Line


class Story:
    """Builds a history step by step, in the files that the checker reads."""

    def __init__(self, plan: Plan) -> None:
        self.plan = replace(plan, caps=dict(plan.caps))
        self.files: dict[str, list[Line]] = defaultdict(list)
        self.jobs: dict[int, Line] = {}
        self._items = {item.number: item for item in plan.items}
        self._now = 100.0
        self._token = 0
        self._tries = 0

    def write(self, folder: Path) -> None:
        self.plan.save(folder / outside.PLAN)
        self.files[outside.JOBS] = [*self.jobs.values()]
        for name, lines in self.files.items():
            (folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        (folder / outside.URL).write_text(f"sqlite:///{folder / outside.STORE}")
        with sqlite3.connect(folder / outside.STORE) as connection:
            connection.execute("CREATE TABLE whole (id INTEGER)")
        connection.close()

    def note(self, file: str, what: str, **fields: Any) -> Line:
        self._now += 0.01
        line = {"what": what, "at": self._now, **fields}
        self.files[file].append(line)
        return line

    def audit(self, kind: str, number: int, **fields: Any) -> Line:
        job = self.jobs[number]
        body = {"task_id": job["id"], "pool": job["pool"], **fields}
        lines = self.files[outside.AUDIT]
        lines.append({"number": len(lines) + 1, "kind": f"pool_{kind}", "body": body})
        return lines[-1]

    def submit(self, *numbers: int, life: str = "one") -> None:
        """Have items accepted in one try."""
        self._tries += 1
        mark = f"{life}/{self._tries}"
        for number in numbers:
            self.note(outside.ACKS, "asked", number=number, mark=mark, life=life)
        for number in numbers:
            self.keep(number, mark)
            self.note(outside.ACKS, "ack", number=number, mark=mark, job=self.jobs[number]["id"])

    def keep(self, number: int, mark: str) -> None:
        item = self._items[number]
        self.jobs[number] = {
            "id": f"job-{number}",
            "name": f"{item.pool}.{item.task}",
            "pool": item.pool,
            "status": "queued",
            "user": mark if item.session is None else None,
            "key": item.key if item.session is None else mark,
            "session": item.session,
            "idempotency_key": item.idempotency_key,
            "attempts": 0,
            "crashes": 0,
            "error": None,
            "dead": False,
        }
        self.audit("submit", number)

    def join(self, number: int, other: int) -> None:
        """Have an item accepted as the existing job of its key."""
        self._tries += 1
        about = {"number": number, "mark": f"one/{self._tries}"}
        self.note(outside.ACKS, "asked", life="one", **about)
        self.note(outside.ACKS, "ack", job=self.jobs[other]["id"], **about)

    def begin(self, number: int, life: str = "one") -> None:
        job = self.jobs[number]
        job["attempts"] += 1
        job["status"] = "running"
        self._token += 1
        self.audit("dequeue", number, attempt=job["attempts"], slot_index=0)
        job["run"] = {
            "job": job["id"],
            "number": number,
            "attempt": job["attempts"],
            "token": self._token,
            "pid": 1,
            "life": life,
        }
        self.note(outside.EFFECTS, "begin", **job["run"])

    def end(self, number: int, how: str = "returned") -> None:
        self.note(outside.EFFECTS, "end", how=how, **self.jobs[number]["run"])

    def retry(self, number: int, error: str | None = JOB_LOST) -> None:
        job = self.jobs[number]
        job["status"] = "queued"
        if error is None:
            job["attempts"] -= 1
        self.audit("retry", number, attempt=job["attempts"], error=error, status="queued")

    def outcome(self, number: int, status: str = "completed") -> None:
        job = self.jobs[number]
        job["status"], job["dead"] = status, status == "failed"
        self.audit("outcome", number, attempt=job["attempts"], status=status, error=None)

    def run(self, number: int, life: str = "one") -> None:
        """Run a job to completion."""
        self.begin(number, life)
        self.end(number)
        self.outcome(number)


PLAN = Plan(
    (
        Item(0),
        Item(1, session="talk"),
        Item(2, session="talk"),
        Item(3, idempotency_key="key"),
        Item(4, idempotency_key="key"),
        Item(5, pool="fair", key="ant"),
        Item(6, pool="fair", key="ant"),
        Item(7, "hopeless", attempts=1),
        Item(8, delay=0.02),
        Item(9, batch=9),
        Item(10, batch=9),
        Item(11),
        Item(12),
    ),
    caps={"fair": 2},
    key_caps={"fair": 1},
    fair=("fair",),
)


def good_story() -> Story:
    """Build a run in which every allowed event happens, and nothing else."""
    story = Story(PLAN)
    for number in (0, 1, 2, 3, 5, 6, 7, 8):
        story.submit(number)
    story.join(4, 3)
    story.submit(9, 10)
    for number in (1, 2, 3, 5, 6, 8):
        story.run(number)
    # One is killed while it runs, one between its end and its record, one try is unanswered.
    story.begin(0)
    story.begin(9)
    story.end(9)
    story.note(outside.ACKS, "asked", number=11, mark="one/99", life="one")
    story.keep(11, "one/99")
    story.note(outside.BLOWS, "kill", life="one", phases=["run", "settle", "add"])
    for number in (0, 9):
        story.retry(number)
        story.run(number, "two")
    story.begin(7, "two")
    story.end(7, "LookupError")
    story.outcome(7, "failed")
    story.run(11, "two")
    # And one is handed back.
    story.submit(12, life="two")
    story.begin(12, "two")
    story.note(outside.BLOWS, "term", life="two")
    story.end(12, "CancelledError")
    story.retry(12, None)
    story.run(12, "three")
    story.run(10, "three")
    return story
