"""Workers of a farm: settings, how many are needed, which are hung, when a dead one is replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import ceil
from typing import TYPE_CHECKING, TypedDict, Unpack

from msgspec import Struct

from poolhand.misuse import OptionsStruct
from poolhand.rules.validation import Seconds, convert_seconds


class FarmOptions(TypedDict, total=False):
    """The options of `FarmSettings(…)`."""

    min_workers: int
    max_workers: int
    prefetch_per_worker: int
    scale_up_batch_size: int
    scale_down_batch_size: int
    scale_check_interval_s: Seconds
    worker_shutdown_grace_s: Seconds
    heartbeat_interval_s: Seconds
    task_history_max: int
    max_jobs_per_worker: int
    max_memory_mb_per_worker: int
    soft_timeout_s: Seconds | None
    hard_timeout_s: Seconds | None
    hard_exit_after_s: Seconds
    loop_blocked_limit_s: Seconds
    scale_down_cooldown_s: Seconds
    scale_up_wait_s: Seconds
    timezone: str
    external: bool
    surge: int


class FarmSettings(OptionsStruct, frozen=True):
    """The settings of a supervisor and its workers; 0 jobs or MB: no limit.

    Durations are seconds or a timedelta, which is converted to seconds. `soft_timeout_s` and
    `hard_timeout_s` apply to jobs submitted without timeouts. `surge` is how many processes may
    exist beyond `max_workers` while workers are replaced.
    """

    min_workers: int = 1
    max_workers: int = 10
    prefetch_per_worker: int = 10
    scale_up_batch_size: int = 2
    scale_down_batch_size: int = 1
    scale_check_interval_s: float = 1.0
    worker_shutdown_grace_s: float = 15.0
    heartbeat_interval_s: float = 1.0
    task_history_max: int = 300
    max_jobs_per_worker: int = 0
    max_memory_mb_per_worker: int = 0
    soft_timeout_s: float | None = None
    hard_timeout_s: float | None = None
    hard_exit_after_s: float = 120.0
    loop_blocked_limit_s: float = 120.0
    scale_down_cooldown_s: float = 10.0
    scale_up_wait_s: float = 5.0
    timezone: str = "UTC"
    external: bool = False
    surge: int = 1

    if TYPE_CHECKING:

        def __init__(self, **settings: Unpack[FarmOptions]) -> None: ...

    def __post_init__(self) -> None:
        convert_seconds(self, *(name for name in self.__struct_fields__ if name.endswith("_s")))


class Verbosity(Struct, frozen=True):
    """What a running farm logs: the lowest level, and whether every job is logged.

    With `quiet`, no output of the workers reaches the terminal.
    """

    loglevel: str = "info"
    verbose: bool = False
    quiet: bool = False


DEFAULT_FARM = FarmSettings()
DEFAULT_VERBOSITY = Verbosity()


def drain_within(grace: float, soft_timeouts: Sequence[float | None]) -> float:
    """Return how long to wait for running jobs: no job needs longer than its soft timeout.

    A job without a soft timeout may need all of the grace.
    """
    known = [soft for soft in soft_timeouts if soft is not None]
    if not known or len(known) < len(soft_timeouts):
        return grace
    return min(grace, max(known))


CAPPED_LOOKS = 2  # samples in a row that begin an incident
CALM_LOOKS = 12  # samples without it that end one
LIGHT = 0.7  # the load is light if this share of the remaining capacity covers the demand


class Load(Struct, frozen=True):
    """One sample: the workers wanted so far, the jobs that could run, and the queued jobs.

    `demand` includes running jobs. `all_busy`: no ready worker has a free slot.
    """

    wanted: int
    demand: int
    queued: int
    all_busy: bool


class Trend(Struct, frozen=True):
    """Since when the load has been light, and since when jobs wait with all workers busy."""

    light_since: float | None = None
    waiting_since: float | None = None


class ScalingStep(Struct, frozen=True):
    """The number of workers to have from now on, and why; an empty text: no change."""

    wanted: int
    why: str
    trend: Trend


class Processes(Struct, frozen=True):
    """The existing worker processes.

    `staying` ones run or start, `outgoing` ones run until they are replaced, `leaving` ones finish
    their jobs and exit, or are being killed.
    """

    staying: int
    outgoing: int = 0
    leaving: int = 0

    @property
    def total(self) -> int:
        return self.staying + self.outgoing + self.leaving


class Plan(Struct, frozen=True):
    """How many workers to start and to stop now, and how many missing ones must wait.

    `retire_first`: a replacement can start only after the worker it replaces has exited.
    """

    start: int = 0
    stop: int = 0
    held: int = 0
    retire_first: bool = False


def plan(settings: FarmSettings, wanted: int, now: Processes) -> Plan:
    """Return which processes to start and stop, never exceeding the maximum plus the surge.

    Leaving workers count until they have exited. If they take long, missing workers wait for them.
    """
    missing = wanted - now.staying
    if missing <= 0:
        return Plan(stop=-missing)
    start = max(0, min(missing, most_processes(settings) - now.total))
    retire_first = not start and not now.leaving and now.outgoing > 0
    return Plan(start, 0, missing - start, retire_first)


def most_processes(settings: FarmSettings) -> int:
    """Return the maximum number of worker processes at any time."""
    return settings.max_workers + settings.surge


def held_text(maximum: int, surge: int, held: int, leaving: int) -> str:
    """Explain why missing workers are not started yet."""
    wait = "1 worker waits" if held == 1 else f"{held} workers wait"
    most = "1 process" if maximum + surge == 1 else f"{maximum + surge} processes"
    are = "1 of them is" if leaving == 1 else f"{leaving} of them are"
    bounds = f"(maximum {maximum} + surge {surge})"
    return f"{wait} to start: at most {most} at once {bounds}, {are} leaving"


class CapWatch:
    """Detects pools whose jobs wait behind their own cap while workers are free; reports each once.

    An incident begins with the second sample in a row, and ends after enough samples without it.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._calm: dict[str, int] = {}

    def look(self, behind: Iterable[str], are_free: bool = True) -> list[str]:
        """Return the pools whose incident begins now; samples with busy workers count as calm."""
        found = set(behind) if are_free else set()
        self._seen = {pool: self._seen.get(pool, 0) + 1 for pool in found}
        for pool in list(self._calm):
            self._calm[pool] = 0 if pool in found else self._calm[pool] + 1
            if self._calm[pool] >= CALM_LOOKS:
                del self._calm[pool]
        begun = [
            pool
            for pool in sorted(found)
            if self._seen[pool] >= CAPPED_LOOKS and pool not in self._calm
        ]
        self._calm.update(dict.fromkeys(begun, 0))
        return begun


