"""A farm under any load: within its bounds, stable under a steady load, small when idle."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from poolhand.rules.scaling.worker_count import (
    FarmSettings,
    Load,
    Processes,
    ScalingStep,
    Trend,
    decide,
    most_processes,
    plan,
    runnable,
    wanted_for,
)

TICK = 1.0


@st.composite
def farms(draw: st.DrawFn) -> FarmSettings:
    least = draw(st.integers(0, 10))
    return FarmSettings(
        min_workers=least,
        max_workers=draw(st.integers(max(1, least), 30)),
        prefetch_per_worker=draw(st.integers(1, 20)),
        scale_up_batch_size=draw(st.integers(1, 5)),
        scale_down_batch_size=draw(st.integers(1, 5)),
        scale_check_interval_s=TICK,
        scale_up_wait_s=draw(st.sampled_from([0.0, 1.0, 5.0])),
        scale_down_cooldown_s=draw(st.sampled_from([0.0, 1.0, 10.0])),
    )


class Floor:
    """A farm whose workers are ready at once and run all available jobs."""

    def __init__(self, settings: FarmSettings, wanted: int | None = None) -> None:
        self.settings = settings
        self.wanted = settings.min_workers if wanted is None else wanted
        self.trend = Trend()
        self.now = 0.0
        self.counts = [self.wanted]

    @property
    def capacity(self) -> int:
        return self.wanted * self.settings.prefetch_per_worker

    def look(self, demand: int) -> ScalingStep:
        running = min(demand, self.capacity)
        load = Load(self.wanted, demand, demand - running, running >= self.capacity)
        step = decide(self.settings, load, self.trend, self.now)
        self.trend, self.wanted = step.trend, step.wanted
        self.counts.append(step.wanted)
        self.now += TICK
        return step

    def look_often(self, demand: int, looks: int) -> None:
        for _ in range(looks):
            self.look(demand)

    @property
    def looks_to_rest(self) -> int:
        """The number of checks that is enough to change from any number to any other."""
        return int(40 * (self.settings.scale_down_cooldown_s / TICK + 2))

    @property
    def turns(self) -> int:
        """Count the changes of direction."""
        moves = [later - sooner for sooner, later in pairwise(self.counts) if later != sooner]
        return sum((one > 0) != (other > 0) for one, other in pairwise(moves))


@given(farms(), st.lists(st.integers(0, 500), max_size=60), st.integers(0, 40))
def test_the_worker_count_stays_within_bounds_and_changes_by_at_most_a_batch(
    settings: FarmSettings, demands: list[int], start: int
) -> None:
    floor = Floor(settings, start)
    for demand in demands:
        before = floor.wanted
        step = floor.look(demand)
        assert settings.min_workers <= step.wanted <= settings.max_workers
        assert bool(step.why) is (step.wanted != before)
        if settings.min_workers <= before <= settings.max_workers:
            assert step.wanted - before <= settings.scale_up_batch_size
            assert before - step.wanted <= settings.scale_down_batch_size


@given(farms(), st.integers(0, 700), st.integers(0, 30))
def test_under_a_steady_load_the_worker_count_changes_direction_at_most_twice(
    settings: FarmSettings, demand: int, start: int
) -> None:
    floor = Floor(settings, start)
    floor.look_often(demand, floor.looks_to_rest)
    at_rest = floor.wanted
    floor.look_often(demand, floor.looks_to_rest)
    assert set(floor.counts[-floor.looks_to_rest :]) == {at_rest}
    assert floor.turns <= 2
    # There is room for all of it, if the maximum allows.
    assert floor.capacity >= demand or at_rest == settings.max_workers


@given(farms(), st.integers(0, 30))
def test_an_idle_farm_scales_down_to_its_minimum_one_step_per_cooldown(
    settings: FarmSettings, start: int
) -> None:
    floor = Floor(settings, start)
    floor.look(0)
    floor.counts = [floor.wanted]
    floor.look_often(0, floor.looks_to_rest)
    assert floor.wanted == settings.min_workers
    moved = [at for at, (one, other) in enumerate(pairwise(floor.counts)) if one != other]
    assert all(
        (later - sooner) * TICK >= settings.scale_down_cooldown_s
        for sooner, later in pairwise(moved)
    )


@given(farms(), st.integers(1, 1000))
def test_an_overloaded_farm_adds_one_batch_of_workers_per_check(
    settings: FarmSettings, demand: int
) -> None:
    floor = Floor(settings)
    while demand > floor.capacity and floor.wanted < settings.max_workers:
        before = floor.wanted
        floor.look(demand)
        assert floor.wanted == min(settings.max_workers, before + settings.scale_up_batch_size)


@given(farms(), st.integers(0, 1000))
def test_the_reported_worker_count_is_the_least_that_fits_the_load(
    settings: FarmSettings, demand: int
) -> None:
    wanted, slots = wanted_for(settings, demand), settings.prefetch_per_worker
    assert wanted * slots >= demand or wanted == settings.max_workers
    assert (wanted - 1) * slots < demand or wanted == settings.min_workers


COUNTS = st.integers(0, 1000)


@given(COUNTS, COUNTS, st.none() | st.integers(1, 100), st.booleans())
def test_the_runnable_count_is_between_running_and_running_plus_queued(
    running: int, queued: int, slots: int | None, paused: bool
) -> None:
    assert running <= runnable(running, queued, slots, paused) <= running + queued


@given(farms(), st.integers(0, 3), st.data())
def test_no_step_has_more_processes_than_the_maximum_and_the_surge_and_none_is_the_last(
    settings: FarmSettings, surge: int, data: st.DataObject
) -> None:
    settings = replace(settings, surge=surge)
    wanted = data.draw(st.integers(settings.min_workers, settings.max_workers))
    now = data.draw(st.builds(Processes, *[st.integers(0, 10)] * 3))
    step = plan(settings, wanted, now)
    if step.start:
        assert now.total + step.start <= most_processes(settings)
    assert now.staying + step.start + step.held - step.stop == wanted
    # A start waits only for a process that is about to end, never without end.
    if step.held and not step.start:
        assert now.leaving > 0 or step.retire_first
