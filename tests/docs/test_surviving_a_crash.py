"""The program of the page about crashes, killed by a test."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from threading import Event

import pytest

from tests import warm
from tests.docs.test_code_blocks import REPOSITORY, scripts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PAGE = "docs/howto/surviving-a-crash.md"
TEXT = "bees are small, bees can fly (order of a book on bees)"


def lines_of(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines() if ledger.exists() else []


def test_an_agent_killed_while_it_searches_orders_and_writes_completes(tmp_path: Path) -> None:
    (script,) = scripts(PAGE, (REPOSITORY / PAGE).read_text(encoding="utf-8"))
    (tmp_path / "agent.py").write_text(script.text, encoding="utf-8")
    ledger, beat = tmp_path / "ledger.txt", Event()
    for wanted in ("searched bees", "ordered a book on bees", "wrote"):
        process = warm.start(["agent.py"], cwd=tmp_path)
        while wanted not in lines_of(ledger):
            assert process.poll() is None, "it ended by itself"
            beat.wait(0.005)
        process.kill()
        process.wait()
    done = warm.run(["agent.py"], cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, TEXT)
    again = warm.run(["agent.py"], cwd=tmp_path)
    assert (again.returncode, again.stdout.strip()) == (0, TEXT)
    happened = Counter(lines_of(ledger))
    assert happened["ordered a book on bees"] == 1
    # Each was killed before its record; no finished work is repeated.
    assert (happened["searched bees"], happened["wrote"]) == (2, 2)
