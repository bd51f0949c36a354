"""Farm settings: how many workers, how they are monitored, and when they are replaced."""

from __future__ import annotations

from collections.abc import Sequence
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
