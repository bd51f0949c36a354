"""Planted bugs are found: a checker that never fails would prove nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.schedules.planted import PLANTED
from tests.schedules.world import ScheduleFailed, run_schedule

MOST_SEEDS = 2_000


def find(seeds: range) -> tuple[int, str] | None:
    """Return the first seed whose schedule fails, and its message."""
    for seed in seeds:
        try:
            run_schedule(seed)
        except ScheduleFailed as failure:
            return seed, str(failure).splitlines()[0]
    return None


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    with PLANTED[name]():
        found = find(range(MOST_SEEDS))
    assert found is not None, f"{name}: {MOST_SEEDS} schedules did not find it"
    seed, message = found
    assert f"seed={seed}:" in message
    record_property("seed", seed)
    sys.stdout.write(f"{name}: {message}\n")
    assert find(range(seed + 1)) is None, f"{name}: the same schedules fail without the bug"
