"""A suspect agent runs in a process of its own, with the same abilities as elsewhere."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests import warm
from tests.extent import ALSO_POSTGRES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(params=["sqlite", ALSO_POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    schema: str = request.getfixturevalue("schema")
    return schema


def test_state_steps_tools_and_events_reach_their_store_from_there(
    url: str, tmp_path: Path
) -> None:
    command = ["-m", "tests.system.agent_alone", url, str(tmp_path / "tries")]
    for _ in range(2):
        assert warm.start(command).wait(warm.LIMIT) == -signal.SIGKILL
    done = warm.run(command, timeout=warm.LIMIT)
    assert done.returncode == 0, done.stderr
    # The lines before it are log lines about the two killed processes.
    told = json.loads(done.stderr.splitlines()[-1])
    assert told["own"]
    assert (told["found"]["sum"], told["found"]["number"]) == (6, 5)
    assert len(told["found"]["key"]) == 64
    assert told["chunks"] == list(range(2000))
    assert told["numbers"] == list(range(1, len(told["numbers"]) + 1))
    assert told["log"] == ["from its own process"]
    assert told["messages"] == ["hello"]
    assert done.stdout == "from its own process\n"
