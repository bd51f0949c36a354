"""A value on its way to bytes and back."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from math import inf, nan
from typing import Any, Literal

import msgspec
import pytest

from poolhand.errors import TooLarge, Undecodable, UnknownVersion, UsageError, WireError
from poolhand.wire.envelope import Envelope, pack, unpack
from poolhand.wire.limits import Limits
from poolhand.wire.payload import decode, encode

CODECS = ["json", "msgpack"]
KIB = 1024
MILLION = 1_000_000


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def written(codec: str, body: bytes) -> bytes:
    """An envelope around a body that no codec of poolhand made."""
    return pack(Envelope(codec, body))


# There and back


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1, 2**63, 1.5, -0.0, "", "Bienen 🐝", [], {}, {"a": [1, {"b": None}]}, "null"],
)
def test_a_plain_value_round_trips(codec: str, value: Any) -> None:
    again = decode(encode(value, codec=codec))
    assert (again, type(again)) == (value, type(value))


def test_an_int_stays_exact_however_long_it_is() -> None:
    for value in (2**53 + 1, -(2**64), 10**1000):
        assert decode(encode(value)) == value


def test_an_envelope_contains_its_codec_and_compression() -> None:
    large = Limits(payload=MILLION, compress_above=0)
    for codec in CODECS:
        assert decode(encode(["a"] * 10_000, codec=codec, limits=large)) == ["a"] * 10_000


def test_msgpack_supports_values_that_json_does_not() -> None:
    value = [b"\x00\xff", inf, {1: "a"}]
    assert decode(encode(value, codec="msgpack")) == value


def test_a_small_json_payload_can_be_read_by_eye() -> None:
    assert encode({"topic": "bees"}) == b'PH\x01\x00\x04json{"topic":"bees"}'


# Values that cannot be written


@pytest.mark.parametrize("number", [nan, inf, -inf])
@pytest.mark.parametrize(
    ("value", "place"),
    [
        (lambda x: x, "$"),
        (lambda x: {"a": [None, x]}, "$['a'][1]"),
        (lambda x: {x: 1}, "(the key)"),
    ],
)
def test_json_refuses_nan_and_infinity(number: float, value: Any, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        encode(value(number), what="argument 'score'")
    assert "argument 'score' cannot be written as json, at $" in str(caught.value)
    assert f"{place}: {number} is no number in JSON; give None, or use" in str(caught.value)


def test_nan_is_found_beside_ints_of_any_length() -> None:
    with pytest.raises(UsageError, match=r"\$\[1\]: nan is no number"):
        encode([2**100, nan])
    assert decode(encode([2**100, None])) == [2**100, None]


def test_strings_and_floats_that_resemble_nan_or_infinity_pass() -> None:
    # As a float this contains the bytes that the check for infinity searches.
    (lookalike,) = msgspec.msgpack.decode(b"\x91\xcb\x3f\xcb\x7f\xf0\x00\x00\x00\x00")
    value = [None, "nan", "inf", {"nan": None, "-inf": None}, lookalike]
    assert decode(encode(value)) == value


@pytest.mark.parametrize("codec", CODECS)
def test_text_with_half_a_surrogate_pair_is_refused(codec: str) -> None:
    with pytest.raises(UsageError, match=r"\$\['a'\]\[0\]: it holds half of a surrogate pair"):
        encode({"a": ["\ud83d"]}, codec=codec)
    with pytest.raises(UsageError, match=r"\(the key\): it holds half of a surrogate pair"):
        encode({"\ud83d": 1}, codec=codec)


@pytest.mark.parametrize("codec", CODECS)
def test_an_object_that_cannot_be_encoded_is_refused_with_its_location(codec: str) -> None:
    class Agent:
        pass

    with pytest.raises(UsageError) as caught:
        encode({"team": [1, Agent()]}, codec=codec, what="argument 'crew'")
    assert str(caught.value).startswith(
        f"argument 'crew' cannot be written as {codec}, at $['team'][1]: "
    )
    assert "Agent cannot be written here; give plain values, enums, paths, dataclasses" in str(
        caught.value
    )
    with pytest.raises(UsageError, match="type cannot be written here"):
        encode(Agent, codec=codec)


def test_msgpack_refuses_an_int_that_is_too_long() -> None:
    with pytest.raises(UsageError, match=r"\$\[0\]: the int has more than 64 bits; use codec"):
        encode([2**64], codec="msgpack")


def test_an_int_that_could_not_be_read_back_is_refused() -> None:
    with pytest.raises(UsageError, match="4300 digits"):
        encode(10**5000)


@pytest.mark.parametrize("codec", ["yaml", "JSON", "", None])
def test_an_unknown_codec_is_refused_with_the_known_ones(codec: Any) -> None:
    with pytest.raises(UsageError, match="must be one of 'json', 'msgpack', 'pickle'"):
        encode(1, codec=codec)


# Size


@pytest.mark.parametrize("codec", CODECS)
def test_a_payload_up_to_the_limit_passes_and_one_above_is_refused(codec: str) -> None:
    head = len(encode("", codec=codec)) - len(unpack(encode("", codec=codec), "").body)
    body = len(encode("x" * 900, codec=codec)) - head
    limits = Limits(payload=body)
    assert decode(encode("x" * 900, codec=codec, limits=limits), limits=limits) == "x" * 900
    with pytest.raises(TooLarge) as caught:
        encode("x" * 901, codec=codec, limits=limits, what="argument 'text'")
    assert (caught.value.size, caught.value.limit) == (body + 1, body)
    assert f"argument 'text' is {body + 1} bytes large; the limit is {body}" in str(caught.value)
    with pytest.raises(TooLarge):
        decode(encode("x" * 901, codec=codec), limits=limits)


def test_the_default_limit_is_256_kib() -> None:
    assert len(encode("x" * (256 * KIB - 2))) < 256 * KIB
    with pytest.raises(TooLarge, match="262145 bytes large; the limit is 262144"):
        encode("x" * (256 * KIB - 1))


def test_data_that_is_too_large_is_refused_without_being_parsed() -> None:
    with pytest.raises(TooLarge, match="the limit is 262144"):
        decode(b"\x00" * 10 * MILLION)


def test_the_size_counts_before_compression() -> None:
    limits = Limits(payload=20 * KIB)
    with pytest.raises(TooLarge):
        encode("x" * 21 * KIB, limits=limits)
    with pytest.raises(TooLarge, match="more than 20480 bytes when decompressed"):
        decode(encode("x" * 21 * KIB), limits=limits)


# Depth


@pytest.mark.parametrize("codec", CODECS)
def test_as_many_levels_as_allowed_pass_and_one_more_is_refused(codec: str) -> None:
    assert decode(encode(nested(64), codec=codec)) == nested(64)
    with pytest.raises(TooLarge, match="argument 'tree' nests deeper than 64 levels") as caught:
        encode(nested(65), codec=codec, what="argument 'tree'")
    assert caught.value.limit == 64
    deep = encode(nested(65), codec=codec, limits=Limits(depth=65))
    with pytest.raises(TooLarge):
        decode(deep)


@pytest.mark.parametrize("codec", CODECS)
def test_a_value_that_contains_itself_is_refused(codec: str) -> None:
    ring: list[Any] = []
    ring.append({"self": ring})
    with pytest.raises(TooLarge, match="contains itself or nests too deep"):
        encode(ring, codec=codec)


BOMBS = {
    "arrays": ("json", b"[" * MILLION),
    "closed arrays": ("json", b"[" * MILLION + b"]" * MILLION),
    "objects": ("json", b'{"a":' * MILLION),
    "mixed": ("json", b'[{"a":' * MILLION),
    "msgpack arrays": ("msgpack", b"\x91" * MILLION + b"\x01"),
    "msgpack long arrays": ("msgpack", b"\xdd\x00\x00\x00\x01" * MILLION),
    "msgpack maps": ("msgpack", b"\x81\xa1a" * MILLION),
    "msgpack keys": ("msgpack", b"\x81" * MILLION),
    "msgpack wide": ("msgpack", b"\xdf\xff\xff\xff\xff" * MILLION),
}


class Named(msgspec.Struct):
    """Knows one field, so a decoder skips all others."""

    name: str = ""


@pytest.fixture
def endless_stack() -> Iterator[None]:
    """Python no longer stops recursion before the stack of the process ends."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100 * MILLION)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("type", [Any, list[Any], Named])
