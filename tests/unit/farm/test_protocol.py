"""Messages between supervisor and worker arrive intact, however the pipe splits them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolhand.farm.protocol import (
    Goodbye,
    HeartbeatMessage,
    MessageBuffer,
    Ping,
    SnapshotAnswer,
    SnapshotRequest,
    Start,
    StartFailed,
    Stop,
    SupervisorMessages,
    TroubleReport,
    WorkerMessages,
    packed,
)
from poolhand.farm.records import FinishedJob, RunningJob, Snapshot
from poolhand.rules.job import Fault, Status
from poolhand.rules.scaling.worker_count import FarmSettings

AT = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
RUNNING = RunningJob("j-1", "fetch", "web", AT, "soft_timeout")
FINISHED = FinishedJob(
    "j-2", "fetch", "web", Status.FAILED, 3, AT, 1.5, "box-1.2", Fault("E", "\x00…", "")
)
ORDERS: list[SupervisorMessages] = [
    Start("shop:app", "box-1", "box-1.2", FarmSettings(soft_timeout_s=3.0), ("web",), "debug"),
    Ping(),
    Stop("box-1", None, "fewer are enough"),
    Stop("box-1", 0.0, ""),
    SnapshotRequest(7, 3, 100),
]
WORDS: list[WorkerMessages] = [
    HeartbeatMessage(True, None, 1, 0, 5, 2, 10**9, 0.25, (RUNNING,), (FINISHED,)),
    HeartbeatMessage(False, "it must", 0, 0, 0, 0, 0, 0.0),
    TroubleReport("line\nbreak", "j-1"),
    StartFailed("no " * 100_000),
    SnapshotAnswer(7, Snapshot("box-1", None, (RUNNING,), (FINISHED,) * 100, 9)),
    Goodbye(1, 2, 3),
]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % len(data) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.lists(st.integers(0, 10**6), max_size=20))
def test_supervisor_messages_are_decoded_from_chunks_of_any_size(places: list[int]) -> None:
    inbox = MessageBuffer()
    pieces = cut(b"".join(map(packed, ORDERS)), places)
    assert [order for piece in pieces for order in inbox.from_supervisor(piece)] == ORDERS


@given(st.lists(st.integers(0, 10**6), max_size=20))
def test_worker_messages_are_decoded_from_chunks_of_any_size(places: list[int]) -> None:
    inbox = MessageBuffer()
    pieces = cut(b"".join(map(packed, WORDS)), places)
    assert [word for piece in pieces for word in inbox.from_worker(piece)] == WORDS


def test_a_message_received_byte_by_byte_is_decoded_with_its_last_byte() -> None:
    inbox, data = MessageBuffer(), packed(WORDS[0])
    heard = [inbox.from_worker(data[place : place + 1]) for place in range(len(data))]
    assert heard == [*([[]] * (len(data) - 1)), [WORDS[0]]]


def test_a_worker_message_is_invalid_as_a_supervisor_message() -> None:
    with pytest.raises(msgspec.ValidationError):
        MessageBuffer().from_supervisor(packed(WORDS[0]))
