"""poolhand: the worker pool for AI agents."""

from poolhand.context import stop_requested
from poolhand.errors import (
    BadSignature,
    Deadlock,
    Directive,
    Draining,
    GiveUp,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobLost,
    JobRejected,
    JobTimedOut,
    NoFreeSlot,
    PoolFull,
    PoolhandError,
    Refused,
    RetryLater,
    Snooze,
    TooLarge,
    Undecodable,
    UnknownVersion,
    UsageError,
    WireError,
)
from poolhand.observe import events
from poolhand.observe.events import Event, subscribe
from poolhand.observe.logs import log_events
from poolhand.observe.tracing import trace_events
from poolhand.pool.agent_pool import AgentPool
from poolhand.pool.attempt import current_job
from poolhand.pool.drain import DrainReport
from poolhand.pool.fanout import AgentRequest, FanoutResult, agent_fanout, bounded_map
from poolhand.pool.health import PoolHealth, WorkerHealth
from poolhand.pool.lifespan import pool_lifespan
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
from poolhand.rules.sizing import Autoscale, suggest_workers

__version__ = "0.1.0"

__all__ = [
    "AgentPool",
    "AgentRequest",
    "Autoscale",
    "Backpressure",
    "BadSignature",
    "Deadlock",
    "Directive",
    "DrainReport",
    "Draining",
    "Event",
    "Explanation",
    "FanoutResult",
    "Fault",
    "GiveUp",
    "Job",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobLost",
    "JobRejected",
    "JobTimedOut",
    "NoFreeSlot",
    "Pool",
    "PoolFull",
    "PoolHealth",
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
    "TooLarge",
    "Undecodable",
    "UnknownVersion",
    "UsageError",
    "WireError",
    "WorkerHealth",
    "__version__",
    "agent_fanout",
    "bounded",
    "bounded_map",
    "current_job",
    "events",
    "fail_fast",
    "fair_round_robin",
    "fifo",
    "get_pool",
    "lifo",
    "list_pools",
    "log_events",
    "pool_lifespan",
    "priority",
    "ring_buffer",
    "stop_requested",
    "subscribe",
    "suggest_workers",
    "trace_events",
    "unbounded",
    "wait",
]
