"""Exit codes of the commands."""

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
    "PH-STO-002": REFUSED,  # a conflict with another process
    "PH-STO-003": USAGE,  # no such kind of store
    "PH-WIR": WRONG,
    "PH-TOL": WRONG,
    "PH-DIR": WRONG,
}


def of_error(error: PoolhandError) -> int:
    """Return the exit code of an error: by its own code, else by its family."""
    family = error.code.rpartition("-")[0]
    return CODES.get(error.code, CODES.get(family, WRONG))


def of_answers(answers: Sequence[ControlResult]) -> int:
    """Return the exit code of an operation on several jobs: partly done counts as wrong."""
    if all(answer.done for answer in answers):
        return FINE
    if any(answer.done for answer in answers):
        return WRONG
    return NOT_FOUND if all(answer.reason == "not_found" for answer in answers) else REFUSED
