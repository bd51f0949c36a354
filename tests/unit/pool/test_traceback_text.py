"""The record of a failure has the whole reason: causes, contexts and sub-exceptions."""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from weakref import ref

import pytest

from poolhand import Pool, wait
from poolhand.pool.slots.fault import LONGEST_TEXT, bounded, fault_of
from poolhand.views import Fault


async def boom() -> None:
    raise KeyError("the real reason")


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(boom())


async def with_a_cause() -> None:
    try:
        await boom()
    except KeyError as error:
        raise RuntimeError("outer") from error


async def with_a_context() -> None:
    try:
        await boom()
    except KeyError:
        raise RuntimeError("outer")  # noqa: B904


async def without_a_context() -> None:
    try:
        await boom()
    except KeyError:
        raise RuntimeError("outer") from None


async def interrupted() -> None:
    raise KeyboardInterrupt


def leave() -> None:
    sys.exit(3)


async def fault_in(pool: Pool, job: Any) -> Fault:
    fault = (await wait(await pool.submit(job))).error
    assert fault is not None
    assert "substrate.py" not in fault.traceback
    assert "child.py" not in fault.traceback
    return fault


async def test_a_group_is_kept_with_its_sub_exceptions() -> None:
    async with Pool() as pool:
        fault = await fault_in(pool, in_a_group)
    text = "unhandled errors in a TaskGroup (1 sub-exception): KeyError: 'the real reason'"
    assert (fault.type, fault.message) == ("ExceptionGroup", text)
    assert "in boom" in fault.traceback
    assert "| KeyError: 'the real reason'" in fault.traceback


@pytest.mark.parametrize("job", [with_a_cause, with_a_context])
async def test_the_cause_and_the_context_of_an_error_are_kept(job: Any) -> None:
    async with Pool() as pool:
        fault = await fault_in(pool, job)
    assert (fault.type, fault.message) == ("RuntimeError", "outer")
    first, _, last = fault.traceback.partition("exception")
    assert "in boom" in first
    assert "KeyError: 'the real reason'" in first
    assert last.endswith("RuntimeError: outer\n")


async def test_a_context_that_is_suppressed_is_left_out() -> None:
    async with Pool() as pool:
        fault = await fault_in(pool, without_a_context)
    assert "the real reason" not in fault.traceback
    assert fault.traceback.startswith("Traceback (most recent call last):\n  File ")
    assert fault.traceback.endswith("RuntimeError: outer\n")


@pytest.mark.parametrize(
    ("job", "place", "run_in"),
    [
        (interrupted, "raise KeyboardInterrupt", None),
        (leave, "sys.exit(3)", "thread"),
        (leave, "sys.exit(3)", "loop"),
        (leave, "sys.exit(3)", "process"),
    ],
)
async def test_the_location_of_a_system_exit_is_recorded(job: Any, place: str, run_in: Any) -> None:
    async with Pool(run_in=run_in) as pool:
        fault = await fault_in(pool, job)
    assert fault.type == "poolhand.errors.JobFailed"
    assert f"in {job.__name__}" in fault.traceback
    assert place in fault.traceback


def nested_cause() -> None:
    try:
        raise KeyError("the real reason")
    except KeyError as error:
        raise RuntimeError("outer") from error


async def test_a_child_process_sends_the_full_cause_chain() -> None:
    async with Pool(run_in="process") as pool:
        fault = await fault_in(pool, nested_cause)
    assert "KeyError: 'the real reason'" in fault.traceback
    assert "in nested_cause" in fault.traceback


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_long_tracebacks_keep_both_ends() -> None:
    error = raised(ValueError("the first"))
    for number in range(500):
        try:
            raise ValueError("x" * 10_000 if number == 250 else str(number)) from error
        except ValueError as caught:
            error = caught
    text = fault_of(error).traceback
    assert len(text) <= LONGEST_TEXT + 100
    assert "ValueError: the first\n" in text
    assert " lines left out …\n" in text
    assert text.endswith("ValueError: 499\n")


def test_a_text_within_the_limit_is_unchanged() -> None:
    assert bounded("one\ntwo\n") == "one\ntwo\n"
    assert bounded("x" * 3_000) == "x" * 2_000 + "…"


class Broken(Exception):
    def __str__(self) -> str:
        raise SystemExit

    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise KeyboardInterrupt


class BrokenGroup(ExceptionGroup):
    def __str__(self) -> str:
        raise ValueError("no")


def test_an_error_whose_message_raises_still_has_a_traceback() -> None:
    assert "raise error" in fault_of(raised(RuntimeError(Broken()))).traceback
    group = fault_of(raised(BrokenGroup("several", [ValueError("one"), Broken()])))
    assert group.message == "<its message cannot be formatted>"
    assert "ValueError: one" in group.traceback or "raise error" in group.traceback


def test_the_message_of_a_group_names_a_few_sub_exceptions() -> None:
    inner = ExceptionGroup("inner", [ValueError(2), OSError(), ValueError(4)])
    fault = fault_of(ExceptionGroup("outer", [ValueError(1), inner]))
    assert fault.message == "outer (2 sub-exceptions): ValueError: 1; ValueError: 2; OSError; …"


def test_a_record_holds_no_frames() -> None:
    class Held:
        pass

    def fail() -> Fault:
        held = Held()
        holders.append(ref(held))
        try:
            raise ValueError("held")
        except ValueError as error:
            return fault_of(error)

    holders: list[ref[Held]] = []
    fault = fail()
    assert "ValueError: held" in fault.traceback
    assert holders[0]() is None


def test_an_error_that_was_never_raised_has_no_traceback() -> None:
    assert fault_of(ValueError("made, not raised")).traceback == ""
