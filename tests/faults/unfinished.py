"""The verdict of a run that was not played to its end."""

from __future__ import annotations

import traceback
from pathlib import Path

from tests.faults.checker import Verdict, check
from tests.faults.crew import export


def unfinished(folder: Path, why: str) -> Verdict:
    """Judge the played part of a row."""
    verdict = Verdict()
    try:
        export(folder)
        verdict = check(folder)
    except Exception:
        why += traceback.format_exc(limit=-1)
    verdict.faults.insert(0, f"unfinished: {why}")
    return verdict
