"""poolhand: the worker pool for AI agents."""

from poolhand.context import stop_requested
from poolhand.errors import (
    Deadlock,
    Directive,
    Draining,
    GiveUp,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobRejected,
    JobTimedOut,
    NoFreeSlot,
    PoolFull,
    PoolhandError,
    Refused,
    RetryLater,
    Snooze,
    UsageError,
)
from poolhand.observe import events
from poolhand.observe.events import Event, subscribe
from poolhand.observe.logs import log_events
from poolhand.pool.attempt import current_job
from poolhand.pool.drain import DrainReport
from poolhand.pool.pool import Pool
from poolhand.pool.registry import get_pool, list_pools
from poolhand.pool.snapshot import PoolSnapshot, PoolStats
from poolhand.pool.ticket import Ticket, wait
from poolhand.rules.backoff import Retry
from poolhand.rules.backpressure import (
    Backpressure,
    bounded,
    fail_fast,
    ring_buffer,
    unbounded,
)
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.rank import QueueStrategy, fair_round_robin, fifo, lifo, priority

__version__ = "0.1.0"

__all__ = [
    "Backpressure",
    "Deadlock",
    "Directive",
    "DrainReport",
    "Draining",
    "Event",
    "Explanation",
    "Fault",
    "GiveUp",
    "Job",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobRejected",
    "JobTimedOut",
    "NoFreeSlot",
    "Pool",
    "PoolFull",
    "PoolSnapshot",
    "PoolStats",
    "PoolhandError",
    "QueueStrategy",
    "Refused",
    "Retry",
    "RetryLater",
    "Snooze",
    "Status",
    "Ticket",
    "UsageError",
    "__version__",
    "bounded",
    "current_job",
    "events",
    "fail_fast",
    "fair_round_robin",
    "fifo",
    "get_pool",
    "lifo",
    "list_pools",
    "log_events",
    "priority",
    "ring_buffer",
    "stop_requested",
    "subscribe",
    "unbounded",
    "wait",
]