@pytest.mark.parametrize(("codec", "body"), BOMBS.values(), ids=list(BOMBS))
@pytest.mark.usefixtures("endless_stack")
def test_a_depth_bomb_is_refused_before_the_stack_feels_it(
    codec: str, body: bytes, type: Any
) -> None:
    with pytest.raises(TooLarge, match="nests deeper than 64 levels"):
        decode(written(codec, body), type, limits=Limits(payload=20 * MILLION))


@pytest.mark.parametrize("type", [Any, list[Any], Named])
@pytest.mark.parametrize(("codec", "body"), BOMBS.values(), ids=list(BOMBS))
def test_a_depth_bomb_within_a_limit_that_is_too_high_is_undecodable(
    codec: str, body: bytes, type: Any
) -> None:
    with pytest.raises(Undecodable):
        decode(written(codec, body), type, limits=Limits(payload=20 * MILLION, depth=10**9))


def test_a_depth_bomb_in_an_unused_field_is_refused() -> None:
    for codec, head, bomb in (("json", b'{"x":', b"["), ("msgpack", b"\x81\xa1x", b"\x91")):
        with pytest.raises(TooLarge, match="nests deeper"):
            decode(written(codec, head + bomb * 100_000), Named)


@pytest.mark.parametrize(
    "body",
    [*(first + b"\xff" * 4 for first in (b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9")),
     b"\xdd\x0f\xff\xff\xff" * 60],
)  # fmt: skip
@pytest.mark.parametrize("type", [Any, tuple[Any, ...], set[int], dict[str, Any], bytes, str])
def test_a_length_that_is_only_claimed_takes_no_memory(body: bytes, type: Any) -> None:
    data = written("msgpack", body)
    tracemalloc.start()
    with pytest.raises(Undecodable):
        decode(data, type)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MILLION


# Bytes that cannot be read


@pytest.mark.parametrize(
    "data",
    [b"", b"P", b"PH", b"PH\x01", b'{"a":1}', b"\x00" * 40, b"PH\x01\x00", b"PH\x01\x00\x04jso",
     b"PH\x00\x00\x04json1", b"PH\x01\xf8\x04json1", b"PH\x01\x04\x04json1",
     b"PH\x01\x00\x02\xff\xffx", b"PH\x01\x00\x04yaml1"],
)  # fmt: skip
def test_bytes_of_another_kind_are_undecodable(data: bytes) -> None:
    with pytest.raises(Undecodable, match="the letter"):
        decode(data, what="the letter")


@pytest.mark.parametrize("version", [3, 7, 255])
def test_a_newer_envelope_asks_for_an_upgrade(version: int) -> None:
    data = encode(1)
    with pytest.raises(UnknownVersion, match=f"newer poolhand.* version {version}.*upgrade"):
        decode(data[:2] + bytes([version]) + data[3:])


@pytest.mark.parametrize(
    ("codec", "body"),
    [("json", b""), ("json", b"{"), ("json", b"1 2"), ("json", b"NaN"), ("json", b"1e999"),
     ("json", b'"\\ud800"'), ("json", b'"\xed\xa0\x80"'), ("json", b'"\xff"'),
     ("json", b"1" * 5000), ("msgpack", b""), ("msgpack", b"\xc1"), ("msgpack", b"\x01\x01"),
     ("msgpack", b"\xa3\xed\xa0\x80"), ("msgpack", b"\xd4\x05a"),
     ("msgpack", b"\x81\x81\x01\x01\x01"), ("msgpack", b"\xd7\xff" + b"\xff" * 8)],
)  # fmt: skip
def test_an_invalid_body_is_undecodable(codec: str, body: bytes) -> None:
    with pytest.raises(Undecodable):
        decode(written(codec, body))


def test_data_that_does_not_fit_raises_only_wire_errors() -> None:
    for type in (int, list[int], dict[str, int], Named, None):
        with pytest.raises(WireError, match="argument 'n' cannot be read as"):
            decode(encode(["a"]), type, what="argument 'n'")


def test_a_long_error_message_is_truncated() -> None:
    with pytest.raises(Undecodable) as caught:
        decode(encode("x" * 5000), Literal["a"])
    assert 500 < len(str(caught.value)) < 1000
