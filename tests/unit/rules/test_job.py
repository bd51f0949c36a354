"""The record of a job."""

from __future__ import annotations

import msgspec
import pytest

from poolhand.rules.job import TERMINAL, WAITING, Status
from tests.unit.rules.floor import new_job


def test_every_state_waits_or_runs_or_is_final() -> None:
    assert {*WAITING, Status.RUNNING, *TERMINAL} == set(Status)
    assert not WAITING & TERMINAL
    assert [one for one in Status if one.waiting] == ["scheduled", "blocked", "queued"]
    assert {one for one in Status if one.terminal} == {
        "completed", "failed", "cancelled", "expired", "rejected",
    }  # fmt: skip


def test_a_job_record_is_immutable() -> None:
    with pytest.raises(AttributeError):
        new_job().status = Status.RUNNING  # type: ignore[misc]


def test_timestamps_are_encoded_as_utc_in_iso_8601() -> None:
    encoded = msgspec.json.decode(msgspec.json.encode(new_job()))
    assert encoded["submitted_at"] == "2026-01-01T00:00:00Z"
    assert encoded["status"] == "queued"
