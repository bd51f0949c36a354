"""Signatures: what they cover, their expiry, and key rings."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from poolhand.errors import BadSignature, Undecodable, UsageError, WireError
from poolhand.wire.envelope import SIGNATURE_BYTES, Envelope, KeyRing, pack
from poolhand.wire.limits import Limits
from poolhand.wire.payload import decode, encode

OLD, NEW = b"old secret, long enough", b"new secret, long enough"
BEFORE = KeyRing({"k1": OLD}, current="k1")
RING = KeyRing({"k2": NEW, "k1": OLD}, current="k2")
AFTER = KeyRing({"k2": NEW}, current="k2")
LENIENT = KeyRing({"k2": NEW}, current="k2", accept_unsigned=True)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_signed_data_is_read(codec: str) -> None:
    large = ["bees"] * 10_000
    assert decode(encode(large, codec=codec, ring=RING), ring=RING) == large


def test_the_current_key_signs_and_every_key_verifies() -> None:
    assert decode(encode(1, ring=BEFORE), ring=RING) == 1
    assert decode(encode(1, ring=RING), ring=AFTER) == 1
    assert (BEFORE.current, RING.current) == ("k1", "k2")


def test_a_key_that_left_the_ring_no_longer_counts() -> None:
    with pytest.raises(BadSignature, match=r"the letter is signed with the key 'k1', .* \('k2'\)"):
        decode(encode(1, ring=BEFORE), ring=AFTER, what="the letter")


def test_another_secret_under_the_same_id_is_refused() -> None:
    thief = KeyRing({"k2": b"a guess that is wrong"}, current="k2")
    with pytest.raises(BadSignature, match="altered after it was signed with the key 'k2'"):
        decode(encode(1, ring=thief), ring=RING)


def test_a_ring_refuses_unsigned_data() -> None:
    with pytest.raises(BadSignature, match="is not signed"):
        decode(encode(1), ring=RING)


def test_a_lenient_ring_reads_unsigned_data_and_verifies_the_rest() -> None:
    assert decode(encode(1), ring=LENIENT) == 1
    assert decode(encode(1, ring=LENIENT), ring=LENIENT) == 1
    with pytest.raises(BadSignature):
        decode(encode(1, ring=LENIENT)[:-1] + b"?", ring=LENIENT)


def test_signed_data_is_not_read_without_a_ring() -> None:
    with pytest.raises(BadSignature, match="no key ring here"):
        decode(encode(1, ring=RING))


@pytest.mark.parametrize("value", [{"a": 1}, ["bees"] * 10_000], ids=["plain", "compressed"])
def test_no_bit_of_an_envelope_can_be_changed(value: Any) -> None:
    data = encode(value, ring=RING, expires_in=60, at=NOW)
    for index in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[index] ^= 1 << bit
            with pytest.raises(WireError):
                decode(bytes(changed), ring=RING, at=NOW)


def test_an_envelope_cannot_be_truncated_or_extended() -> None:
    data = encode({"a": 1}, ring=RING)
    for size in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:size], ring=RING)
    with pytest.raises(BadSignature):
        decode(data + b"\x00", ring=RING)


def test_flags_and_headers_cannot_be_taken_off() -> None:
    expired = encode([1], ring=RING, expires_in=1, at=NOW)
    body, signature = b"[1]", expired[-SIGNATURE_BYTES:]
    with pytest.raises(BadSignature, match="not signed"):
        decode(pack(Envelope("json", body)), ring=RING, at=NOW)
    for key_id in ("k1", "k2"):
        forged = pack(Envelope("json", body, key_id=key_id, is_bound=True))
        with pytest.raises(BadSignature, match="altered"):
            decode(forged + signature, ring=RING, at=NOW)
    later = Envelope("json", body, key_id="k2", expires_ms=2**60, is_bound=True)
    with pytest.raises(BadSignature, match="altered"):
        decode(pack(later) + signature, ring=RING, at=NOW)


def test_nothing_is_decompressed_before_the_signature_is_right() -> None:
    damaged = pack(Envelope("json", b"no zlib", compressed=True, key_id="k2", is_bound=True))
    with pytest.raises(BadSignature):
        decode(damaged + b"\x00" * SIGNATURE_BYTES, ring=RING)
    with pytest.raises(Undecodable, match="cannot be decompressed"):
        decode(damaged + RING.sign(damaged), ring=RING)


# What it is bound to


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_a_signature_is_valid_only_for_the_data_it_is_bound_to(codec: str) -> None:
    data = encode([1], codec=codec, ring=RING, bound=b"job 1")
    assert decode(data, ring=RING, bound=b"job 1") == [1]
    for other in (b"job 2", b"job 1 ", b"", None):
        with pytest.raises(BadSignature, match="altered"):
            decode(data, ring=RING, bound=other)
    with pytest.raises(BadSignature, match="that it is bound to, was altered"):
        decode(data, ring=RING, bound=b"job 2")


def test_unbound_signatures_of_an_older_version_need_accept_unbound() -> None:
    data = encode(1, ring=RING, bound=None)
    assert data[2] == 1
    with pytest.raises(BadSignature, match=r"version 1\); .*KeyRing\(…, accept_unbound=True\)"):
        decode(data, ring=RING, bound=b"job 1")
    ring = KeyRing({"k2": NEW}, current="k2", accept_unbound=True)
    assert decode(data, ring=ring, bound=b"job 1") == 1
    assert decode(data, ring=RING, bound=None) == 1


def test_a_bound_signature_cannot_be_passed_off_as_an_unbound_one() -> None:
    ring = KeyRing({"k2": NEW}, current="k2", accept_unbound=True)
    data = encode(1, ring=RING, bound=b"job 1")
    with pytest.raises(BadSignature, match="altered"):
        decode(data[:2] + b"\x01" + data[3:], ring=ring, bound=b"job 2")
    with pytest.raises(BadSignature, match="altered"):
        decode(data, ring=ring, bound=b"job 2")


# Expiry


def test_a_signature_is_valid_until_it_expires() -> None:
    data = encode(1, ring=RING, expires_in=60, at=NOW)
    assert decode(data, ring=RING, at=NOW + timedelta(seconds=59.9)) == 1
    with pytest.raises(BadSignature, match=r"expired 0\.0 s ago"):
        decode(data, ring=RING, at=NOW + timedelta(seconds=60))
    with pytest.raises(BadSignature, match=r"expired 3540\.0 s ago; send it again"):
        decode(data, ring=RING, at=NOW + timedelta(hours=1))


def test_without_the_time_nothing_that_expires_is_read() -> None:
    data = encode(1, ring=RING, expires_in=60, at=NOW)
    with pytest.raises(BadSignature, match="at=, the current time, is missing"):
        decode(data, ring=RING)


def test_data_without_an_expiry_needs_no_current_time() -> None:
    assert decode(encode(1, ring=RING), ring=RING, at=NOW + timedelta(days=10_000)) == 1


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "60", 1e17])
def test_an_expiry_that_makes_no_sense_is_refused(seconds: Any) -> None:
    with pytest.raises(UsageError, match=r"expires_in="):
        encode(1, ring=RING, expires_in=seconds, at=NOW)


def test_an_expiry_needs_a_ring_and_the_time_with_its_zone() -> None:
    with pytest.raises(UsageError, match="needs a key ring, and at="):
        encode(1, expires_in=60, at=NOW)
    with pytest.raises(UsageError, match="needs a key ring, and at="):
        encode(1, ring=RING, expires_in=60)
    with pytest.raises(UsageError, match="it must be a datetime with a time zone"):
        encode(1, ring=RING, expires_in=60, at=NOW.replace(tzinfo=None))
    with pytest.raises(UsageError, match="it must be a datetime with a time zone"):
        decode(encode(1, ring=RING, expires_in=60, at=NOW), ring=RING, at=NOW.replace(tzinfo=None))


# The ring itself


@pytest.mark.parametrize(
    ("secrets", "current", "complaint"),
    [
        ({}, "k1", "with at least one"),
        (None, "k1", "must be a dict"),
        ({"k1": b"short-s3cret"}, "k1", "has 12 bytes; give at least 16"),
        ({"k1": "s3cret" * 10}, "k1", "is a str; give bytes"),
        ({"k1": OLD}, "k2", "current='k2' is not allowed; it must be one of 'k1'"),
        ({"": OLD}, "", "key id '' is not allowed"),
        ({"k" * 65: OLD}, "k" * 65, "give 1 to 64 ASCII characters"),
        ({"schlüssel": OLD}, "schlüssel", "give 1 to 64 ASCII characters"),
        ({5: OLD}, 5, "key id 5 is not allowed"),
    ],
)
def test_a_key_ring_reports_what_is_wrong_with_its_keys(
    secrets: Any, current: Any, complaint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        KeyRing(secrets, current=current)
    assert complaint in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_key_ring_reports_all_its_faults_at_once() -> None:
    with pytest.raises(UsageError, match=r"KeyRing: .*'a' has 1 bytes.*; .*'b' has 2.*; current="):
        KeyRing({"a": b"1", "b": b"22"}, current="c")


def test_the_repr_of_a_key_ring_shows_no_secrets() -> None:
    assert repr(RING) == "KeyRing('k2', 'k1', current='k2')"
    shown = repr([getattr(RING, name) for name in KeyRing.__slots__])
    assert "secret" not in shown
    assert not hasattr(RING, "__dict__")
    with pytest.raises(TypeError):
        pickle.dumps(RING)
    with pytest.raises(UsageError):
        encode(RING)


def test_no_error_shows_a_secret() -> None:
    thief = KeyRing({"k2": b"a guess that is wrong"}, current="k2")
    for data in (encode(1), encode(1, ring=thief), encode(1, ring=RING)[:-1]):
        with pytest.raises(WireError) as caught:
            decode(data, ring=RING)
        assert "secret, long" not in str(caught.value)


def test_a_ring_does_not_follow_the_dict_it_was_made_from() -> None:
    secrets = {"k1": OLD}
    ring = KeyRing(secrets, current="k1")
    secrets["k1"] = NEW
    assert decode(encode(1, ring=ring), ring=BEFORE) == 1


def test_a_signed_envelope_of_the_largest_payload_passes() -> None:
    ring = KeyRing({"k" * 64: OLD}, current="k" * 64)
    limits = Limits(payload=1000, compress_above=1000)
    data = encode("x" * 998, ring=ring, limits=limits, expires_in=60, at=NOW)
    assert decode(data, ring=ring, limits=limits, at=NOW) == "x" * 998
