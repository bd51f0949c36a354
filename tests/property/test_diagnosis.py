"""Diagnosis of any samples, against a reference that reads all of them each time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolhand.rules.diagnosis import Condition, Diagnosis, Sample
from tests.extent import examples

SMALL = st.integers(0, 4)
MOSTLY_TWO = st.sampled_from([2] * 20 + [1])


@st.composite
def histories(draw: st.DrawFn) -> list[Sample]:
    """Samples that differ a little from one to the next, so that conditions hold and end."""
    capacity = draw(st.sampled_from([None, 0, 4, 5]))
    backlog, completed, failed = 4, 0, 0
    history = []
    for _ in range(draw(st.sampled_from([5, 20, 40]))):
        backlog = max(0, backlog + draw(st.sampled_from([1, 1, 1, 1, 0, -1, -1, -3])))
        completed += draw(st.sampled_from([0, 0, 0, 0, 0, 1]))
        failed += draw(st.sampled_from([1, 1, 1, 0]))
        history.append(
            Sample(
                size=draw(MOSTLY_TWO | st.sampled_from([2, 2, 2, 0, 3])),
                busy=draw(MOSTLY_TWO),
                backlog=backlog,
                waiting=backlog + draw(SMALL),
                capacity=capacity,
                completed=completed,
                failed=failed,
                executor_size=draw(st.sampled_from([1, 1, 1, 2, None])),
                executor_backlog=draw(SMALL),
            )
        )
    return history


def holds(condition: Condition, history: list[Sample], at: int) -> bool:
    before, now = history[max(0, at - 1)], history[at]
    match condition:
        case Condition.WORKER_BOUND:
            return now.busy >= now.size > 0 and now.backlog > before.backlog
        case Condition.POISON:
            return now.completed == before.completed and now.failed > before.failed
        case Condition.QUEUE_HIGH:
            return bool(now.capacity) and now.waiting / (now.capacity or 1) > 0.8
        case Condition.EXECUTOR_SMALL:
            size = now.executor_size
            return size is not None and size < now.busy and now.executor_backlog > 0


def has_ended(condition: Condition, history: list[Sample], told_at: int, at: int) -> bool:
    """Return whether the incident reported at one sample was over by another."""
    since = range(told_at + 1, at + 1)
    match condition:
        case Condition.WORKER_BOUND:
            start = history[told_at - 3].backlog
            return any(
                history[one].busy < history[one].size or history[one].backlog < start
                for one in since
            )
        case Condition.POISON:
            return history[at].completed > history[told_at].completed
        case Condition.QUEUE_HIGH | Condition.EXECUTOR_SMALL:
            return not all(holds(condition, history, one) for one in since)


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(histories())
def test_an_incident_is_reported_once_after_it_has_lasted_and_until_it_has_ended(
    history: list[Sample],
) -> None:
    diagnosis = Diagnosis()
    told: dict[Condition, int] = {}
    for at, sample in enumerate(history):
        expected = []
        for condition in Condition:
            lasting = at >= 2 and all(holds(condition, history, at - back) for back in range(3))
            known = condition in told and not has_ended(condition, history, told[condition], at)
            if lasting and not known:
                expected.append(condition)
                told[condition] = at
        assert diagnosis.look(sample) == expected
