"""Findings about a server, from its own figures."""

from __future__ import annotations

from typing import Any

import pytest

from poolhand.contract.records import LockHolder, ServerSurvey, TableSize
from poolhand.operate.store_findings import LATE, MUCH_DEAD, OLD, Finding, Level, shape, usable

PLACE = "postgresql://h/db"


def seen(**facts: Any) -> ServerSurvey:
    """Return the facts of a healthy server, except for these."""
    usual: dict[str, Any] = {
        "version": "15.4 (Debian 15.4-1)",
        "role": "me",
        "read_only": False,
        "ahead": 0.1,
        "autovacuum": True,
        "most": 100,
        "connections": 79,
        "tables": (TableSize("poolhand_waits", 10, 5000, 1 << 20),),
    }
    return ServerSurvey(**{**usual, **facts})


def findings(survey: ServerSurvey) -> dict[str, Finding]:
    return {one.check: one for one in (*usable(PLACE, survey), *shape(survey))}


def test_a_healthy_server_has_only_good_findings() -> None:
    found = findings(seen())
    assert list(found) == [
        "server", "rights", "safety", "connections", "tables", "snapshots", "audit", "clock",
    ]  # fmt: skip
    assert {one.level for one in found.values()} == {Level.OK}
    assert found["server"].text == "postgresql://h/db answers, version 15.4"
    assert found["tables"].text == "the tables have 1 MiB"


@pytest.mark.parametrize(
    ("check", "level", "facts", "said"),
    [
        ("server", Level.WRONG, {"read_only": True}, "and is read-only"),
        ("rights", Level.WRONG, {"lacking": ("a",)}, "user 'me' may not use a"),
        ("rights", Level.WRONG, {"lacking": tuple("abcde")}, "may not use a, b, c and 2 more"),
        ("safety", Level.WARN, {"unsafe": ("fsync",)}, "fsync is off"),
        ("safety", Level.WARN, {"unsafe": ("fsync", "x")}, "fsync, x are off"),
        ("connections", Level.WARN, {"connections": 80}, "80 of 100 connections are used"),
        ("tables", Level.WRONG, {"autovacuum": False}, "autovacuum is off"),
        (
            "tables",
            Level.WARN,
            {"tables": (TableSize("t", 9, MUCH_DEAD + 1, 0), TableSize("u", 9, MUCH_DEAD + 2, 0))},
            "u has 100,002 dead rows and 9 live ones",
        ),
        (
            "snapshots",
            Level.WARN,
            {"snapshot": LockHolder("pid 7 (x)", OLD)},
            "pid 7 (x) has been in",
        ),
        (
            "audit",
            Level.WARN,
            {"writer": LockHolder("pid 7 (x)", LATE)},
            "up to 30 s ago: pid 7 (x) has",
        ),
        ("clock", Level.WARN, {"ahead": 6.0}, "6 seconds ahead of this machine's"),
        ("clock", Level.WARN, {"ahead": -3600.0}, "3,600 seconds behind this machine's"),
    ],
    ids=str,
)
def test_each_problem_is_one_finding_with_its_fix(
    check: str, level: Level, facts: dict[str, Any], said: str
) -> None:
    found = findings(seen(**facts))
    assert {one.check for one in found.values() if one.level is not Level.OK} == {check}
    assert found[check].level is level
    assert said in found[check].text
    assert found[check].fix


@pytest.mark.parametrize(
    "facts",
    [
        {"tables": (TableSize("t", 2 * MUCH_DEAD, MUCH_DEAD + 1, 0),)},
        {"tables": (TableSize("t", 0, MUCH_DEAD, 0),)},
        {"snapshot": LockHolder("pid 7", OLD - 1)},
        {"writer": LockHolder("pid 7", LATE - 1)},
        {"ahead": -5.0},
    ],
    ids=["many live", "few dead", "young snapshot", "young writer", "little ahead"],
)
def test_conditions_of_every_busy_server_are_not_findings(facts: dict[str, Any]) -> None:
    assert {one.level for one in findings(seen(**facts)).values()} == {Level.OK}
