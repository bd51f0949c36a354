"""How much a run of the tests does: `make test` a part, `make test-full` all of it.

Tests marked `full` run in `make test-full` only; each of their promises is also held by a smaller
test that `make test` runs. Where a test repeats something, `times` says how often.
"""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

T = TypeVar("T")

FULL = bool(os.environ.get("TEST_FULL"))


def times(part: T, full: T) -> T:
    """Return the first value in `make test`, the second in `make test-full`."""
    return full if FULL else part


def examples(full: int) -> int:
    """Return how many examples a property is tried with: a quarter of them in `make test`."""
    return times(max(20, full // 4), full)


SCHEDULES = times(5_000, 20_000)
FIRST_SEED = int(os.environ.get("SCHEDULE_SEED", "0"))
# For tests of processes, which are the same on each store: what stores do is held by the contract.
ALSO_POSTGRES = pytest.param("postgres", marks=pytest.mark.full)
