"""The rows of a job in a SQLite store, written and read back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from msgspec.structs import replace

from poolhand.rules import lifecycle
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.queue.entry import seconds
from poolhand.stores.sql.rows import (
    Course,
    decode_job,
    encode_course,
    encode_terms,
    moment,
)

AT = datetime(2031, 5, 6, 7, 8, 9, 123457, tzinfo=UTC)
ORDERED = Job(
    id="job",
    pool="pool",
    pool_id="pool-1",
    status=Status.QUEUED,
    submitted_at=AT,
    name="task",
    key="key",
    priority=-3,
    session="session",
    tenant="tenant",
    user="user",
    idempotency_key="once",
    run_at=AT,
    expires_at=AT,
)


@pytest.mark.parametrize("seed", range(10))
def test_a_timestamp_round_trips_to_the_microsecond(seed: int) -> None:
    random = Random(seed)
    for _ in range(1000):
        at = AT + timedelta(microseconds=random.randrange(10**15))
        assert moment(seconds(at)) == at


@pytest.mark.parametrize(
    "job",
    [
        lifecycle.complete(lifecycle.start(ORDERED, AT, 0.25), b"value", AT, 1.5),
        replace(
            lifecycle.with_fault(lifecycle.start(ORDERED, AT, 0.25), Fault("E", "why", "where")),
            status=Status.FAILED,
            crashes=2,
            marks=("soft_timeout", "other"),
        ),
        lifecycle.reject(ORDERED, "reason", "policy", AT),
        lifecycle.place(ORDERED, Status.BLOCKED, "key"),
        replace(ORDERED, run_at=None),
    ],
    ids=["completed", "failed", "rejected", "blocked", "at once"],
)
def test_the_state_of_a_job_round_trips(job: Job) -> None:
    assert decode_job(ORDERED.id, encode_terms(ORDERED), encode_course(job)) == job


def test_the_request_of_a_job_round_trips() -> None:
    assert decode_job("job", encode_terms(ORDERED), None) == ORDERED
    assert decode_job("other", encode_terms(ORDERED), None) == replace(ORDERED, id="other")


def test_the_encoded_state_of_a_job_does_not_contain_its_request() -> None:
    ordered = set(Job.__struct_fields__) - set(Course.__struct_fields__)
    assert {"id", "pool", "name", "key", "session", "tenant", "idempotency_key"} <= ordered
    large = replace(ORDERED, session="s" * 10_000)
    assert len(encode_course(large)) == len(encode_course(ORDERED)) < 100
