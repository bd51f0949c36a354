"""The settings of a farm: how many workers, how they are watched, and when they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from poolhand.errors import UsageError
from poolhand.rules.checks import is_amount, is_count, is_int, is_seconds, shown


class FarmSettings(Struct, frozen=True):
    """What a supervisor and its workers go by; durations in seconds, 0 jobs or MB: no limit.

    `soft_timeout` and `hard_timeout` hold for jobs that were submitted without any.
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


class Speech(Struct, frozen=True):
    """What is told while a farm runs: the least that is logged, whether of every job as well.

    Where it is `quiet`, nothing that workers write comes to the terminal.
    """

    loglevel: str = "info"
    verbose: bool = False
    quiet: bool = False


def check_settings(settings: object) -> None:
    """Raise everything that is wrong with settings which nobody has read from anywhere."""
    if not isinstance(settings, FarmSettings):
        raise UsageError(f"farm: settings={shown(settings)} is not allowed; give FarmSettings(…)")
    wrong = [
        f"{name}={shown(getattr(settings, name))}"
        for name, allowed in _ALLOWED.items()
        if not allowed(getattr(settings, name))
    ]
    if not wrong and settings.min_workers > settings.max_workers:
        wrong = [f"min_workers={settings.min_workers}, max_workers={settings.max_workers}"]
    if wrong:
        raise UsageError(
            f"farm: {', '.join(wrong)} is not allowed; numbers are whole and not below 0, batches, "
            "prefetch and the maximum at least 1 and the maximum not below the minimum, durations "
            "seconds, intervals above 0"
        )


def _is_number(value: object) -> bool:
    return is_int(value) and value >= 0  # type: ignore[operator]


def _is_timeout(value: object) -> bool:
    return value is None or is_amount(value)


_ALLOWED: dict[str, Callable[[object], bool]] = {
    "min_workers": _is_number,
    "max_workers": is_count,
    "prefetch_per_worker": is_count,
    "scale_up_batch_size": is_count,
    "scale_down_batch_size": is_count,
    "scale_check_interval_s": is_amount,
    "worker_shutdown_grace_s": is_seconds,
    "heartbeat_interval_s": is_amount,
    "task_history_max": _is_number,
    "max_jobs_per_worker": _is_number,
    "max_memory_mb_per_worker": _is_number,
    "soft_timeout_s": _is_timeout,
    "hard_timeout_s": _is_timeout,
    "hard_exit_after_s": is_seconds,
    "loop_blocked_limit_s": is_amount,
    "scale_down_cooldown_s": is_seconds,
    "scale_up_wait_s": is_seconds,
}

USUAL_FARM = FarmSettings()
USUAL_SPEECH = Speech()


def drain_within(grace: float, soft_timeouts: Sequence[float | None]) -> float:
    """Return how long to wait for running jobs: none of them needs longer than its soft timeout.

    One without a soft timeout may need all of the grace.
    """
    known = [soft for soft in soft_timeouts if soft is not None]
    if not known or len(known) < len(soft_timeouts):
        return grace
    return min(grace, max(known))