def decide(settings: FarmSettings, load: Load, trend: Trend, now: float) -> ScalingStep:
    """Return how many workers to have, and why."""
    wanted = _within(settings, load.wanted)
    if wanted != load.wanted:
        return ScalingStep(wanted, f"the bounds are {_bounds(settings)}", Trend())
    waits = load.queued > 0 and load.all_busy
    waiting = _since(trend.waiting_since, waits, now)
    light = _since(trend.light_since, _is_light(settings, load), now)
    seen = Trend(light, waiting)
    capacity = settings.prefetch_per_worker * wanted
    if load.demand > capacity:
        return _up(settings, seen, wanted, f"{load.demand} jobs, room for {capacity}", now)
    if waiting is not None and now - waiting >= settings.scale_up_wait_s:
        why = f"{load.queued} jobs wait, for {now - waiting:.0f} s with all workers busy"
        return _up(settings, seen, wanted, why, now)
    if light is not None and now - light >= settings.scale_down_cooldown_s:
        fewer = _within(settings, wanted - settings.scale_down_batch_size)
        return ScalingStep(fewer, f"light load: {load.demand} jobs", Trend(now, None))
    return ScalingStep(wanted, "", seen)


def wanted_for(settings: FarmSettings, demand: int) -> int:
    """Return how many workers a demand requires, whether or not this farm starts them itself."""
    return _within(settings, ceil(demand / settings.prefetch_per_worker))


def runnable(running: int, queued: int, slots: int | None, paused: bool) -> int:
    """Return how many jobs of a pool could run at once with enough workers."""
    if paused:
        return running
    return running + queued if slots is None else max(running, min(running + queued, slots))


def to_retire(active: Iterable[tuple[str, int]], count: int) -> list[str]:
    """Return the workers to retire: those with the fewest running jobs, the youngest first."""
    ranked = sorted((jobs, -age, id) for age, (id, jobs) in enumerate(active))
    return [id for _, _, id in ranked[:count]]


