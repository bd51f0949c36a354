"""Pool size: how many workers a pool needs, decided from samples of its load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, isclose
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from msgspec import Struct
from msgspec.structs import asdict, replace

from poolhand.misuse import OptionsStruct, explain_misuse
from poolhand.rules.validation import (
    AMOUNT,
    COUNT,
    SECONDS,
    OptionRule,
    OptionTable,
    Seconds,
    convert_seconds,
    is_amount,
    is_count,
    not_allowed,
    raise_faults,
    to_seconds,
)

MOST_SLOTS = 100_000
SLOTS = OptionRule(
    lambda value: is_count(value) and value <= MOST_SLOTS,
    f"an int of at least 1 and at most {MOST_SLOTS:,}",
)
_SHARE = OptionRule(lambda value: is_amount(value) and value <= 1, "a number above 0 and at most 1")
_NUMBER = OptionRule(SECONDS.fits, "a number of 0 or more and at most 10**18")

# With this many jobs waiting per worker, an unbounded queue counts as filling up.
BACKLOG_PER_WORKER = 2
HIGH_SAMPLES = 2


ALLOWED: OptionTable = {
    "min": SLOTS,
    "max": SLOTS,
    "up_at": _SHARE,
    "down_at": _SHARE,
    "queue_up_at": _SHARE,
    "interval": AMOUNT,
    "step": _SHARE,
    "cooldown": SECONDS,
    "idle_after": COUNT,
}


class AutoscaleOptions(TypedDict, total=False):
    """The options of `Autoscale(min, max, …)` besides the bounds."""

    up_at: float
    down_at: float
    queue_up_at: float
    interval: Seconds
    step: float
    cooldown: Seconds
    idle_after: int


class Autoscale(OptionsStruct, frozen=True):
    """When a pool grows and shrinks by itself, and how far.

    A sample is taken every `interval` seconds. Two samples in a row above `up_at` (utilisation) or
    `queue_up_at` (queue fill) grow the pool by `step` of its size, `idle_after` samples in a row
    below `down_at` shrink it by as much. `cooldown` seconds pass before a change of direction and
    before every shrink.
    """

    min: int = 2
    max: int = 50
    up_at: float = 0.8
    down_at: float = 0.3
    queue_up_at: float = 0.5
    interval: float = 10.0
    step: float = 0.25
    cooldown: float = 30.0
    idle_after: int = 2

    if TYPE_CHECKING:

        def __init__(
            self, min: int = 2, max: int = 50, **options: Unpack[AutoscaleOptions]
        ) -> None: ...

    def __post_init__(self) -> None:
        convert_seconds(self, "interval", "cooldown")
        raise_faults("Autoscale", autoscale_faults(asdict(self)))


def autoscale_faults(
    values: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> list[str]:
    """Return every fault in settings of an Autoscale; `names` are what a caller calls them."""
    bad = {
        name: ALLOWED[name].text for name, value in values.items() if not ALLOWED[name].fits(value)
    }
    called = {name: name for name in values} | dict(names or {})
    if bad.keys().isdisjoint(("min", "max")) and values["max"] < values["min"]:
        bad["max"] = f"at least {called['min']}={values['min']!r}"
    if bad.keys().isdisjoint(("down_at", "up_at")) and values["down_at"] >= values["up_at"]:
        bad["down_at"] = f"below {called['up_at']}={values['up_at']!r}"
    return [not_allowed(called[name], values[name], text) for name, text in bad.items()]


class PoolLoad(Struct, frozen=True):
    """One sample of a pool.

    `busy` slots include stuck ones. `backlog` counts jobs that only need a slot, those of blocked
    submitters included. `capacity` is the bound of the queue: None without one, 0 where the pool
    has no queue.
    """

    size: int
    busy: int
    backlog: int
    capacity: int | None

    @property
    def utilisation(self) -> float:
        return _utilisation(self.busy, self.size)


class PoolTrend(Struct, frozen=True):
    """The high and low samples in a row so far, and when and how the size last changed.

    A change resets the count of low samples: a shrink is judged at the current size.
    """

    high: int = 0
    low: int = 0
    changed_at: float | None = None
    grew: bool = False


class Decision(Struct, frozen=True):
    """The size a pool should have now; `why` is empty if it already has that size."""

    target: int
    trend: PoolTrend
    why: str


def decide(settings: Autoscale, load: PoolLoad, trend: PoolTrend, now: float) -> Decision:
    """Evaluate one sample: keep the size, or change it by a step."""
    pressure = _pressure(settings, load)
    idle = not pressure and load.utilisation < settings.down_at
    seen = replace(trend, high=trend.high + 1 if pressure else 0, low=trend.low + 1 if idle else 0)
    target = _target(settings, load, seen, now)
    if target == load.size:
        return Decision(target, seen, "")
    trend = replace(seen, low=0, changed_at=now, grew=target > load.size)
    if load.size < settings.min:
        return Decision(target, trend, f"size {load.size} below min {settings.min}")
    if load.size > settings.max:
        return Decision(target, trend, f"size {load.size} above max {settings.max}")
    return Decision(target, trend, pressure or f"utilisation {load.utilisation:.2f}")


@explain_misuse
def suggest_workers(*, rate: float, seconds: Seconds, limits: Iterable[int] = ()) -> int:
    """Return how many workers handle `rate` jobs a second that take `seconds` each.

    `limits` are the limits of what the jobs depend on, such as the connections of a database: more
    workers than the lowest limit would only wait for it.
    """
    each: float = to_seconds(seconds)
    bounds, faults = _bounds(limits)
    raise_faults(
        "suggest_workers",
        [*_NUMBER.faults("rate", rate), *_NUMBER.faults("seconds", each), *faults],
    )
    wanted = rate * each
    whole = round(wanted)
    # In floating point 0.1 × 30 is slightly more than 3, but 3 workers are enough.
    needed = whole if isclose(wanted, whole, rel_tol=1e-12) else ceil(wanted)
    return min([max(1, needed), *bounds])


def _bounds(limits: Any) -> tuple[list[int], list[str]]:
    """Return the limits, which may be a one-shot iterator, and the faults in them."""
    given = list(limits) if isinstance(limits, Iterable) else limits
    if isinstance(given, list) and all(map(is_count, given)):
        return given, []
    return [], [not_allowed("limits", given, f"a list, each {COUNT.text}")]


def _utilisation(busy: int, size: int) -> float:
    return busy / size if size else 0.0


def _pressure(settings: Autoscale, load: PoolLoad) -> str:
    """Return what makes this a high sample, an empty text when it is none."""
    backlog, capacity, size = load.backlog, load.capacity, load.size
    if capacity is None:
        if backlog > BACKLOG_PER_WORKER * size:
            return f"backlog {backlog} for {size} worker{'' if size == 1 else 's'}"
    elif capacity and backlog / capacity > settings.queue_up_at:
        return f"queue fill {backlog / capacity:.2f}"
    if load.utilisation > settings.up_at:
        return f"utilisation {load.utilisation:.2f}"
    return ""


def _target(settings: Autoscale, load: PoolLoad, seen: PoolTrend, now: float) -> int:
    size = load.size
    if not settings.min <= size <= settings.max:
        return min(settings.max, max(settings.min, size))
    step = max(1, int(size * settings.step))
    rested = seen.changed_at is None or now - seen.changed_at >= settings.cooldown
    if seen.high >= HIGH_SAMPLES and (rested or seen.grew):
        return min(settings.max, size + step)
    if seen.low >= settings.idle_after and rested:
        return max(settings.min, _fewest(settings, load), size - step)
    return size


def _fewest(settings: Autoscale, load: PoolLoad) -> int:
    """Return the smallest size at which this low sample would not be a high one.

    Shrinking no further prevents a steady load from making the pool grow again.
    """
    fewest = ceil(load.busy / settings.up_at)
    # The quotient is rounded, so the resulting size may still be high by its last digit.
    fewest += _utilisation(load.busy, fewest) > settings.up_at
    if load.capacity is None:
        fewest = max(fewest, ceil(load.backlog / BACKLOG_PER_WORKER))
    return fewest
