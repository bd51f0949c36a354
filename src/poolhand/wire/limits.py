"""Limits: the largest size and nesting of one payload, and how deep data nests."""

from __future__ import annotations

from itertools import accumulate

from poolhand.misuse import OptionsStruct
from poolhand.rules.validation import COUNT, WHOLE, OptionRule, OptionTable, check_record

KIB = 1024

_BYTES = OptionRule(COUNT.fits, f"bytes, {COUNT.text}")
ALLOWED: OptionTable = {
    "payload": _BYTES,
    "depth": COUNT,
    "state": _BYTES,
    "compress_above": OptionRule(WHOLE.fits, f"bytes, {WHOLE.text}"),
}


class Limits(OptionsStruct, frozen=True):
    """The limits of a payload: bytes before compression, and levels of nesting.

    Payloads above `compress_above` bytes are compressed if that saves space. `state` limits the
    state of a session, in bytes of JSON; every turn writes it as a whole.
    """

    payload: int = 256 * KIB
    depth: int = 64
    compress_above: int = 8 * KIB
    state: int = 1024 * KIB

    def __post_init__(self) -> None:
        check_record(self, ALLOWED)


LIMITS = Limits()


# Brackets as steps down and up, in signed bytes.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_SHAPE = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def json_is_deeper(body: bytes, depth: int) -> bool:
    """Return whether the arrays and objects of a JSON text nest deeper than `depth` levels."""
    if body.count(b"[") + body.count(b"{") <= depth:
        return False
    # Without escapes every quote begins or ends a string, so every second piece is inside one.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    shape = plain.translate(_STEPS, _NO_SHAPE).replace(b'""', b"")
    if b'"' in shape:
        shape = b"".join(shape.split(b'"')[::2])
    return max(accumulate(memoryview(shape).cast("b")), default=0) > depth


# First byte → how many bytes hold the length, and how many more follow besides those it counts.
_BINARY = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0)}
_EXTENSION = {0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_TEXT = {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_COUNTED = _BINARY | _EXTENSION | _TEXT
# First byte → how many bytes hold the count, and how many items each count stands for.
_ARRAYS = {0x90 + count: (0, 1) for count in range(16)} | {0xDC: (2, 1), 0xDD: (4, 1)}
_MAPS = {0x80 + count: (0, 2) for count in range(16)} | {0xDE: (2, 2), 0xDF: (4, 2)}
_CONTAINERS = _ARRAYS | _MAPS
_NO_CONTAINER = bytes(byte for byte in range(256) if byte not in _CONTAINERS)


def _scalar_sizes() -> list[int]:
    sizes = [1] * 256
    sizes[0xA0:0xC0] = range(1, 33)
    sizes[0xCA:0xD4] = [5, 9, 2, 3, 5, 9, 2, 3, 5, 9]
    sizes[0xD4:0xD9] = [3, 4, 6, 10, 18]
    for first in (*_COUNTED, *_CONTAINERS):
        sizes[first] = 0
    return sizes


# First byte → the size of the whole item, 0 where that byte does not determine it.
_SIZES = _scalar_sizes()


def msgpack_is_deeper(body: bytes, depth: int) -> bool:
    """Return whether the arrays and maps of MessagePack data nest deeper than `depth` levels.

    Truncated data is measured up to its end.
    """
    if len(body.translate(None, _NO_CONTAINER)) <= depth:
        return False
    sizes, counted = _SIZES, _COUNTED
    outer: list[int] = []
    left, at, end = 1, 0, len(body)
    while at < end:
        while not left:
            if not outer:
                return False
            left = outer.pop()
        left -= 1
        first = body[at]
        size = sizes[first]
        if size:
            at += size
        elif first in counted:
            width, beside = counted[first]
            at += 1 + width
            at += beside + int.from_bytes(body[at - width : at], "big")
        else:
            width, each = _CONTAINERS[first]
            at += 1 + width
            outer.append(left)
            left = each * (int.from_bytes(body[at - width : at], "big") if width else first & 0x0F)
            if len(outer) > depth:
                return True
    return False
