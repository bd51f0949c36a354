"""The task registry: functions by their names, and calls as bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from poolhand.durable.calls.task_registry import TaskCode, TaskRegistry, run_apart
from poolhand.errors import BadSignature, Undecodable, UsageError
from poolhand.wire.codec import AllowPickle
from poolhand.wire.envelope import KeyRing
from poolhand.wire.payload import Wire

RING = KeyRing({"a": b"a" * 32}, current="a")


def add(number: int, more: int = 1) -> int:
    return number + more


async def add_later(number: int) -> int:
    return number + 1


class Wrapped:
    """A task that replaces its function in a module."""

    fn = staticmethod(add)

    def method(self) -> None: ...


wrapped = Wrapped()


def code(name: str = "add", fn: Any = add, **options: Any) -> TaskCode:
    return TaskCode(name, fn, Wire(**options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"codec": "msgpack"},
        {"ring": RING},
        {"codec": "pickle", "ring": RING, "pickle": AllowPickle()},
    ],
    ids=["json", "msgpack", "signed", "pickle"],
)
def test_a_call_and_a_result_round_trip(options: dict[str, Any]) -> None:
    one = code(**options)
    assert one.unpack(one.pack((4,), {"more": 5}))() == 9
    assert one.unpack_result(one.pack_result(9)) == 9


def test_a_call_is_one_of_its_task() -> None:
    payload = code("add").pack((4,), {})
    with pytest.raises(Undecodable, match="is one of 'add'; it was moved, and is not made"):
        code("other").unpack(payload)


@pytest.mark.parametrize("payload", [b"", b"\x00" * 9, b"{}", b"\xff" * 100], ids=repr)
def test_bytes_that_hold_no_call_are_refused(payload: bytes) -> None:
    with pytest.raises(Undecodable):
        code().unpack(payload)


def test_bytes_without_a_valid_signature_are_refused() -> None:
    signed = code(ring=RING)
    for other in (code(), code(ring=KeyRing({"a": b"b" * 32}, current="a"))):
        with pytest.raises(BadSignature):
            signed.unpack(other.pack((1,), {}))
        with pytest.raises(BadSignature):
            other.unpack(signed.pack((1,), {}))
    altered = bytearray(signed.pack((1,), {}))
    altered[len(altered) // 2] ^= 1
    with pytest.raises((BadSignature, Undecodable)):
        signed.unpack(bytes(altered))


def test_names_are_unique_and_can_be_looked_up() -> None:
    codes = TaskRegistry()
    first = code("add")
    codes.add(first)
    assert codes.find("add") is first
    assert codes.find("sub") is None
    again = code("add")
    codes.add(again)
    assert codes.find("add") is again, "a module that is loaded again brings its tasks again"
    with pytest.raises(UsageError, match="'add' is registered already"):
        codes.add(code("add", add_later))
    other = code("add", add_later)
    codes.renew(other)
    assert codes.find("add") is other


@pytest.mark.parametrize("name", ["", "  ", 5, None])
def test_a_name_is_a_text(name: Any) -> None:
    with pytest.raises(UsageError, match="it must be a non-blank text"):
        code(name)


def test_an_isolated_call_finds_its_function_by_name() -> None:
    assert run_apart(__name__, "add", (1,), {"more": 5}) == 6
    assert run_apart(__name__, "add_later", (1,), {}) == 2
    assert run_apart(__name__, "wrapped", (1,), {}) == 2, "behind the task that has its name"


def test_only_functions_at_module_level_can_be_imported_by_a_child() -> None:
    def local() -> None: ...

    assert code(fn=add).is_findable
    code(fn=add).check_findable()
    for fn in (local, lambda: None, partial(add, 1)):
        assert not code(fn=fn).is_findable
        with pytest.raises(UsageError, match="at the top level of a module"):
            code(fn=fn).check_findable()
    assert not code(fn=Wrapped().method).is_findable, "it would be called without its object"
