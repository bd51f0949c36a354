"""How long a stop waits for running jobs."""

from __future__ import annotations

import pytest

from poolhand.rules.scaling.worker_count import drain_within


def test_without_soft_timeouts_a_stop_has_all_of_its_grace_period() -> None:
    assert drain_within(15.0, []) == 15.0
    assert drain_within(15.0, [None, None]) == 15.0


def test_a_stop_needs_at_most_the_largest_soft_timeout_of_running_jobs() -> None:
    assert drain_within(15.0, [2.0, 5.0, 1.0]) == 5.0


def test_a_job_without_a_soft_timeout_may_need_all_of_the_grace() -> None:
    assert drain_within(15.0, [2.0, None]) == 15.0


@pytest.mark.parametrize("soft", [15.0, 16.0, 3600.0])
def test_a_grace_is_never_made_longer(soft: float) -> None:
    assert drain_within(15.0, [soft]) == 15.0
    assert drain_within(0.0, [soft]) == 0.0
