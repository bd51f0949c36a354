"""Audit records: the same facts in the same bytes, in a fixed order of fields."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from poolhand.rules import audit, lifecycle
from poolhand.rules.audit import Audit
from poolhand.rules.job import Fault
from poolhand.rules.outcome import Completed, Failed, Retry
from tests.unit.rules.floor import AT, new_job

LATER = AT + timedelta(seconds=60, microseconds=5)
JOB = new_job("job-1", key="acme", priority=2, idempotency_key="once")
STARTED = lifecycle.start(JOB, LATER, 1.2346)
REJECTED = lifecycle.reject(JOB, "ring_buffer_drop_oldest", "ring_buffer", LATER)
COMPLETED = lifecycle.settle(STARTED, Completed(b"secret"), None, LATER, 1.0, 0.0)
RETRIED = lifecycle.settle(STARTED, Failed(OSError("secret")), Retry(), LATER, 1.0, 0.0)

RECORDS: dict[str, tuple[Audit, str]] = {
    audit.SUBMIT: (
        audit.submitted(JOB),
        '{"schema":"poolhand.pool_submit.v1","pool_id":"pool-1","pool":"pool","task_id":"job-1",'
        '"submitted_at":"2026-01-01T00:00:00Z","priority":2,"key":"acme",'
        '"idempotency_key":"once","submitted_by":"user"}',
    ),
    audit.DEQUEUE: (
        audit.dequeued(STARTED, 3),
        '{"schema":"poolhand.pool_dequeue.v1","pool_id":"pool-1","pool":"pool","task_id":"job-1",'
        '"submitted_at":"2026-01-01T00:00:00Z","priority":2,"key":"acme",'
        '"idempotency_key":"once","submitted_by":"user",'
        '"dequeued_at":"2026-01-01T00:01:00.000005Z","queued_for_ms":1235,"slot_index":3,'
        '"attempt":1}',
    ),
    audit.DROP: (
        audit.dropped(REJECTED, "job-2", 5, 5),
        '{"schema":"poolhand.pool_drop.v1","pool_id":"pool-1","pool":"pool","task_id":"job-1",'
        '"submitted_at":"2026-01-01T00:00:00Z","priority":2,"key":"acme",'
        '"idempotency_key":"once","submitted_by":"user","replacement_task_id":"job-2",'
        '"reason":"ring_buffer_drop_oldest","policy":"ring_buffer","queue_depth":5,"max_depth":5,'
        '"occurred_at":"2026-01-01T00:01:00.000005Z"}',
    ),
    audit.OUTCOME: (
        audit.ended(COMPLETED),
        '{"schema":"poolhand.pool_outcome.v1","pool_id":"pool-1","pool":"pool","task_id":"job-1",'
        '"status":"completed","attempt":1,"error":null,'
        '"occurred_at":"2026-01-01T00:01:00.000005Z"}',
    ),
    audit.RETRY: (
        audit.retried(lifecycle.with_fault(RETRIED, Fault("OSError", "secret")), LATER),
        '{"schema":"poolhand.pool_retry.v1","pool_id":"pool-1","pool":"pool","task_id":"job-1",'
        '"status":"scheduled","attempt":1,"error":"OSError",'
        '"occurred_at":"2026-01-01T00:01:00.000005Z"}',
    ),
    audit.CANCEL: (
        audit.acted_on(audit.CANCEL, JOB, "ops", "", LATER),
        '{"schema":"poolhand.pool_cancel.v1","pool_id":"pool-1","pool":"pool","task_id":"job-1",'
        '"by":"ops","detail":"","occurred_at":"2026-01-01T00:01:00.000005Z"}',
    ),
    audit.RESIZE: (
        audit.acted(audit.RESIZE, ("pool-1", "pool"), "ops", "7", LATER),
        '{"schema":"poolhand.pool_resize.v1","pool_id":"pool-1","pool":"pool","task_id":null,'
        '"by":"ops","detail":"7","occurred_at":"2026-01-01T00:01:00.000005Z"}',
    ),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_the_fields_of_a_record_are_in_their_documented_order(kind: str) -> None:
    record, text = RECORDS[kind]
    assert msgspec.json.encode(record).decode() == text


@pytest.mark.parametrize("kind", RECORDS)
def test_kind_of_returns_the_kind_of_a_record(kind: str) -> None:
    assert audit.kind_of(RECORDS[kind][0]) == kind


def test_a_wait_is_recorded_in_whole_milliseconds() -> None:
    for seconds, told in [(0.0, 0), (0.0004, 0), (0.0006, 1), (2.5, 2500)]:
        record = audit.dequeued(lifecycle.start(JOB, AT, seconds), 0)
        assert record.queued_for_ms == told


def test_a_record_contains_neither_results_nor_error_messages() -> None:
    for record, _ in RECORDS.values():
        assert b"secret" not in msgspec.json.encode(record)
