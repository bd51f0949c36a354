"""Thousands of seeded schedules: the promises of a pool hold in all of them."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from tests.extent import FIRST_SEED, SCHEDULES
from tests.schedules.plan import FEWEST_STEPS, PAIRS, POLICIES, STRATEGIES, VERBS, make_plan
from tests.schedules.world import run_schedule

SEEDS_PER_CHUNK = 1_000
CHUNKS = SCHEDULES // SEEDS_PER_CHUNK

# Events of schedules. A thousand schedules that miss one of these prove too little.
MUST_OCCUR = (
    "JobSubmitted", "JobStarted", "JobMarked", "JobRetried", "JobEnded", "SubmitterParked",
    "SubmitRefused", "SlotStuck", "SlotFreed", "DeadlockFound", "PoolResized", "PoolPaused",
    "PoolResumed", "DrainStarted", "DrainSlow", "PoolDrained",
    "completed", "failed", "cancelled", "expired", "rejected",
)  # fmt: skip


@pytest.mark.slow
def test_each_policy_under_each_strategy_keeps_the_promises() -> None:
    for seed in range(len(PAIRS)):
        run_schedule(seed)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_ticket_resolves_once_and_every_bound_holds(
    chunk: int, caplog: pytest.LogCaptureFixture
) -> None:
    # Formatting thousands of tracebacks for the log would take a third of the time.
    caplog.set_level(logging.CRITICAL, logger="poolhand")
    seen: Counter[str] = Counter()
    first = FIRST_SEED + chunk * SEEDS_PER_CHUNK
    for seed in range(first, first + SEEDS_PER_CHUNK):
        seen.update(run_schedule(seed))
    assert [name for name in MUST_OCCUR if not seen[name]] == []


def test_plans_are_long_enough_and_reach_everything() -> None:
    plans = [make_plan(seed) for seed in range(1_000)]
    assert min(len(plan.steps) for plan in plans) >= FEWEST_STEPS
    assert {plan.strategy for plan in plans} == set(STRATEGIES)
    assert {plan.policy for plan in plans} == set(POLICIES)
    assert {step.verb for plan in plans for step in plan.steps} == {*VERBS, "drain"}


def test_a_seed_is_one_schedule() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        run_schedule(7, trace=trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) > FEWEST_STEPS
