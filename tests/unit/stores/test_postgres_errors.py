"""Errors of PostgreSQL: which are transient, which break the connection, and what callers get."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from msgspec import MsgspecError

from poolhand.errors import Conflict, Corrupt, PoolhandError, ReadOnly, Unavailable, UsageError
from poolhand.stores.postgres import errors as faults

WHERE = "postgresql://host/jobs"


def of_server(state: str, text: str = "some words") -> asyncpg.PostgresError:
    """Return the driver's error for an answer of the server."""
    fields: dict[str, Any] = {"S": "ERROR", "C": state, "M": text}
    error: asyncpg.PostgresError = asyncpg.PostgresError.new(fields)
    return error


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("53100", ReadOnly),
        ("25006", ReadOnly),
        ("42501", ReadOnly),
        ("53300", Unavailable),
        ("57014", Unavailable),
        ("57P01", Unavailable),
        ("40P01", Unavailable),
        ("55P03", Unavailable),
        ("08006", Unavailable),
        ("58030", Unavailable),
        ("XX000", Unavailable),
        ("0A000", Unavailable),
        ("XX001", Unavailable),
        ("42P01", Corrupt),
        ("42703", Corrupt),
        ("3F000", Corrupt),
        ("23514", Corrupt),
        ("22003", UsageError),
    ],
)
def test_each_sqlstate_maps_to_an_error(state: str, kind: type[PoolhandError]) -> None:
    told = faults.translate(of_server(state), WHERE)
    assert type(told) is kind
    assert "some words" in str(told)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("26000", 'prepared statement "__asyncpg_stmt_3__" does not exist'),
        ("42P05", 'prepared statement "__asyncpg_stmt_3__" already exists'),
        ("08P01", "bind message supplies 1 parameters, but prepared statement requires 2"),
    ],
)
def test_a_prepared_statement_error_is_reported_as_an_unnamed_pooler(state: str, text: str) -> None:
    error = of_server(state, text)
    told = faults.translate(error, WHERE)
    assert type(told) is Unavailable
    assert "PgBouncer" in str(told)
    assert "?pooler=transaction" in str(told)


def test_a_known_id_is_a_conflict() -> None:
    error = asyncpg.PostgresError.new(
        {"S": "ERROR", "C": "23505", "M": "twice", "n": faults.KNOWN_ID}
    )
    assert isinstance(faults.translate(error, WHERE), Conflict)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), Unavailable),
        (ConnectionResetError("reset"), Unavailable),
        (OSError(113, "No route to host"), Unavailable),
        (asyncpg.InterfaceError("connection is closed"), Unavailable),
        (asyncpg.InternalClientError("out of step"), Unavailable),
        (asyncpg.exceptions.ProtocolError("garbled"), Unavailable),
        (asyncpg.exceptions._base.DataError("invalid input for query argument $1"), UsageError),
        (OverflowError("too large"), UsageError),
        (MsgspecError("no record"), Corrupt),
        (UsageError("mine"), UsageError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value.__name__,
)
def test_every_driver_or_network_error_is_translated(
    error: Exception, kind: type[PoolhandError]
) -> None:
    assert type(faults.translate(error, WHERE)) is kind


def test_an_error_of_our_own_code_is_not_hidden() -> None:
    error = AttributeError("a fault of ours")
    assert faults.translate(error, WHERE) is error


def test_transient_errors_are_distinct_from_lost_connections() -> None:
    passing = [of_server(state) for state in ("40001", "40P01", "55P03")]
    passing.append(asyncpg.InvalidCachedStatementError("cached plan must not change"))
    cut = [of_server(state) for state in ("57P01", "57P02", "57P03", "57P05", "08003", "25P03")]
    others: list[Exception] = [of_server(state) for state in ("57014", "53100", "25006", "23505")]
    cut_on_the_way: list[Exception] = [
        ConnectionResetError(),
        asyncpg.InterfaceError("connection is closed"),
        asyncio.IncompleteReadError(b"", 1),
    ]
    neither: list[Exception] = [
        asyncpg.exceptions._base.DataError("invalid input"),
        TimeoutError(),
        ValueError(),
        UsageError(""),
    ]
    assert all(map(faults.is_passing, passing))
    assert not any(map(faults.is_cut, passing))
    assert all(map(faults.is_cut, [*cut, *cut_on_the_way]))
    assert not any(map(faults.is_passing, [*cut, *cut_on_the_way]))
    assert not any(map(faults.is_cut, [*others, *neither]))
    assert not any(map(faults.is_passing, [*others, *neither]))
