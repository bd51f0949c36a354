"""poolhand: the worker pool for AI agents."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from poolhand import context
from poolhand.context import fencing_token, stop_requested
from poolhand.errors import (
    BadSignature,
    Conflict,
    Corrupt,
    Deadlock,
    Directive,
    Draining,
    GiveUp,
    IdempotencyConflict,
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
    ReadOnly,
    Refused,
    ResultNotKept,
    RetryLater,
    SchemaTooNew,
    SessionBusy,
    SessionErased,
    SessionForbidden,
    Snooze,
    StoreError,
    TooLarge,
    ToolBusy,
    ToolError,
    ToolOutcomeUnknown,
    Unavailable,
    Undecodable,
    UnknownVersion,
    Unsupported,
    UsageError,
    WireError,
)
from poolhand.execute.telling import emit, progress
from poolhand.observe import events
from poolhand.observe.events import Event, subscribe
from poolhand.observe.logs import log_events
from poolhand.observe.tracing import trace_events
from poolhand.pool import durable
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
from poolhand.rules.keep import Keep
from poolhand.rules.rank import QueueStrategy, fair_round_robin, fifo, lifo, priority
from poolhand.rules.sizing import Autoscale, suggest_workers
from poolhand.rules.streams import JobEvent

if TYPE_CHECKING:
    from poolhand.app import App
    from poolhand.contract import Filter
    from poolhand.execute.execution import Execution
    from poolhand.farm.agent import Agent
    from poolhand.farm.named_task import NamedTask
    from poolhand.farm.shift import Shift, ShiftReport
    from poolhand.farm.sync_ticket import SyncTicket
    from poolhand.farm.task import Task
    from poolhand.rules.farm import FarmSettings
    from poolhand.sessions.session import Session
    from poolhand.tools.calling import ToolContext
    from poolhand.tools.step import step
    from poolhand.tools.tool import tool, tool_context
    from poolhand.wire.limits import Limits
    from poolhand.wire.pickling import AllowPickle
    from poolhand.wire.signing import KeyRing

# What a pool in memory does not need is imported when it is first named.
_LATER = {
    "Agent": "poolhand.farm.agent",
    "AllowPickle": "poolhand.wire.pickling",
    "App": "poolhand.app",
    "Execution": "poolhand.execute.execution",
    "FarmSettings": "poolhand.rules.farm",
    "Filter": "poolhand.contract",
    "KeyRing": "poolhand.wire.signing",
    "Limits": "poolhand.wire.limits",
    "NamedTask": "poolhand.farm.named_task",
    "Session": "poolhand.sessions.session",
    "Shift": "poolhand.farm.shift",
    "ShiftReport": "poolhand.farm.shift",
    "SyncTicket": "poolhand.farm.sync_ticket",
    "Task": "poolhand.farm.task",
    "ToolContext": "poolhand.tools.calling",
    "step": "poolhand.tools.step",
    "tool": "poolhand.tools.tool",
    "tool_context": "poolhand.tools.tool",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'poolhand' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def _durable_pool() -> type:
    kind: type = import_module("poolhand.app").DurablePool
    return kind


durable.offer(_durable_pool)

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentPool",
    "AgentRequest",
    "AllowPickle",
    "App",
    "Autoscale",
    "Backpressure",
    "BadSignature",
    "Conflict",
    "Corrupt",
    "Deadlock",
    "Directive",
    "DrainReport",
    "Draining",
    "Event",
    "Execution",
    "Explanation",
    "FanoutResult",
    "FarmSettings",
    "Fault",
    "Filter",
    "GiveUp",
    "IdempotencyConflict",
    "Job",
    "JobCancelled",
    "JobError",
    "JobEvent",
    "JobExpired",
    "JobFailed",
    "JobLost",
    "JobRejected",
    "JobTimedOut",
    "Keep",
    "KeyRing",
    "Limits",
    "NamedTask",
    "NoFreeSlot",
    "Pool",
    "PoolFull",
    "PoolHealth",
    "PoolSnapshot",
    "PoolStats",
    "PoolhandError",
    "QueueStrategy",
    "ReadOnly",
    "Refused",
    "ResultNotKept",
    "Retry",
    "RetryLater",
    "SchemaTooNew",
    "Session",
    "SessionBusy",
    "SessionErased",
    "SessionForbidden",
    "Shift",
    "ShiftReport",
    "Snooze",
    "Status",
    "StoreError",
    "SyncTicket",
    "Task",
    "Ticket",
    "TooLarge",
    "ToolBusy",
    "ToolContext",
    "ToolError",
    "ToolOutcomeUnknown",
    "Unavailable",
    "Undecodable",
    "UnknownVersion",
    "Unsupported",
    "UsageError",
    "WireError",
    "WorkerHealth",
    "agent_fanout",
    "bounded",
    "bounded_map",
    "context",
    "current_job",
    "emit",
    "events",
    "fail_fast",
    "fair_round_robin",
    "fencing_token",
    "fifo",
    "get_pool",
    "lifo",
    "list_pools",
    "log_events",
    "pool_lifespan",
    "priority",
    "progress",
    "ring_buffer",
    "step",
    "stop_requested",
    "subscribe",
    "suggest_workers",
    "tool",
    "tool_context",
    "trace_events",
    "unbounded",
    "wait",
]
