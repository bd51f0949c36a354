"""The depth of data is found without decoding it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from poolhand.wire.limits import json_is_deeper, msgpack_is_deeper


def depth_in_json(body: bytes) -> int:
    return next(depth for depth in range(1000) if not json_is_deeper(body, depth))


def depth_in_msgpack(body: bytes) -> int:
    return next(depth for depth in range(1000) if not msgpack_is_deeper(body, depth))


@pytest.mark.parametrize(
    ("body", "depth"),
    [
        (b"1", 0),
        (b"[]", 1),
        (b"{}", 1),
        (b"[[],[],[]]", 2),
        (b'[{"a":[1]},[2]]', 3),
        (b'["[[[["]', 1),
        (b'["a[","]]b",{}]', 2),
        (rb'["\"[[[", "\\", [], "\\\"["]', 2),
        (rb'["\\\\", "[\n\"[["]', 1),
        (b'{"[":{"]":{}}}', 3),
        (b"[[[", 3),
        (b"]]][", 0),
        (b'"[[[', 0),
        (b"[[]" * 5, 6),
    ],
)
def test_json_is_measured_outside_its_strings(body: bytes, depth: int) -> None:
    assert depth_in_json(body) == depth


ITEMS: list[Any] = [
    None, True, 1, -1, 200, 70_000, 2**40, -200, -70_000, -(2**40), 1.5, "", "x" * 20, "x" * 200,
    "x" * 70_000, b"", b"\x91" * 200, b"\x91" * 300, b"\x91" * 70_000, "\u0411" * 10,
    msgspec.msgpack.Ext(5, b"\x91"), msgspec.msgpack.Ext(5, b"\x91" * 2),
    msgspec.msgpack.Ext(5, b"\x91" * 4), msgspec.msgpack.Ext(5, b"\x91" * 8),
    msgspec.msgpack.Ext(5, b"\x91" * 16), msgspec.msgpack.Ext(5, b"\x91" * 17),
    msgspec.msgpack.Ext(5, b"\x91" * 300), msgspec.msgpack.Ext(5, b"\x91" * 70_000),
]  # fmt: skip


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: repr(item)[:20])
def test_msgpack_is_measured_past_every_kind_of_item(item: Any) -> None:
    body = msgspec.msgpack.encode([item, {"a": item}, [[item, []]], item, []])
    assert depth_in_msgpack(body) == 4


@pytest.mark.parametrize(
    ("value", "depth"),
    [
        (1, 0),
        ([], 1),
        ({}, 1),
        ([[]] * 20, 2),
        ([[]] * 70_000, 2),
        ({str(n): [n] for n in range(20)}, 2),
        ({str(n): [n] for n in range(70_000)}, 2),
        ([{"a": 1, "b": {"c": []}}, []], 4),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_msgpack_is_measured_in_containers_of_any_size(value: Any, depth: int) -> None:
    assert depth_in_msgpack(msgspec.msgpack.encode(value)) == depth


def test_truncated_msgpack_is_measured_as_far_as_it_goes() -> None:
    assert depth_in_msgpack(b"\x91\x91\xdd") == 3
    assert depth_in_msgpack(b"\xc6\xff\xff\xff\xff" + b"\x91" * 100) == 0
    assert depth_in_msgpack(b"\x01" + b"\x91" * 100) == 0
