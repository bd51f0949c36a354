"""Every example that ends by itself runs twice in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import warm

EXAMPLES = Path(__file__).parents[2] / "examples"
# How to start each so that it ends soon, with its files in the working folder.
ENDING = {
    "demo.py": (
        *("--once", "--sessions", "12", "--seconds", "2", "--speed", "6", "--slots", "4"),
        *("--store", "sqlite:///agents.db"),
    ),
}
SERVERS = {"agent_api.py"}  # keeps nothing; tests/surface/test_agent_api.py starts it
SECONDS = 50


def test_every_example_is_covered_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == ENDING.keys() | SERVERS


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 10)
@pytest.mark.parametrize("name", ENDING)
def test_an_example_runs_twice_in_one_folder(name: str, tmp_path: Path) -> None:
    for time in ("first", "second"):
        done = warm.run([str(EXAMPLES / name), *ENDING[name]], cwd=tmp_path, timeout=SECONDS)
        assert (done.returncode, done.stderr) == (0, ""), f"the {time} time:\n{done.stdout}"
    assert any(tmp_path.iterdir()), "it has kept nothing in the folder: the second run was a first"
