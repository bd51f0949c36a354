"""Pickle needs a permission and a valid signature; otherwise not a byte of it is read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from poolhand.errors import BadSignature, TooLarge, Undecodable, UsageError, WireError
from poolhand.wire.codec import AllowPickle
from poolhand.wire.envelope import SIGNATURE_BYTES, Envelope, KeyRing, pack
from poolhand.wire.limits import Limits
from poolhand.wire.payload import decode, encode

RING = KeyRing({"k1": b"a secret of ours"}, current="k1")
THIEF = KeyRing({"k1": b"a guess of theirs"}, current="k1")
LENIENT = KeyRing({"k1": b"a secret of ours"}, current="k1", accept_unsigned=True)
ALLOWED = AllowPickle()


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def sprung(tmp_path: Path) -> Path:
    """The folder that exists once the trap has run."""
    return tmp_path / "sprung"


def test_a_signed_pickle_is_read_where_it_is_allowed() -> None:
    value = [range(3), {1, 2}, 2j, ...]
    data = encode(value, codec="pickle", ring=RING, pickle=ALLOWED)
    assert decode(data, ring=RING, pickle=ALLOWED) == value


def test_the_trap_pickle_runs_code_when_it_is_read(sprung: Path) -> None:
    data = encode(Trap(sprung), codec="pickle", ring=RING, pickle=ALLOWED)
    decode(data, ring=RING, pickle=ALLOWED)
    assert sprung.exists()


@pytest.mark.parametrize("ring", [RING, LENIENT, None], ids=["strict", "lenient", "no ring"])
@pytest.mark.parametrize("compressed", [False, True])
def test_an_unsigned_pickle_is_never_read(
    sprung: Path, ring: KeyRing | None, compressed: bool
) -> None:
    data = pack(Envelope("pickle", pickle.dumps(Trap(sprung)), compressed))
    with pytest.raises(BadSignature):
        decode(data, ring=ring, pickle=ALLOWED)
    assert not sprung.exists()


def test_a_wrongly_signed_pickle_is_never_read(sprung: Path) -> None:
    forged = encode(Trap(sprung), codec="pickle", ring=THIEF, pickle=ALLOWED)
    with pytest.raises(BadSignature):
        decode(forged, ring=RING, pickle=ALLOWED)
    with pytest.raises(BadSignature):
        decode(forged, pickle=ALLOWED)
    assert not sprung.exists()


def test_a_signed_pickle_is_not_read_without_the_permission(sprung: Path) -> None:
    data = encode(Trap(sprung), codec="pickle", ring=RING, pickle=ALLOWED)
    anything: Any = True
    for permission in (None, anything):
        with pytest.raises(Undecodable, match="pickle is not allowed here"):
            decode(data, ring=RING, pickle=permission)
    assert not sprung.exists()


def test_an_unsigned_pickle_without_a_permission_is_not_read(sprung: Path) -> None:
    data = pack(Envelope("pickle", pickle.dumps(Trap(sprung))))
    with pytest.raises(Undecodable, match="pickle is not allowed here"):
        decode(data)
    with pytest.raises(BadSignature):
        decode(data, ring=RING)
    assert not sprung.exists()


def test_no_change_to_an_envelope_makes_a_pickle_run(sprung: Path) -> None:
    """Neither by naming it JSON nor by copying a valid signature from another payload."""
    trap = pickle.dumps(Trap(sprung))
    right = encode([1], ring=RING)
    moved = pack(Envelope("pickle", trap, key_id="k1")) + right[-SIGNATURE_BYTES:]
    renamed = right.replace(b"\x04json", b"\x06pickle")
    for data in (moved, renamed, pack(Envelope("json", trap)), pack(Envelope("msgpack", trap))):
        for ring in (RING, LENIENT, None):
            with pytest.raises(WireError):
                decode(data, ring=ring, pickle=ALLOWED)
    assert not sprung.exists()


@pytest.mark.parametrize(
    ("ring", "permission"), [(None, None), (RING, None), (None, ALLOWED), (RING, True)]
)
def test_writing_a_pickle_needs_a_permission_and_a_ring(ring: Any, permission: Any) -> None:
    with pytest.raises(UsageError, match=r"needs pickle=AllowPickle\(\) and a key ring"):
        encode(1, codec="pickle", ring=ring, pickle=permission)


def test_a_value_that_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot be written as pickle, at \$\[1\]"):
        encode([1, lambda: 1], codec="pickle", ring=RING, pickle=ALLOWED)


def test_a_pickle_keeps_to_the_limits() -> None:
    with pytest.raises(TooLarge, match="the limit is 1000"):
        encode("x" * 1000, codec="pickle", ring=RING, pickle=ALLOWED, limits=Limits(payload=1000))
    large = encode("x" * 5000, codec="pickle", ring=RING, pickle=ALLOWED)
    with pytest.raises(TooLarge):
        decode(large, ring=RING, pickle=ALLOWED, limits=Limits(payload=1000))


@pytest.mark.parametrize(
    "body", [b"", b"garbage", b"\x80\x05cno_such\nthing\n.", b"cos\nmkdir\n(tR."]
)
def test_a_signed_pickle_that_cannot_be_read_is_undecodable(body: bytes) -> None:
    data = pack(Envelope("pickle", body, key_id="k1", is_bound=True))
    with pytest.raises(Undecodable):
        decode(data + RING.sign(data), ring=RING, pickle=ALLOWED)
