"""The row that proves the others: each bug on purpose must be found by the row it concerns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.faults.checker import Verdict
from tests.faults.crew import RunFailed
from tests.faults.planted import PLANTED, planted
from tests.faults.row_clock import clock
from tests.faults.row_crowd import crowd
from tests.faults.row_drain import drain
from tests.faults.row_fence import fence
from tests.faults.row_kills import kills, restart
from tests.faults.row_poison import poison
from tests.faults.rows import Row, Settings

SHORT: dict[str, Row] = {
    "kills": kills,
    "restart": restart,
    "crowd": crowd,
    "fence": fence,
    "drain": drain,
    "poison": poison,
    "clock": clock,
}
KILLS, JOBS = 10, 200


def planted_bugs(folder: Path, settings: Settings) -> Verdict:
    """Play the short rows with one bug each."""
    verdict = Verdict()
    for name in PLANTED:
        said = find(folder / name, settings, name)
        settings.say(f"{name}: {said or 'NOT FOUND'}")
        if not said:
            verdict.faults.append(f"missed: the bug {name} was not found")
    verdict.figures["found"] = len(PLANTED) - len(verdict.faults)
    return verdict


def find(folder: Path, settings: Settings, name: str) -> str:
    """Play the row that should find a bug; return what it said of it."""
    _, row, expected = PLANTED[name]
    folder.mkdir()
    short = replace(settings, kills=KILLS, jobs=JOBS, say=lambda text: None)
    try:
        with planted(name):
            faults = SHORT[row](folder, short).faults
    except RunFailed as failure:
        settings.say(f"{row} was not played to its end: {failure}")
        return ""
    return next((fault for fault in faults if fault.startswith(f"{expected}:")), "")
