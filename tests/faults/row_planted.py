"""The row that proves the others: each planted bug must be found by its row."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tests.faults.checker import Verdict
from tests.faults.crew import RunFailed
from tests.faults.ground import Ground
from tests.faults.planted import PLANTED, planted
from tests.faults.row_clock import clock
from tests.faults.row_crowd import crowd
from tests.faults.row_drain import drain
from tests.faults.row_fence import fence
from tests.faults.row_kills import kills, restart
from tests.faults.row_network import cut_commits
from tests.faults.row_poison import poison
from tests.faults.rows import Play, Settings
from tests.faults.unfinished import unfinished

SHORT: dict[str, Play] = {
    "kills": kills,
    "restart": restart,
    "crowd": partial(crowd, chorus=0),
    "fence": fence,
    "drain": drain,
    "poison": poison,
    "clock": clock,
    "cut-commit": cut_commits,
}
KILLS, JOBS, LONGEST = 10, 200, 0.4


def planted_bugs(ground: Ground, settings: Settings) -> Verdict:
    """Play the short rows with one bug each."""
    verdict = Verdict()
    bugs = [name for name, bug in PLANTED.items() if ground.store in bug.stores]
    for name in bugs:
        said = find(ground.beside(name), settings, name)
        settings.say(f"{name}: {said or 'NOT FOUND'}")
        if not said:
            verdict.faults.append(f"missed: the bug {name} was not found")
    verdict.figures["found"] = len(bugs) - len(verdict.faults)
    return verdict


def find(ground: Ground, settings: Settings, name: str) -> str:
    """Play the row that should find a bug; return its findings."""
    bug = PLANTED[name]
    short = replace(settings, kills=KILLS, jobs=JOBS, longest=LONGEST, say=lambda text: None)
    try:
        with planted(name):
            faults = SHORT[bug.row](ground, short).faults
    except RunFailed as failure:
        # A bug may keep a run from its end; the part that was played is judged all the same.
        faults = unfinished(ground.folder, str(failure)).faults
    return next((fault for fault in faults if fault.startswith(f"{bug.finds}:")), "")
