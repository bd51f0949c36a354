"""Seeded schedules of a whole farm: machines, workers and a store that come and go."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from tests.extent import times
from tests.schedules.farm_planted import FARM_PLANTED
from tests.schedules.farm_world import FarmFailed, run_farm

CHUNKS = times(1, 4)
SEEDS_PER_CHUNK = times(60, 150)
MOST_SEEDS = 300
# The seed to begin with: a schedule that finds the bug today.
FIRST = {
    "stuck_forgotten": 247,
    "late_claims_dropped": 4,
    "letters_left": 4,
    "stopped_is_cancelled": 3,
    "askers_forgotten": 3,
}

# Events of schedules. Some hundred schedules that miss one of these prove too little.
MUST_OCCUR = (
    "JobSubmitted", "JobJoined", "JobStarted", "JobMarked", "JobRetried", "JobEnded", "LeaseLost",
    "OwnerReaped", "StoreTrouble", "SubmitterParked", "SubmitRefused", "SlotStuck", "SlotFreed",
    "completed", "failed", "cancelled", "expired", "handed back", "own errors", "job errors",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Have no lines of the log written: there are hundreds in each schedule."""
    caplog.set_level(logging.CRITICAL, logger="poolhand")


@pytest.mark.slow
def test_some_farms_keep_the_promises() -> None:
    for seed in range(6):
        run_farm(seed)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_in_every_seeded_farm_each_job_ends_once_and_none_is_lost(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK):
        seen.update(run_farm(seed))
    assert [name for name in MUST_OCCUR if not seen[name]] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FARM_PLANTED)
def test_a_planted_bug_of_the_farm_is_found(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    first = FIRST.get(name, 0)
    for seed in (*range(first, MOST_SEEDS), *range(first)):
        try:
            with FARM_PLANTED[name]():
                run_farm(seed)
        except FarmFailed as failure:
            found = str(failure).splitlines()[0]
            break
    else:
        pytest.fail(f"{name}: {MOST_SEEDS} schedules did not find it")
    record_property("seed", seed)
    sys.stdout.write(f"{name}: {found[:300]}\n")
    run_farm(seed)
