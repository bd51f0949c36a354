"""The record of a session: which states are kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from poolhand.agents.session import SessionRecord, read, write
from poolhand.errors import UsageError


@dataclass
class Message:
    text: str


def record(state: Any) -> SessionRecord:
    return SessionRecord("s-1", None, None, 1, "job-1", state)


def test_plain_data_round_trips() -> None:
    state = {"turns": 3, "messages": [{"role": "user", "at": None}], "cost": 0.5, "long": 10**30}
    assert read(write(record(state))).state == state


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            {"at": datetime(2030, 1, 1, tzinfo=UTC)},
            "holds a datetime at state['at'], which JSON would give back as a str; store "
            "state['at'].isoformat()",
        ),
        ({"a": [{"seen": {1}}]}, "holds a set at state['a'][0]['seen'], which JSON would give"),
        ({"a": (1, 2)}, "store list(state['a'])"),
        ({"a": Path("b")}, "store str(state['a'])"),
        ({"messages": [Message("hi")]}, "store dataclasses.asdict(state['messages'][0])"),
        ({"a": {1: 2}}, "has an int as a key of state['a'], and JSON has only text as keys"),
        ({"a": object()}, "which cannot be stored as JSON; store the data it is made from"),
        ({"a": [nan]}, "holds nan at state['a'][0], which is not a number in JSON"),
        ({"a": {"b": inf}}, "holds inf at state['a']['b'], which is not a number in JSON"),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0][:40],
)
def test_data_that_json_would_change_is_refused_with_an_alternative(state: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        write(record(state))
    assert str(caught.value).startswith("the state of session 's-1' ")
    assert said in str(caught.value)
