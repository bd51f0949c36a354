"""The checker finds no fault in a good history, and names the fault of a bad one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults import outside
from tests.faults.checker import check
from tests.faults.crew import REPOSITORY
from tests.faults.load import Item, Plan
from tests.faults.story import Story, good_story

Deed = Callable[[Story], Any]


def audit(story: Story, kind: str, number: int) -> dict[str, Any]:
    """Return the last audit record of a kind about an item."""
    id = story.jobs[number]["id"]
    return [
        record
        for record in story.files[outside.AUDIT]
        if record["kind"] == f"pool_{kind}" and record["body"]["task_id"] == id
    ][-1]


def effect(story: Story, what: str, number: int) -> dict[str, Any]:
    lines = story.files[outside.EFFECTS]
    return [line for line in lines if line["what"] == what and line["number"] == number][-1]


def take_back(story: Story, number: int) -> None:
    """Record that a job was cancelled for its submitter before it began."""
    id, lines = story.jobs[number]["id"], story.files[outside.EFFECTS]
    lines[:] = [line for line in lines if line["job"] != id]
    story.jobs[number].update(status="cancelled", attempts=0)
    audit(story, "outcome", number)["body"].update(status="cancelled", attempt=0)
    withdrawn = audit(story, "dequeue", number)
    withdrawn.update(kind="pool_cancel")
    withdrawn["body"].update(by="submitter")


def end_again(story: Story, number: int) -> None:
    """Withdraw a job that is over."""
    story.audit("cancel", number, by="submitter")
    story.outcome(number)


def begin_with(story: Story, number: int, other: int) -> None:
    """Record that a job began when another one did."""
    effect(story, "begin", number)["at"] = effect(story, "begin", other)["at"] + 0.001


def again(story: Story, number: int, life: str = "two") -> None:
    """Run a job once too often, as if its process had died, which it has not."""
    story.files[outside.AUDIT].remove(audit(story, "outcome", number))
    story.retry(number)
    story.run(number, life)
    renumber(story)


def forget(story: Story, kind: str, number: int) -> None:
    story.files[outside.AUDIT].remove(audit(story, kind, number))
    renumber(story)


def renumber(story: Story) -> None:
    for number, record in enumerate(story.files[outside.AUDIT], start=1):
        record["number"] = number


def move_up(story: Story, kind: str, number: int, before: str, other: int) -> None:
    """Move one audit record before another one."""
    records = story.files[outside.AUDIT]
    record = audit(story, kind, number)
    records.remove(record)
    records.insert(records.index(audit(story, before, other)), record)
    renumber(story)


def crowd(story: Story, number: int, other: int) -> None:
    """Dequeue a job in a pool of one slot while another one of it runs."""
    story.plan.caps["fair"] = 1
    move_up(story, "dequeue", number, "outcome", other)


def forget_end(story: Story, number: int) -> None:
    story.files[outside.EFFECTS].remove(effect(story, "end", number))


BAD: dict[str, tuple[Deed, str]] = {
    "an accepted job is gone": (lambda story: story.jobs.pop(0), "lost"),
    "a job is not over": (lambda story: story.jobs[0].update(status="running"), "lost"),
    "an unacknowledged job is not over": (
        lambda story: story.jobs[11].update(status="queued"),
        "lost",
    ),
    "a job that nobody asked for": (lambda story: story.keep(12, "one/77"), "unexpected"),
    "two jobs of one try": (lambda story: story.jobs[5].update(user="one/1"), "unexpected"),
    "half a batch": (lambda story: story.jobs.pop(10), "unexpected"),
    "a submit without an answer": (
        lambda story: story.note(outside.ACKS, "asked", number=12, mark="x/1", life="three"),
        "unanswered",
    ),
    "a good job is dead": (lambda story: story.jobs[1].update(status="failed"), "wrong_end"),
    "an acknowledged job is taken back": (lambda story: take_back(story, 1), "wrong_end"),
    "a job is taken back and over twice": (lambda story: end_again(story, 11), "disorder"),
    "a hopeless job is not listed as dead": (
        lambda story: story.jobs[7].update(dead=False),
        "wrong_end",
    ),
    "a key with two jobs": (
        lambda story: story.jobs[5].update(idempotency_key="key"),
        "doubled_key",
    ),
    "a number is missing": (lambda story: story.files[outside.AUDIT].pop(5), "gap"),
    "no submit is audited": (lambda story: forget(story, "submit", 1), "disorder"),
    "no dequeue is audited": (lambda story: forget(story, "dequeue", 1), "disorder"),
    "no outcome is audited": (lambda story: forget(story, "outcome", 1), "disorder"),
    "two outcomes": (lambda story: story.outcome(1), "disorder"),
    "another outcome is audited": (
        lambda story: audit(story, "outcome", 1)["body"].update(status="failed"),
        "disorder",
    ),
    "an attempt is not counted": (
        lambda story: audit(story, "dequeue", 0)["body"].update(attempt=1),
        "disorder",
    ),
    "the audit knows another job": (
        lambda story: audit(story, "dequeue", 1)["body"].update(task_id="job-99"),
        "unknown_job",
    ),
    "completed without an effect": (lambda story: forget_end(story, 1), "unfounded_effect"),
    "an effect without a dequeue": (
        lambda story: effect(story, "begin", 1).update(attempt=7),
        "unfounded_effect",
    ),
    "a completed job runs again": (lambda story: again(story, 10, "three"), "duplicated"),
    "a job runs again as if its process had died": (
        lambda story: story.files[outside.BLOWS].clear(),
        "duplicated",
    ),
    "a job that had ended long before the kill runs again": (
        lambda story: [
            line.update(at=line["at"] - 20.0)
            for line in story.files[outside.EFFECTS]
            if (line["number"], line["life"]) == (9, "one")
        ],
        "duplicated",
    ),
    "one token for two jobs": (
        lambda story: [effect(story, what, 2).update(token=1) for what in ("begin", "end")],
        "stale_token",
    ),
    "a token that does not grow": (
        lambda story: [effect(story, what, 12).update(token=0) for what in ("begin", "end")],
        "stale_token",
    ),
    "two leases of one job": (
        lambda story: effect(story, "begin", 0).update(at=story.files[outside.BLOWS][0]["at"] - 1),
        "overlap",
    ),
    "two turns at a time": (lambda story: begin_with(story, 2, 1), "overlap"),
    "more of a key than its cap": (lambda story: begin_with(story, 6, 5), "over_cap"),
    "more leases than the cap": (
        lambda story: crowd(story, 6, 5),
        "over_claimed",
    ),
    "a turn before its time": (
        lambda story: move_up(story, "dequeue", 2, "outcome", 1),
        "session_order",
    ),
    "turns taken in another order": (
        lambda story: move_up(story, "submit", 2, "submit", 1),
        "session_order",
    ),
    "a delay that is cut short": (
        lambda story: effect(story, "begin", 8).update(at=100.17),
        "early",
    ),
    "a process that died": (
        lambda story: story.note(outside.BLOWS, "died", life="three", code=1, said="help"),
        "died",
    ),
    "a process left behind": (lambda story: story.note(outside.BLOWS, "stray", pids=[7]), "died"),
}


def names(faults: list[str]) -> set[str]:
    return {fault.partition(":")[0] for fault in faults}


def test_a_good_history_holds_and_is_counted(tmp_path: Path) -> None:
    good_story().write(tmp_path)
    verdict = check(tmp_path)
    assert verdict.faults == []
    assert verdict.figures == {
        "accepted": 11,
        "unknown": 1,
        "lost": 0,
        "unexpected": 0,
        "duplicated": 0,
        "recovered": 2,
        "kills": 1,
    }


def test_a_job_withdrawn_before_it_was_acknowledged_is_not_counted_as_lost(tmp_path: Path) -> None:
    story = good_story()
    take_back(story, 11)
    story.write(tmp_path)
    assert check(tmp_path).faults == []


@pytest.mark.parametrize(("gone", "faults"), [(1.0, set()), (0.0, {"duplicated", "overlap"})])
def test_a_start_in_a_process_that_is_not_dead_yet_counts_as_interrupted(
    tmp_path: Path, gone: float, faults: set[str]
) -> None:
    story = Story(Plan((Item(0),)))
    story.submit(0)
    blow = story.note(outside.BLOWS, "kill", life="one", phases=["claim", "run"])
    blow["gone"] = blow["at"] + gone
    story.begin(0)
    story.retry(0)
    story.run(0, "two")
    story.write(tmp_path)
    assert names(check(tmp_path).faults) == faults


@pytest.mark.parametrize("what", BAD)
def test_every_kind_of_fault_is_found(tmp_path: Path, what: str) -> None:
    deed, name = BAD[what]
    story = good_story()
    deed(story)
    story.write(tmp_path)
    assert name in names(check(tmp_path).faults)


def test_a_damaged_file_is_found(tmp_path: Path) -> None:
    good_story().write(tmp_path)
    (tmp_path / outside.STORE).write_bytes(b"no database at all, but long enough to be one" * 50)
    assert names(check(tmp_path).faults) == {"damaged"}


def test_a_torn_line_does_not_affect_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = outside.Lines(path)
    lines.write("one")
    path.write_bytes(path.read_bytes() + b'\n{"what": "tor')
    lines.write("two")
    lines.close()
    assert [line["what"] for line in outside.read(path)] == ["one", "two"]
    assert [line["what"] for line in outside.Tail(path).news()] == ["one", "two"]


def test_the_checker_imports_nothing_of_poolhand() -> None:
    script = "import sys, tests.faults.checker; sys.exit('poolhand' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True, timeout=30)
