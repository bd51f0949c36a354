"""The envelope format: stored data stays readable, byte for byte."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from poolhand.errors import Undecodable
from poolhand.wire.envelope import SIGNATURE_BYTES, Envelope, KeyRing, pack, unpack
from poolhand.wire.payload import decode

SECRETS = {"k2": b"new secret, long enough"}
RING = KeyRing(SECRETS, current="k2", accept_unsigned=True, accept_unbound=True)
NOW = datetime(2030, 1, 1, tzinfo=UTC)

# Never change these: stores contain such data. A new format gets a new version.
VERSION_1: list[tuple[bytes, Any]] = [
    (b'PH\x01\x00\x04json{"a":[1,"b"]}', {"a": [1, "b"]}),
    (b"PH\x01\x00\x07msgpack\x81\xa1a\x92\x01\xc4\x01b", {"a": [1, b"b"]}),
    (b"PH\x01\x01\x04jsonx\x01S\xaa\xa0\x03P\x02\x00|\xab/%", "x" * 100),
    (
        b"PH\x01\x06\x04json\x02k2\x00\x00\x01\xb8\xda\xc6\x9e`[1]u\xd9\x8a\x94E\x91\x95\x91\x94"
        b"\xb9\xaeD2\xf0\xedw\xc2\x13\xf9\x05nr\x7f\xfc\xbdgc\x08\x80\x85\x83r",
        [1],
    ),
]


VERSION_2 = (
    b"PH\x02\x02\x04json\x02k2[1]\x186\n\xd6\xa6B\xd0\x9fb\x1e"
    b"\xe9\x996X\x8b\xc0\x11*\x88\x93\x99\xb3\x91\xb8\xfc\x04\x1a@v\x86\x9c\xa5"
)


@pytest.mark.parametrize(("data", "value"), VERSION_1, ids=["json", "msgpack", "packed", "signed"])
def test_data_of_version_1_stays_readable(data: bytes, value: Any) -> None:
    assert decode(data, ring=RING, at=NOW) == value


def test_data_of_version_2_stays_readable() -> None:
    assert decode(VERSION_2, ring=KeyRing(SECRETS, current="k2"), bound=b"job 1", at=NOW) == [1]


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope("json", b""),
        Envelope("json", b"body", compressed=True),
        Envelope("c" * 255, b"body", key_id="k" * 64),
        Envelope("msgpack", b"body", compressed=True, key_id="k", expires_ms=0),
        Envelope("pickle", b"", key_id="k", expires_ms=2**64 - 1),
        Envelope("json", b"body", key_id="k", is_bound=True),
    ],
)
def test_an_envelope_round_trips(envelope: Envelope) -> None:
    tail = b"\x00" * SIGNATURE_BYTES if envelope.key_id is not None else b""
    assert unpack(pack(envelope) + tail, "it") == envelope


def test_a_head_that_is_cut_anywhere_is_undecodable() -> None:
    whole = pack(Envelope("json", b"", key_id="k2", expires_ms=1)) + b"\x00" * SIGNATURE_BYTES
    for size in range(len(whole)):
        with pytest.raises(Undecodable, match=r"^it is "):
            unpack(whole[:size], "it")
    for cut in (b"PH\x01\x00\x06json", b"PH\x01\x02\x04json\x40" + b"k" * 63):
        with pytest.raises(Undecodable, match="the head of its envelope is cut"):
            unpack(cut, "it")
