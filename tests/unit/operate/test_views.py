"""Views of records that are hostile, damaged or unknown."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from poolhand.contract import LogEntry, Stored
from poolhand.operate.views import audit_view, job_view
from poolhand.rules import audit
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.lifecycle import cancel, reject, start

AT = datetime(2030, 1, 1, tzinfo=UTC)
JOB = Job(id="j-1", pool="p", pool_id="pool-1", status=Status.QUEUED, submitted_at=AT, key="k")


def written(kind: str, body: bytes) -> LogEntry:
    return LogEntry(7, AT, kind, body)


@pytest.mark.parametrize(
    ("record", "by", "text"),
    [
        (audit.submitted(JOB), "user", "priority 0, key k"),
        (audit.dequeued(start(JOB, AT, 0.5), 3), "user", "attempt 1 in slot 3 after 500 ms"),
        (
            audit.dropped(reject(JOB, "full", "drop_oldest", AT), "j-2", 1, 1),
            "user",
            "full (drop_oldest), for j-2",
        ),
        (audit.ended(cancel(JOB, AT)), None, "cancelled, attempt 0"),
        (audit.acted_on(audit.CANCEL, JOB, "anna", "", AT), "anna", ""),
        (audit.acted(audit.RESIZE, ("pool-1", "p"), "anna", "5", AT), "anna", "5 slots"),
        (audit.acted(audit.RESIZE, ("pool-1", "p"), "anna", "", AT), "anna", "as declared"),
        (audit.acted_on(audit.RERUN, JOB, "anna", "j-2", AT), "anna", "as j-2"),
    ],
    ids=["submit", "dequeue", "drop", "outcome", "cancel", "resize", "declared", "rerun"],
)
def test_an_audit_line_names_the_actor_and_the_action(
    record: audit.Audit, by: str | None, text: str
) -> None:
    kind = audit.kind_of(record)
    view = audit_view(written(kind, msgspec.json.encode(record)))
    assert (view.number, view.kind, view.pool) == (7, kind, "p")
    assert (view.by, view.text) == (by, text)
    assert view.record["schema"] == f"poolhand.{kind}.v1"
    assert view.job == (None if kind == audit.RESIZE else "j-1")


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b"null", b'"text"', b"\xff", b"{}"])
def test_a_line_of_an_unknown_form_is_shown_as_far_as_it_can_be(body: bytes) -> None:
    view = audit_view(written("pool_new", body))
    assert (view.number, view.kind, view.pool, view.job, view.text) == (
        7,
        "pool_new",
        None,
        None,
        "",
    )


def test_the_note_of_a_job_is_its_reason_or_error() -> None:
    fault = Fault("ValueError", "no bees")
    failed = msgspec.structs.replace(JOB, status=Status.FAILED, error=fault)
    again = msgspec.structs.replace(JOB, status=Status.COMPLETED, error=fault)
    rejected = reject(JOB, "ring_buffer_drop_oldest", "ring_buffer", AT)
    assert job_view(Stored(JOB), Explanation("paused", "it is paused")).note == "it is paused"
    assert job_view(Stored(failed)).note == "ValueError: no bees"
    assert job_view(Stored(again)).note == ""
    assert job_view(Stored(rejected)).note == "ring_buffer_drop_oldest"
    assert job_view(Stored(JOB)).note == ""


def test_a_view_of_a_job_has_every_field_of_it_but_the_result() -> None:
    view = job_view(Stored(msgspec.structs.replace(JOB, result=b"secret")))
    missing = set(Job.__struct_fields__) - set(view.__struct_fields__)
    assert missing == {"pool_id", "blocked_on", "result", "continues", "marks"}
    assert b"secret" not in msgspec.json.encode(view)
