"""The fault table, played with real processes and servers that are killed, stopped and cut off.

    python -m tests.faults --kills 100 --jobs 2000 --seed 7
    python -m tests.faults --store sqlite --row kills --row poison
    python -m tests.faults --publish build/faults.json

Ends with 1 when anything does not hold, or is skipped where CI is set; the folder of a row that
failed is kept and named.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests import warm
from tests.faults import report
from tests.faults.checker import Verdict
from tests.faults.crew import REPOSITORY
from tests.faults.ground import STORES, Skipped, laid
from tests.faults.report import Played
from tests.faults.rows import Settings
from tests.faults.table import ROWS
from tests.faults.unfinished import unfinished

MOST_TOLD = 20
HISTORY = REPOSITORY / "build" / "faults.json"
PAGE = REPOSITORY / "docs" / "explanation" / "promises.md"


def play(name: str, store: str, settings: Settings, keep: bool) -> Played:
    """Play one row in its own folder, which is kept if something does not hold."""
    folder = Path(tempfile.mkdtemp(prefix=f"faults-{name}-{store}-"))
    began = time.monotonic()
    verdict, skipped = Verdict(), ""
    try:
        with laid(folder, store, ROWS[name].moves_clock) as ground:
            try:
                verdict = ROWS[name].play(ground, settings)
            except Skipped:
                raise
            except Exception:
                verdict = unfinished(folder, traceback.format_exc(limit=-3))
            verdict.server = ground.version
    except Skipped as reason:
        skipped = str(reason)
        settings.say(f"SKIPPED: {skipped}")
    played = Played(name, store, settings.seed, time.monotonic() - began, verdict, skipped)
    for fault in verdict.faults[:MOST_TOLD]:
        settings.say(fault)
    if verdict.holds and not keep:
        shutil.rmtree(folder)
    else:
        settings.say(f"its files are in {folder}")
    return played


def run(options: argparse.Namespace) -> list[Played]:
    """Play the requested rows, each over all its available stores."""
    rows = []
    for name in options.row or ROWS:
        for store in ROWS[name].stores:
            if store in STORES and store not in (options.store or STORES):
                continue

            def say(text: str, about: str = f"{name:16} {store:8}") -> None:
                tell(f"{about} {text}")

            settings = Settings(options.seed, options.kills, options.jobs, options.longest, say=say)
            say(f"seed {options.seed}")
            played = play(name, store, settings, options.keep)
            if not played.skipped:
                holds = "holds" if played.is_good else "DOES NOT HOLD"
                say(f"{holds}, {played.seconds:.0f} s")
            rows.append(played)
    return rows


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = Settings()
    add = parser.add_argument
    add("--kills", type=int, default=usual.kills, help="of the row that has most")
    add("--jobs", type=int, default=usual.jobs, help="of the rows with the usual load")
    add("--longest", type=float, default=usual.longest, help="seconds that one job in 100 takes")
    add("--seed", type=int, default=secrets.randbelow(1_000_000), help="plays the same plan again")
    add("--row", action="append", choices=list(ROWS), help="only this one, or these")
    add("--store", action="append", choices=STORES, help="only over this one, or these")
    add("--history", type=Path, default=HISTORY, help="where to keep what came of it, as JSON")
    add("--keep", action="store_true", help="keep the files of all rows")
    add(
        "--publish",
        type=Path,
        help="play nothing; put this history into docs/explanation/promises.md",
    )
    return parser.parse_args()


def main() -> int:
    options = asked()
    if options.publish is not None:
        report.publish(json.loads(options.publish.read_text(encoding="utf-8")), PAGE)
        return 0
    warm.start_cold()
    rows = run(options)
    settings = {name: getattr(options, name) for name in ("seed", "kills", "jobs", "longest")}
    history = report.history(rows, settings)
    report.write(options.history, history)
    tell(report.table(history))
    tell(f"kept in {options.history}")
    if os.environ.get("CI"):
        return 0 if all(row.is_good for row in rows) else 1
    return 0 if all(row.verdict.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
