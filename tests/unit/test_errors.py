"""The tree of errors: one root, stable codes, messages that say what to do."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import poolhand
from poolhand import errors
from poolhand.errors import (
    BadSignature,
    Conflict,
    Corrupt,
    Deadlock,
    Directive,
    Draining,
    FileReplaced,
    GiveUp,
    IdempotencyConflict,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobLost,
    JobRejected,
    JobTimedOut,
    NoFreeSlot,
    PoolFull,
    PoolhandError,
    ReadOnly,
    Refused,
    ResultNotKept,
    RetryLater,
    SchemaTooNew,
    SessionBusy,
    SessionErased,
    SessionForbidden,
    Snooze,
    StoreError,
    TooLarge,
    ToolBusy,
    ToolError,
    ToolOutcomeUnknown,
    Unavailable,
    Undecodable,
    UnknownVersion,
    Unsupported,
    UsageError,
    WireError,
)
from poolhand.pool.slots.fault import fault_of

CODES = {
    PoolhandError: "PH-000",
    UsageError: "PH-USE-001",
    SessionForbidden: "PH-USE-002",
    Refused: "PH-POL-000",
    PoolFull: "PH-POL-001",
    NoFreeSlot: "PH-POL-002",
    Draining: "PH-POL-003",
    SessionBusy: "PH-POL-004",
    JobError: "PH-JOB-000",
    JobFailed: "PH-JOB-001",
    JobLost: "PH-JOB-007",
    JobTimedOut: "PH-JOB-002",
    JobCancelled: "PH-JOB-003",
    JobRejected: "PH-JOB-004",
    JobExpired: "PH-JOB-005",
    Deadlock: "PH-JOB-006",
    ResultNotKept: "PH-JOB-008",
    StoreError: "PH-STO-000",
    Unavailable: "PH-STO-001",
    Conflict: "PH-STO-002",
    Unsupported: "PH-STO-003",
    SchemaTooNew: "PH-STO-004",
    Corrupt: "PH-STO-005",
    FileReplaced: "PH-STO-008",
    ReadOnly: "PH-STO-006",
    SessionErased: "PH-STO-007",
    WireError: "PH-WIR-000",
    TooLarge: "PH-WIR-001",
    Undecodable: "PH-WIR-002",
    BadSignature: "PH-WIR-003",
    UnknownVersion: "PH-WIR-004",
    ToolError: "PH-TOL-000",
    ToolBusy: "PH-TOL-001",
    ToolOutcomeUnknown: "PH-TOL-002",
    IdempotencyConflict: "PH-TOL-003",
    Directive: "PH-DIR-000",
    RetryLater: "PH-DIR-001",
    Snooze: "PH-DIR-002",
    GiveUp: "PH-DIR-003",
}

MADE = [
    UsageError("max_concurrent=0 is not allowed"),
    PoolFull("full", retry_after=2.5, policy="bounded(5)"),
    NoFreeSlot("full", policy="fail_fast"),
    Draining("draining", policy="draining"),
    JobFailed("failed", job_id="j1"),
    JobLost("lost", job_id="j1"),
    JobTimedOut("late", job_id="j1"),
    JobCancelled("cancelled", job_id="j1"),
    JobRejected("rejected", job_id="j1", reason="drain_timeout", policy="draining"),
    JobExpired("expired", job_id="j1"),
    Deadlock("deadlock", job_id="j1"),
    Unavailable("busy"),
    Conflict("somebody was first"),
    Unsupported("no tables"),
    SchemaTooNew("number 9"),
    Corrupt("damaged"),
    FileReplaced("another file"),
    ReadOnly("the disk is full"),
    TooLarge("300 bytes", size=300, limit=256),
    Undecodable("garbage"),
    BadSignature("altered"),
    UnknownVersion("version 7"),
    RetryLater(5, "the server is busy"),
    RetryLater(5),
    Snooze(5, "it is night"),
    Snooze(datetime(2030, 1, 1, tzinfo=UTC)),
    GiveUp("wrong input"),
    GiveUp(),
]


def declared() -> list[type[BaseException]]:
    """Return every exception class that the module defines."""
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and value.__module__ == errors.__name__
    ]


def drawn() -> Iterator[tuple[str, str | None]]:
    """Return the names of the tree in the module's docstring, each with its parent."""
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([│├└─ ]*)([A-Z]\w+)(?:\s{2,}|$)", line)
        if found:
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            yield found[2], above[depth - 1] if depth else None


def test_codes_are_stable_and_unique() -> None:
    assert {kind: kind.__dict__["code"] for kind in CODES} == CODES
    assert len(set(CODES.values())) == len(CODES)


def test_every_error_is_in_the_documented_tree() -> None:
    names = {kind.__name__: kind for kind in declared()}
    tree = dict(drawn())
    assert tree.keys() == names.keys()
    for name, parent in tree.items():
        assert parent is None or issubclass(names[name], names[parent])
    assert [name for name, parent in tree.items() if parent is None] == ["PoolhandError"]


def test_every_error_can_be_imported_from_the_module_of_errors() -> None:
    for kind in declared():
        assert getattr(poolhand.errors, kind.__name__) is kind


def test_the_list_of_codes_is_complete() -> None:
    assert set(declared()) == set(CODES)


def test_errors_inherit_from_the_matching_builtin_exceptions() -> None:
    assert issubclass(UsageError, ValueError)
    assert issubclass(PoolFull, asyncio.QueueFull)
    assert issubclass(NoFreeSlot, asyncio.QueueFull)
    assert issubclass(Draining, RuntimeError)
    assert not issubclass(Draining, asyncio.QueueFull)
    assert not issubclass(JobTimedOut, TimeoutError)
    assert not issubclass(JobCancelled, asyncio.CancelledError)


def test_errors_have_attributes_for_programs() -> None:
    full = PoolFull("full", retry_after=2.5, policy="bounded(5)")
    assert (full.code, full.retry_after, full.policy) == ("PH-POL-001", 2.5, "bounded(5)")
    rejected = JobRejected("no", job_id="j1", reason="drain_timeout", policy="draining")
    assert (rejected.job_id, rejected.reason, rejected.policy) == (
        "j1",
        "drain_timeout",
        "draining",
    )
    assert RetryLater(3).retry_after == 3
    assert Snooze(3).until == 3


@pytest.mark.parametrize("error", MADE, ids=repr)
def test_every_error_has_a_message(error: PoolhandError) -> None:
    assert str(error).strip()
    assert type(error).__doc__


@pytest.mark.parametrize("error", MADE, ids=repr)
def test_errors_survive_copy_and_pickle(error: PoolhandError) -> None:
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301  # noqa: S301
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize("error", MADE, ids=repr)
def test_the_text_of_an_error_ends_with_its_code_once(error: PoolhandError) -> None:
    assert str(error) == f"{error.message} [{error.code}]"
    assert error.message == error.args[0]
    assert error.code not in error.message
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert str(again) == str(error)
        assert again.args == error.args


def test_an_error_without_a_message_shows_its_code() -> None:
    assert str(PoolhandError()) == "[PH-000]"
    assert str(UsageError("")) == "[PH-USE-001]"


def test_a_stored_error_has_no_code_and_the_raised_one_has() -> None:
    fault = fault_of(GiveUp("no such customer"))
    assert (fault.type, fault.message) == ("poolhand.errors.GiveUp", "no such customer")
