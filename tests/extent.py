"""The extent of a test run: `make test` a part, `make test-full` all of it.

Tests marked `full` run in `make test-full` only; a smaller test that `make test` runs covers each
of their promises. Where a test repeats something, `times` says how often.
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
    """Return the number of examples of a property: a quarter of them in `make test`."""
    return times(max(20, full // 4), full)


SCHEDULES = times(5_000, 20_000)
FIRST_SEED = int(os.environ.get("SCHEDULE_SEED", "0"))
# For tests of processes, which are the same on each store: the contract covers the stores.
ALSO_POSTGRES = pytest.param("postgres", marks=pytest.mark.full)
