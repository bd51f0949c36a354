"""Compression is used where it saves space, and decompression is bounded."""

from __future__ import annotations

import random
import tracemalloc
import zlib

import pytest

from poolhand.errors import TooLarge, Undecodable
from poolhand.wire.envelope import CHUNK, Envelope, compress, expand, pack, unpack
from poolhand.wire.limits import Limits
from poolhand.wire.payload import decode, encode

KIB = 1024
NOISE = random.Random(7).randbytes(64 * KIB)


def test_a_large_payload_is_compressed_and_round_trips() -> None:
    value = ["some words"] * 5000
    data = encode(value)
    assert unpack(data, "").compressed
    assert len(data) < 5 * KIB
    assert decode(data) == value


def test_a_small_payload_is_not_compressed() -> None:
    assert not unpack(encode("x" * (8 * KIB - 2)), "").compressed
    assert unpack(encode("x" * (8 * KIB - 1)), "").compressed


def test_compress_above_sets_the_size_from_which_compression_is_tried() -> None:
    assert unpack(encode("x" * 100, limits=Limits(compress_above=0)), "").compressed
    assert not unpack(encode("x" * 20_000, limits=Limits(compress_above=30_000)), "").compressed


def test_a_payload_that_would_save_less_than_a_tenth_is_not_compressed() -> None:
    assert compress(NOISE) is None
    data = encode(NOISE, codec="msgpack")
    assert not unpack(data, "").compressed
    assert decode(data) == NOISE


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK])
def test_every_size_up_to_the_limit_expands(size: int) -> None:
    body = (NOISE * 6)[:size]
    assert expand(zlib.compress(body), size, "it") == body
    if size:
        with pytest.raises(TooLarge, match="it is more than") as caught:
            expand(zlib.compress(body), size - 1, "it")
        assert caught.value.limit == size - 1


@pytest.mark.slow
def test_a_bomb_is_stopped_at_the_limit() -> None:
    body = zlib.compress(bytes(200_000_000), 9)
    limits = Limits(payload=1024 * KIB)
    data = pack(Envelope("json", body, compressed=True))
    tracemalloc.start()
    with pytest.raises(TooLarge, match="more than 1048576 bytes when decompressed"):
        decode(data, limits=limits)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The result, two chunks in progress, and the input: in its envelope and twice as its rest.
    assert peak < limits.payload + 2 * CHUNK + 3 * len(data) + 64 * KIB


def test_a_compressed_body_that_is_cut_is_undecodable() -> None:
    body = zlib.compress(NOISE)
    for size in (0, 1, 2, 100, len(body) // 2, len(body) - 1):
        with pytest.raises(Undecodable, match="it is compressed, and its end is missing"):
            expand(body[:size], len(NOISE), "it")


def test_a_compressed_body_that_is_damaged_is_undecodable() -> None:
    body = bytearray(zlib.compress(b"words " * 1000))
    body[-1] ^= 1
    with pytest.raises(Undecodable, match="cannot be decompressed"):
        expand(bytes(body), 10_000, "it")
    with pytest.raises(Undecodable, match="bytes follow the end"):
        expand(zlib.compress(b"words") + b"more", 10_000, "it")


def test_the_nesting_limit_applies_to_compressed_data() -> None:
    bomb = zlib.compress(b"[" * 200_000)
    with pytest.raises(TooLarge, match="nests deeper than 64"):
        decode(pack(Envelope("json", bomb, compressed=True)))
