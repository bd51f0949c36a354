"""Any value comes back, and any bytes give a value or a WireError."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from poolhand.errors import WireError
from poolhand.wire.codec import AllowPickle
from poolhand.wire.envelope import Envelope, KeyRing, pack
from poolhand.wire.limits import Limits, json_is_deeper, msgpack_is_deeper
from poolhand.wire.payload import decode, encode
from tests.extent import examples

RING = KeyRing({"k2": b"new secret, long enough", "k1": b"old secret, long enough"}, current="k1")
LIMITS = Limits(compress_above=64)
NOW = datetime(2030, 1, 1, tzinfo=UTC)
ALLOWED = AllowPickle()


class Mood(Enum):
    CALM = "calm"
    BUSY = "busy"


@dataclass
class Source:
    url: str
    seen_at: datetime
    size: tuple[int, float]


class Leaf(BaseModel):
    name: str
    seen_at: datetime | None
    parts: set[int]


class Report(msgspec.Struct):
    id: UUID
    cost: Decimal
    took: timedelta
    mood: Mood
    raw: bytes
    labels: frozenset[str]
    sources: list[Source]
    leaf: Leaf | None


TYPES = [
    Any,
    int,
    str,
    bytes,
    list[int],
    dict[str, Any],
    set[str],
    datetime,
    Mood,
    Source,
    Report,
    Leaf,
]

FINITE = st.floats(allow_nan=False, allow_infinity=False)
MOMENTS = st.datetimes(timezones=st.just(UTC) | st.none())


def nested(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=8) | st.dictionaries(keys, inner, max_size=8),
        max_leaves=40,
    )


JSON = nested(st.none() | st.booleans() | st.integers() | FINITE | st.text(), st.text())
SHORT_INTS = st.integers(-(2**63), 2**64 - 1)
MSGPACK = nested(
    st.none() | st.booleans() | SHORT_INTS | st.floats() | st.text() | st.binary(),
    st.text() | SHORT_INTS | st.binary(),
)

SOURCES = st.builds(Source, st.text(), MOMENTS, st.tuples(SHORT_INTS, FINITE))
LEAVES = st.builds(
    Leaf, name=st.text(), seen_at=st.none() | MOMENTS, parts=st.sets(st.integers(-(2**31), 2**31))
)
REPORTS = st.builds(
    Report,
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.timedeltas(timedelta(days=-999), timedelta(days=999)),
    st.sampled_from(Mood),
    st.binary(),
    st.frozensets(st.text()),
    st.lists(SOURCES, max_size=4),
    st.none() | LEAVES,
)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(JSON, st.sampled_from([None, RING]))
def test_any_json_value_round_trips_exactly(value: Any, ring: KeyRing | None) -> None:
    again = decode(encode(value, limits=LIMITS, ring=ring), limits=LIMITS, ring=ring)
    # By their text, which distinguishes 1 from 1.0 and True, and 0.0 from -0.0.
    assert repr(again) == repr(value)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(MSGPACK)
def test_any_msgpack_value_round_trips_exactly(value: Any) -> None:
    again = decode(encode(value, codec="msgpack", limits=LIMITS), limits=LIMITS)
    assert repr(again) == repr(value)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(REPORTS, st.sampled_from(["json", "msgpack"]))
def test_any_typed_value_round_trips(report: Report, codec: str) -> None:
    assert decode(encode(report, codec=codec), Report) == report


def reads_or_refuses(data: bytes, type: Any, ring: KeyRing | None = None) -> None:
    with suppress(WireError):
        decode(data, type, ring=ring, pickle=ALLOWED, at=NOW)


@settings(max_examples=examples(500))
@given(st.binary(max_size=200), st.sampled_from(TYPES), st.sampled_from([None, RING]))
def test_random_bytes_give_wire_errors_only(data: bytes, type: Any, ring: KeyRing | None) -> None:
    reads_or_refuses(data, type, ring)
    reads_or_refuses(b"PH\x01" + data, type, ring)


@settings(max_examples=examples(500))
@given(
    st.binary(max_size=200) | st.text(alphabet='[]{}":,0123456789.eE-\\untrfalsud').map(str.encode),
    st.sampled_from(["json", "msgpack", "pickle"]),
    st.booleans(),
    st.sampled_from(TYPES),
)
def test_random_bodies_give_wire_errors_only(
    body: bytes, codec: str, compressed: bool, type: Any
) -> None:
    reads_or_refuses(pack(Envelope(codec, body, compressed)), type)


@pytest.mark.slow
@settings(max_examples=examples(500))
@given(st.data(), st.sampled_from(["json", "msgpack"]), st.booleans())
def test_a_changed_envelope_gives_wire_errors_only(
    data: st.DataObject, codec: str, signed: bool
) -> None:
    value = data.draw(REPORTS | MSGPACK) if codec == "msgpack" else data.draw(REPORTS | JSON)
    ring = RING if signed else None
    whole = encode(value, codec=codec, limits=LIMITS, ring=ring)
    changed = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for index in data.draw(st.lists(st.integers(0, max(0, len(changed) - 1)), max_size=3)):
        if changed:
            changed[index] ^= 1 << data.draw(st.integers(0, 7))
    type = data.draw(st.sampled_from(TYPES))
    if signed and changed != whole:
        with pytest.raises(WireError):
            decode(bytes(changed), type, limits=LIMITS, ring=RING)
    else:
        reads_or_refuses(bytes(changed), type)


class Trap:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@settings(max_examples=examples(300))
@given(data=st.data(), signed=st.booleans())
def test_no_changed_pickle_is_ever_run(
    data: st.DataObject, signed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sprung = Path(tmp_path_factory.getbasetemp()) / "sprung"
    trap = Trap(str(sprung))
    whole = pack(Envelope("pickle", pickle.dumps(trap)))
    if signed:
        whole = encode(trap, codec="pickle", ring=RING, pickle=ALLOWED)
    changed = bytearray(whole)
    if signed:
        changed[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for ring in (None, RING):
        with pytest.raises(WireError):
            decode(bytes(changed), ring=ring, pickle=ALLOWED)
    assert not sprung.exists()


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(JSON, st.integers(0, 8))
def test_the_depth_of_json_matches_a_walk_over_the_value(value: Any, depth: int) -> None:
    assert json_is_deeper(msgspec.json.encode(value), depth) == (depth_of(value) > depth)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(MSGPACK, st.integers(0, 8))
def test_the_depth_of_msgpack_matches_a_walk_over_the_value(value: Any, depth: int) -> None:
    assert msgpack_is_deeper(msgspec.msgpack.encode(value), depth) == (depth_of(value) > depth)
