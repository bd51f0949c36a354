"""What a supervisor and a worker say arrives as it was said, however the pipe cuts it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolhand.farm.protocol import (
    Alive,
    Answer,
    Ask,
    Beat,
    Bye,
    Employ,
    Failed,
    Happened,
    Inbox,
    Orders,
    Stop,
    Words,
    packed,
)
from poolhand.farm.records import FinishedJob, RunningJob, Snapshot
from poolhand.rules.job import Fault, Status
from poolhand.rules.scaling.farm_settings import FarmSettings

AT = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
RUNNING = RunningJob("j-1", "fetch", "web", AT, "soft_timeout")
FINISHED = FinishedJob(
    "j-2", "fetch", "web", Status.FAILED, 3, AT, 1.5, "box-1.2", Fault("E", "\x00…", "")
)
ORDERS: list[Orders] = [
    Employ("shop:app", "box-1", "box-1.2", FarmSettings(soft_timeout_s=3.0), ("web",), "debug"),
    Alive(),
    Stop("box-1", None, "fewer are enough"),
    Stop("box-1", 0.0, ""),
    Ask(7, 3, 100),
]
WORDS: list[Words] = [
    Beat(True, None, 1, 0, 5, 2, 10**9, 0.25, (RUNNING,), (FINISHED,)),
    Beat(False, "it must", 0, 0, 0, 0, 0, 0.0),
    Happened("line\nbreak", "j-1"),
    Failed("no " * 100_000),
    Answer(7, Snapshot("box-1", None, (RUNNING,), (FINISHED,) * 100, 9)),
    Bye(1, 2, 3),
]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % len(data) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.lists(st.integers(0, 10**6), max_size=20))
def test_orders_arrive_however_they_are_cut(places: list[int]) -> None:
    inbox = Inbox()
    pieces = cut(b"".join(map(packed, ORDERS)), places)
    assert [order for piece in pieces for order in inbox.orders(piece)] == ORDERS


@given(st.lists(st.integers(0, 10**6), max_size=20))
def test_words_arrive_however_they_are_cut(places: list[int]) -> None:
    inbox = Inbox()
    pieces = cut(b"".join(map(packed, WORDS)), places)
    assert [word for piece in pieces for word in inbox.words(piece)] == WORDS


def test_a_word_that_comes_byte_by_byte_is_heard_with_its_last() -> None:
    inbox, data = Inbox(), packed(WORDS[0])
    heard = [inbox.words(data[place : place + 1]) for place in range(len(data))]
    assert heard == [*([[]] * (len(data) - 1)), [WORDS[0]]]


def test_what_one_side_says_is_no_word_of_the_other() -> None:
    with pytest.raises(msgspec.ValidationError):
        Inbox().orders(packed(WORDS[0]))
