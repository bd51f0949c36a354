"""An agent that is killed at every place where that could matter."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.extent import ALSO_POSTGRES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

STEPS = ["s1", "s2", "pay", "s3", "s4", "mail", "s5"]
PLACES = [f"{when} {what}" for what in STEPS for when in ("before", "in", "after")]


@pytest.fixture(params=["sqlite", ALSO_POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    schema: str = request.getfixturevalue("schema")
    return schema


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def expected(place: str, what: str) -> int:
    """Return how often an effect happens when its agent is killed at a place."""
    if place == "in pay" and STEPS.index(what) > STEPS.index("pay"):
        return 0
    # An unfinished step is repeated; a `once` tool is not.
    return 2 if place == f"in {what}" and what not in ("pay", "mail") else 1


def test_killed_at_every_place_an_agent_repeats_nothing_that_it_finished(
    url: str, tmp_path: Path
) -> None:
    command = ["-m", "tests.system.crashing_agent", url, str(tmp_path)]
    ends: list[int] = []
    while not ends or ends[-1] == -signal.SIGKILL:
        ends.append(warm.start(command).wait(warm.LIMIT))
    assert ends == [-signal.SIGKILL] * len(PLACES) + [0]
    outcomes = lines(tmp_path / "outcomes")
    for place, status, result, error, state, tries, last in outcomes:
        # State, outcome and log of a turn are all there or all absent.
        if place == "in pay":
            assert (status, error) == ("failed", "poolhand.errors.ToolOutcomeUnknown")
            assert state is None
        else:
            assert (place, status, result, state) == (place, "completed", STEPS, STEPS)
        assert (place, tries) == (place, ["queued", status])
        assert last == status
    assert [one[0] for one in outcomes] == PLACES
    happened = Counter((place, what) for place, what in lines(tmp_path / "ledger"))
    for place in PLACES:
        for what in STEPS:
            assert (place, what, happened[place, what]) == (place, what, expected(place, what))
