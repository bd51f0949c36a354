"""Causes of tasks: a worker's offer matches exactly the jobs whose task it has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolhand.durable.calls.task_registry import TaskCode, TaskRegistry
from poolhand.rules.explain import (
    claimable,
    home_cause,
    is_same_task,
    key_cause,
    short_names,
    task_cause,
)
from poolhand.wire.envelope import KeyRing
from poolhand.wire.payload import Wire


def work() -> None: ...


def offered(*names: str, ring: KeyRing | None = None) -> TaskRegistry:
    codes = TaskRegistry()
    for name in names:
        codes.add(TaskCode(name, work, Wire(ring=ring)))
    return codes


def test_short_names_end_with_a_module_and_a_function() -> None:
    assert list(short_names("a.b.c.f")) == ["b.c.f", "c.f"]
    assert list(short_names("c.f")) == list(short_names("f")) == list(short_names("")) == []
    assert list(short_names("a.b.<locals>.f")) == ["b.<locals>.f"]
    assert is_same_task("a.b.f", "b.f")
    assert is_same_task("b.f", "a.b.f")
    assert not is_same_task("f", "b.f")
    assert not is_same_task("a.b.f", "c.b.f")


@pytest.mark.parametrize(
    "waiting", ["agents.f", "proj.agents.f", "work.proj.agents.f"], ids=["end", "same", "longer"]
)
def test_a_parked_job_is_claimed_by_a_worker_with_another_name_of_its_task(waiting: str) -> None:
    ring = KeyRing({"k": b"k" * 32}, current="k")
    causes = offered("proj.agents.f", ring=ring).causes()
    for cause in (task_cause(waiting), key_cause("k", waiting)):
        assert claimable(causes, [cause, "task:other.f", "other"]) == {cause}
    assert not claimable(causes, [key_cause("other", waiting)])


def test_other_causes_match_only_themselves() -> None:
    home = home_cause(("host.name.com", "boot", 7, "1"))
    causes = offered("name.com").causes() | {home}
    assert claimable(causes, [home, "limit:a.b.name.com"]) == {home}


NAMES = st.lists(st.sampled_from(["a", "b", "f"]), min_size=1, max_size=4).map(".".join)


@given(st.sets(NAMES, max_size=5), NAMES)
def test_exactly_the_jobs_whose_task_is_found_are_claimed(names: set[str], waiting: str) -> None:
    """Otherwise a worker would claim a job, set it aside, and claim it again."""
    codes = offered(*sorted(names))
    met = bool(claimable(codes.causes(), [task_cause(waiting)]))
    assert met == (codes.find(waiting) is not None)
