"""The fault table, played with real processes that are killed, stopped and poisoned.

    python -m tests.faults --kills 100 --jobs 1000 --seed 7 --history faults.json
    python -m tests.faults --row kills --row poison

Ends with 1 when anything does not hold; the folder of a row that failed is kept and named.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.faults.checker import Verdict, check
from tests.faults.crew import export
from tests.faults.report import Played, table, write_history
from tests.faults.row_clock import timed_clock
from tests.faults.row_crowd import crowd
from tests.faults.row_drain import timed_drain
from tests.faults.row_fence import fence
from tests.faults.row_kills import kills, restart, workers
from tests.faults.row_planted import planted_bugs
from tests.faults.row_poison import poison
from tests.faults.row_stop import stop, stop_locked
from tests.faults.rows import Row, Settings

ROWS: dict[str, Row] = {
    "kills": kills,
    "workers": workers,
    "restart": restart,
    "crowd": crowd,
    "poison": poison,
    "drain": timed_drain,
    "fence": fence,
    "clock": timed_clock,
    "stop": stop,
    "stop-locked": stop_locked,
    "planted": planted_bugs,
}
MOST_TOLD = 20


def play(name: str, settings: Settings, keep: bool) -> Played:
    """Play one row in a folder of its own, which stays if something does not hold."""
    folder = Path(tempfile.mkdtemp(prefix=f"faults-{name}-"))
    began = time.monotonic()
    try:
        verdict = ROWS[name](folder, settings)
    except Exception:
        verdict = unfinished(folder, traceback.format_exc(limit=-3))
    played = Played(name, verdict, time.monotonic() - began)
    for fault in verdict.faults[:MOST_TOLD]:
        settings.say(fault)
    if verdict.holds and not keep:
        shutil.rmtree(folder)
    else:
        settings.say(f"its files are in {folder}")
    return played


def unfinished(folder: Path, why: str) -> Verdict:
    """Judge what there is of a row that was not played to its end."""
    verdict = Verdict()
    try:
        export(folder)
        verdict = check(folder)
    except Exception:
        why += traceback.format_exc(limit=-1)
    verdict.faults.insert(0, f"unfinished: {why}")
    return verdict


def run(names: list[str], options: argparse.Namespace) -> list[Played]:
    rows = []
    for name in names:

        def say(text: str, name: str = name) -> None:
            tell(f"{name:12} {text}")

        settings = Settings(options.seed, options.kills, options.jobs, say)
        say(f"seed {options.seed}")
        played = play(name, settings, options.keep)
        say(f"{'holds' if played.verdict.holds else 'DOES NOT HOLD'}, {played.seconds:.0f} s")
        rows.append(played)
    return rows


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="of the row that has most")
    parser.add_argument("--jobs", type=int, default=1000, help="of the rows with the usual load")
    parser.add_argument("--seed", type=int, default=None, help="to play the same plan again")
    parser.add_argument(
        "--row", action="append", choices=list(ROWS), help="only this one, or these"
    )
    parser.add_argument("--history", type=Path, help="where to keep what came of it, as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the files of all rows")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = secrets.randbelow(1_000_000)
    rows = run(options.row or list(ROWS), options)
    tell(table(rows))
    if options.history is not None:
        asked = {name: getattr(options, name) for name in ("seed", "kills", "jobs")}
        write_history(options.history, rows, asked)
    return 0 if all(row.verdict.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
