"""The page of a job: facts, error and events; and the snapshot of a worker."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from poolhand.farm.records import FinishedJob, RunningJob, Snapshot
from poolhand.operate.tables import RunningRow
from poolhand.operate.views import PayloadView
from poolhand.rules.job import Fault, Status
from poolhand.rules.streams import JobEvent, StreamKind
from poolhand.tui import job_screen
from tests.unit.operate.world import START, made

HOSTILE = "\x1b[31m[red]x\x07\u202e"
SPELLED = "\\x1b[31m[red]x\\x07\\u202e"


@pytest.mark.parametrize(
    ("kind", "data", "lines"),
    [
        (StreamKind.CHUNK, "a\nb", ["00:00:00 chunk     a", "                   b"]),
        (StreamKind.CHUNK, {"x": [1, None]}, ['00:00:00 chunk     {"x":[1,null]}']),
        (
            StreamKind.LOG,
            {"stream": "stdout", "text": HOSTILE},
            [f"00:00:00 log       stdout: {SPELLED}"],
        ),
        (
            StreamKind.LOG,
            {"stream": "log", "level": "INFO", "logger": "a", "text": "hi"},
            ["00:00:00 log       INFO: hi"],
        ),
        (
            StreamKind.PROGRESS,
            {"message": "reading", "page": 3},
            ["00:00:00 progress  reading page=3"],
        ),
        (StreamKind.RESTARTED, None, ["00:00:00 restarted attempt 2 begins"]),
        (StreamKind.STATE, "completed", ["00:00:00 state     completed"]),
    ],
)
def test_the_events_of_a_job_are_shown_as_lines(
    kind: StreamKind, data: Any, lines: list[str]
) -> None:
    assert job_screen.event_lines(JobEvent(1, START, kind, 2, data)) == lines


async def test_the_facts_of_a_job_show_its_reason_and_error_without_control_sequences() -> None:
    async with made() as world:
        waiting = await world.add(HOSTILE, key=HOSTILE, session=HOSTILE)
        dead = await world.dead(HOSTILE, pool="research")
        job, failed = await world.operator.job(waiting), await world.operator.job(dead)
    assert job is not None
    assert failed is not None
    facts = job_screen.facts(job, None, START)
    known = {fact.label: fact.text for fact in facts}
    assert known["why it waits"].startswith("it waits for a free slot")
    assert known["key"] == known["session"] == SPELLED
    facts += job_screen.facts(failed, None, START)
    known = {fact.label: fact.text for fact in facts}
    assert known["dead letter"] == "it failed for good; press r to retry it"
    assert known["error"] == f"ValueError: no {SPELLED}"
    assert job_screen.Fact("", "    a line", "dim") in facts
    assert all((fact.label + fact.text).isprintable() for fact in facts)


async def test_a_retried_job_shows_its_last_error() -> None:
    async with made() as world:
        dead = await world.operator.job(await world.dead())
    assert dead is not None
    again = replace(dead, status=Status.SCHEDULED, dead=False, why="it waits for a retry")
    labels = [fact.label for fact in job_screen.facts(again, None, START)]
    assert "last error" in labels
    assert "why it waits" in labels


async def test_a_running_job_is_shown_with_its_worker() -> None:
    async with made() as world:
        id = await world.add("fetch")
        await world.claim(1)
        job = await world.operator.job(id)
    assert job is not None
    runs = RunningRow("box-1a2b3c.1", RunningJob(id, "fetch", "chat", START, "soft_timeout"))
    assert job_screen.Fact("worker", "box-1a2b3c.1, soft_timeout") in job_screen.facts(
        job, runs, START
    )
    over = replace(job, status=Status.COMPLETED)
    assert not [fact for fact in job_screen.facts(over, runs, START) if fact.label == "worker"]


async def test_arguments_and_result_are_shown_with_the_facts_of_a_job() -> None:
    async with made() as world:
        id = await world.dead()
        job = await world.operator.job(id)
    assert job is not None
    payload = PayloadView(id, "work", {"text": HOSTILE}, None, True, "x" * 5_000, None)
    facts = job_screen.facts(job, None, START, payload)
    known = {fact.label: fact.text for fact in facts}
    assert known["arguments"] == '{"text":"\\u001b[31m[red]x\\u0007\\u202e"}'
    assert known["result"].startswith('"xxx')
    (cut,) = [fact.text for fact in facts if "left out" in fact.text]
    assert cut.endswith(f"; `poolhand jobs show {id} --payload --json` shows all)")
    assert all(fact.text.isprintable() for fact in facts)


def test_a_snapshot_shows_running_and_finished_jobs_with_their_errors() -> None:
    fault = Fault("ValueError", HOSTILE, f"Traceback\n{HOSTILE}")
    ended = FinishedJob("j-0", HOSTILE, "web", Status.FAILED, 3, START, 1.5, "w", fault)
    running = RunningJob("j-1", "fetch", "web", START)
    lines = job_screen.snapshot_lines(Snapshot("box-1a2b3c", None, (running,), (ended,)))
    assert lines[0] == "farm box-1a2b3c: 1 running, 1 recently ended"
    assert lines[2] == "running since 00:00:00Z  j-1  fetch"
    assert lines[3].startswith(f"failed 00:00:00Z  j-0  {SPELLED}  attempt 3")
    assert lines[4] == f"    ValueError: {SPELLED}"
    assert all(line.isprintable() for line in lines)
