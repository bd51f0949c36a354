"""Exit codes: what a command tells the script that called it."""

from __future__ import annotations

from collections.abc import Sequence

from poolhand.errors import PoolhandError
from poolhand.operate.views import ControlResult

FINE = 0
WRONG = 1
USAGE = 2
NOT_FOUND = 3
REFUSED = 4
STORE = 5

CODES = {
    "PH-000": WRONG,
    "PH-USE": USAGE,
    "PH-POL": REFUSED,
    "PH-JOB": WRONG,
    "PH-STO": STORE,
    "PH-STO-002": REFUSED,  # somebody else was first
    "PH-STO-003": USAGE,  # no such kind of store
    "PH-WIR": WRONG,
    "PH-TOL": WRONG,
    "PH-DIR": WRONG,
}


def of_error(error: PoolhandError) -> int:
    """Return the exit code of an error: that of its own code, or of its family."""
    family = error.code.rpartition("-")[0]
    return CODES.get(error.code, CODES.get(family, WRONG))


def of_answers(answers: Sequence[ControlResult]) -> int:
    """Return the exit code of what was asked of several jobs: some done and some not is wrong."""
    if all(answer.done for answer in answers):
        return FINE
    if any(answer.done for answer in answers):
        return WRONG
    return NOT_FOUND if all(answer.reason == "not_found" for answer in answers) else REFUSED
