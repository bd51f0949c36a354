"""The settings of a farm: how many workers, how they are watched, and when they go."""

from __future__ import annotations

from msgspec import Struct


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