def _up(settings: FarmSettings, seen: Trend, wanted: int, why: str, now: float) -> ScalingStep:
    more = _within(settings, wanted + settings.scale_up_batch_size)
    if more == wanted:
        return ScalingStep(wanted, "", seen)
    # Give new workers time to take load before scaling up again.
    return ScalingStep(more, why, Trend(None, None if seen.waiting_since is None else now))


def _is_light(settings: FarmSettings, load: Load) -> bool:
    left = _within(settings, load.wanted - settings.scale_down_batch_size)
    return left < load.wanted and load.demand <= LIGHT * left * settings.prefetch_per_worker


def _since(before: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _within(settings: FarmSettings, count: int) -> int:
    return max(settings.min_workers, min(settings.max_workers, count))


def _bounds(settings: FarmSettings) -> str:
    return f"{settings.min_workers} to {settings.max_workers}"


SILENT_INTERVALS = 7
KILL_INTERVALS = 2
REPORT_WITHIN = 15.0  # seconds from the start of a process to its first message
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
MANY_DEATHS = 20  # deaths of ready workers within DEATHS_SECONDS; more restarts wait MANY_PAUSE
DEATHS_SECONDS = 60.0
MANY_PAUSE = 5.0


class Verdict(StrEnum):
    """What the supervisor does about a worker."""

    FINE = "fine"
    TERMINATE = "terminate"
    KILL = "kill"


class LivenessFacts(Struct, frozen=True):
    """The times of a worker: its start, its last message, and when it was asked to end as hung.

    `blocked` is for how long its event loop, or its store thread's loop, has been blocked,
    according to the worker itself.
    """

    started_at: float
    heard_at: float | None
    terminated_at: float | None
    blocked: float


def judge(facts: LivenessFacts, settings: FarmSettings, now: float) -> tuple[Verdict, str]:
    """Return whether a worker is hung, and why."""
    interval = settings.heartbeat_interval_s
    if facts.terminated_at is not None:
        late = now - facts.terminated_at >= KILL_INTERVALS * interval
        return (Verdict.KILL, "it did not end") if late else (Verdict.FINE, "")
    if facts.heard_at is None:
        if now - facts.started_at >= max(REPORT_WITHIN, SILENT_INTERVALS * interval):
            return Verdict.TERMINATE, "it did not report after its start"
    elif now - facts.heard_at >= SILENT_INTERVALS * interval:
        return Verdict.TERMINATE, f"silent for {now - facts.heard_at:.1f} s"
    if facts.blocked >= settings.loop_blocked_limit_s:
        return Verdict.TERMINATE, f"its event loop has been blocked for {facts.blocked:.0f} s"
    return Verdict.FINE, ""


def is_silent(heard_at: float, settings: FarmSettings, now: float) -> bool:
    """Return whether a supervisor has been silent for so long that its workers exit."""
    return now - heard_at >= SILENT_INTERVALS * settings.heartbeat_interval_s


class Deaths(Struct, frozen=True):
    """Unexpected deaths of workers: consecutive ones before they were ready, and their times."""

    unready: int = 0
    moments: tuple[float, ...] = ()
    last_at: float = 0.0


def died(deaths: Deaths, was_ready: bool, now: float) -> Deaths:
    """Return the deaths with one more."""
    recent = tuple(at for at in deaths.moments if now - at < DEATHS_SECONDS)
    if was_ready:
        return Deaths(deaths.unready, (*recent, now)[-MANY_DEATHS:], now)
    if deaths.unready and now < may_start_at(deaths):
        # It started together with the previous one and died of the same cause.
        return deaths
    return Deaths(deaths.unready + 1, recent, now)


def came_up(deaths: Deaths) -> Deaths:
    """Return the deaths after a worker became ready, which resets the backoff."""
    return Deaths(0, deaths.moments, deaths.last_at)


def may_start_at(deaths: Deaths) -> float:
    """Return the earliest time at which the next worker may be started."""
    if deaths.unready:
        # The exponent is capped, because an unbounded one would overflow.
        doubled = FIRST_PAUSE * 2.0 ** min(deaths.unready - 1, 20)
        return deaths.last_at + min(LONGEST_PAUSE, doubled)
    if len(deaths.moments) >= MANY_DEATHS:
        return deaths.last_at + MANY_PAUSE
    return 0.0
