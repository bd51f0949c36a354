"""Autoscaling under a step load: none, then a constant load, then none.

The model is simple: a load needs so many workers; the backlog grows while there are fewer and
drains while there are more, and workers that are not needed for either are idle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as changed
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from poolhand.rules.scaling.pool_size import Autoscale, PoolLoad, PoolTrend, decide
from tests.extent import examples

SHARE = st.floats(0, 1, exclude_min=True)
NICE_SHARE = st.integers(1, 20).map(lambda n: n / 20)


@st.composite
def autoscales(draw: st.DrawFn, below_full: bool = False) -> Autoscale:
    """Any settings; with `below_full` only those for which a fully busy pool is high."""
    shares = (SHARE | NICE_SHARE).filter(lambda share: share < 1 or not below_full)
    low, high = sorted(draw(st.lists(shares, min_size=2, max_size=2, unique=True)))
    fewest = draw(st.integers(1, 10))
    interval = draw(st.sampled_from([0.1, 1.0, 10.0]))
    return Autoscale(
        min=fewest,
        max=draw(st.integers(fewest, 60)),
        up_at=high,
        down_at=low,
        queue_up_at=draw(SHARE | NICE_SHARE),
        interval=interval,
        step=draw(SHARE | NICE_SHARE),
        cooldown=draw(st.floats(0, 5)) * interval,
        idle_after=draw(st.integers(1, 4)),
    )


@dataclass(frozen=True)
class Step:
    """A load that needs `need` workers, each of which does `speed` jobs between two samples.

    Above `capacity` jobs are refused, unless their submitters wait for a place.
    """

    need: int
    speed: int
    capacity: int | None
    submitters_wait: bool
    start: int
    idle_samples: int


STEPS = st.builds(
    Step,
    need=st.integers(1, 120),
    speed=st.integers(1, 20),
    capacity=st.none() | st.integers(0, 200),
    submitters_wait=st.booleans(),
    start=st.integers(0, 70),
    idle_samples=st.integers(0, 40),
)


@dataclass
class Floor:
    """Plays a load and records every decision."""

    scale: Autoscale
    step: Step
    trend: PoolTrend = field(default_factory=PoolTrend)
    now: float = 0.0
    backlog: int = 0
    busy: int = 0
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sizes = [self.step.start]

    @property
    def size(self) -> int:
        return self.sizes[-1]

    def play(self, need: int, samples: int) -> None:
        for _ in range(samples):
            self.pass_time(need)
            self.sample()

    def pass_time(self, need: int) -> None:
        step = self.step
        self.now += self.scale.interval
        self.backlog = max(0, self.backlog + (need - self.size) * step.speed)
        if step.capacity is not None:
            self.backlog = min(self.backlog, step.capacity * (2 if step.submitters_wait else 1))
        self.busy = self.size if self.backlog else min(need, self.size)

    def sample(self) -> None:
        load = PoolLoad(self.size, self.busy, self.backlog, self.step.capacity)
        decision = decide(self.scale, load, self.trend, self.now)
        assert self.scale.min <= decision.target <= self.scale.max
        assert bool(decision.why) is (decision.target != self.size)
        self.sizes.append(decision.target)
        self.trend = decision.trend

    def play_step(self) -> None:
        """Play no load, then the load for as long as growing by one per sample takes."""
        self.play(0, self.step.idle_samples)
        self.play(self.step.need, self.patience() + self.scale.max)

    def play_end(self) -> None:
        """Play no load until the backlog is gone and the size is stable."""
        self.play(0, 1)
        while self.backlog:
            self.play(0, 1)
        self.play(0, self.patience())
        while self.size != self.sizes[-self.patience()]:
            self.play(0, 1)

    def patience(self) -> int:
        """After so many samples that want a change and get none, there will be none."""
        scale = self.scale
        return ceil(scale.cooldown / scale.interval) + max(2, scale.idle_after) + 2

    def turns(self) -> int:
        """Count the changes of direction."""
        changes = [after > before for before, after in pairwise(self.sizes) if after != before]
        return sum(one is not other for one, other in pairwise(changes))


@pytest.mark.slow
@settings(max_examples=examples(500))
@given(autoscales(), STEPS, st.integers(1, 300))
@example(Autoscale(), Step(20, 1, None, False, 2, 3), 60)
@example(Autoscale(min=1, max=60, step=1.0, cooldown=0), Step(10, 5, None, False, 1, 0), 100)
@example(Autoscale(min=1, up_at=0.31, down_at=0.3, cooldown=0), Step(9, 1, 0, False, 40, 0), 100)
def test_a_step_load_turns_the_size_twice_at_most(
    scale: Autoscale, step: Step, samples: int
) -> None:
    floor = Floor(scale, step)
    floor.play(0, step.idle_samples)
    floor.play(step.need, samples)
    floor.play_end()
    assert floor.turns() <= 2, floor.sizes


@settings(max_examples=examples(200))
@given(autoscales(below_full=True), STEPS)
@example(Autoscale(), Step(20, 1, None, False, 2, 0))
def test_a_pool_grows_until_it_meets_the_load_or_its_maximum(scale: Autoscale, step: Step) -> None:
    floor = Floor(scale, step)
    floor.play_step()
    met = floor.backlog == 0 and floor.busy / floor.sizes[-2] <= scale.up_at
    assert met or floor.size == scale.max, floor.sizes


@settings(max_examples=examples(200))
@given(st.integers(1, 10), STEPS)
def test_an_unbounded_pool_grows_by_its_backlog(fewest: int, step: Step) -> None:
    scale = Autoscale(min=fewest, max=60, up_at=1.0, cooldown=0)
    floor = Floor(scale, changed(step, capacity=None))
    floor.play_step()
    floor.play(step.need, 200)
    assert floor.size >= min(step.need, 60), floor.sizes


@settings(max_examples=examples(200))
@given(autoscales(), STEPS)
def test_a_pool_shrinks_to_its_minimum_when_the_load_has_ended(
    scale: Autoscale, step: Step
) -> None:
    floor = Floor(scale, step)
    floor.play_step()
    floor.play_end()
    assert floor.size == scale.min, floor.sizes


LOADS = st.builds(
    PoolLoad,
    size=st.integers(0, 70),
    busy=st.integers(0, 80),
    backlog=st.integers(0, 200),
    capacity=st.none() | st.integers(0, 200),
)
TRENDS = st.builds(
    PoolTrend,
    high=st.integers(0, 5),
    low=st.integers(0, 5),
    changed_at=st.none() | st.floats(0, 100),
    grew=st.booleans(),
)


@settings(max_examples=examples(250))
@given(autoscales(), LOADS, TRENDS, st.floats(100, 200))
@example(Autoscale(min=1, up_at=0.7 + 0.1, step=1.0), PoolLoad(50, 8, 0, 0), PoolTrend(low=5), 1)
def test_a_shrink_never_raises_the_load_above_the_scale_up_threshold(
    scale: Autoscale, load: PoolLoad, trend: PoolTrend, now: float
) -> None:
    decision = decide(scale, load, trend, now)
    assert scale.min <= decision.target <= scale.max
    if scale.min <= load.size <= scale.max and decision.target < load.size:
        again = decide(scale, replace(load, size=decision.target), PoolTrend(), now)
        assert again.trend.high == 0


@settings(max_examples=examples(50))
@given(st.integers(1, 100_000), st.floats(0.05, 1), st.floats(0.01, 2))
def test_the_largest_pools_grow_and_shrink_as_promised(
    most: int, step: float, share: float
) -> None:
    scale = Autoscale(min=1, max=most, step=step)
    need = ceil(share * most)
    floor = Floor(scale, Step(need, 1, None, False, 1, 2))
    floor.play(need, 300)
    assert floor.size == most or need / floor.size <= scale.up_at
    floor.play_end()
    assert floor.size == 1
    assert floor.turns() == (most > 1)
