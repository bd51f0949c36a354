"""poolhand: the worker pool for AI agents."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from poolhand import context
from poolhand.context import fencing_token, stop_requested
from poolhand.durable.streams.emit import emit, progress
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
from poolhand.observe import events
from poolhand.observe.events import Event, subscribe
from poolhand.observe.logs import log_events
from poolhand.observe.tracing import trace_events
from poolhand.pool.durable import offer as _offer_durable_pools
from poolhand.pool.engine.drain import DrainReport
from poolhand.pool.engine.health import PoolHealth, WorkerHealth
from poolhand.pool.engine.snapshot import PoolSnapshot, PoolStats
from poolhand.pool.faces.agent_pool import AgentPool
from poolhand.pool.faces.fanout import AgentRequest, FanoutResult, agent_fanout, bounded_map
from poolhand.pool.faces.lifespan import pool_lifespan
from poolhand.pool.pool import Pool
from poolhand.pool.registry import get_pool, list_pools
from poolhand.pool.slots.attempt import current_job
from poolhand.pool.ticket import Ticket, wait
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.queue.backpressure import (
    Backpressure,
    bounded,
    fail_fast,
    ring_buffer,
    unbounded,
)
from poolhand.rules.queue.strategy import QueueStrategy, fair_round_robin, fifo, lifo, priority
from poolhand.rules.retention import Keep
from poolhand.rules.retry import Retry
from poolhand.rules.scaling.pool_size import Autoscale, suggest_workers
from poolhand.rules.streams import JobEvent

if TYPE_CHECKING:
    from poolhand.agents.agent import Agent
    from poolhand.agents.session import Session
    from poolhand.agents.tools.step import step
    from poolhand.agents.tools.tool import tool, tool_context
    from poolhand.agents.tools.tool_call import ToolContext
    from poolhand.app import App
    from poolhand.contract import Filter
    from poolhand.durable.client.named_task import NamedTask
    from poolhand.durable.client.sync_ticket import SyncTicket
    from poolhand.durable.client.task import Task
    from poolhand.durable.streams.execution_log import Execution
    from poolhand.durable.worker.worker import Worker, WorkerReport
    from poolhand.rules.scaling.farm_settings import FarmSettings
    from poolhand.wire.limits import Limits
    from poolhand.wire.pickling import AllowPickle
    from poolhand.wire.signing import KeyRing

# What a pool in memory does not need is imported when it is first named.
_LATER = {
    "Agent": "poolhand.agents.agent",
    "AllowPickle": "poolhand.wire.pickling",
    "App": "poolhand.app",
    "Execution": "poolhand.durable.streams.execution_log",
    "FarmSettings": "poolhand.rules.scaling.farm_settings",
    "Filter": "poolhand.contract",
    "KeyRing": "poolhand.wire.signing",
    "Limits": "poolhand.wire.limits",
    "NamedTask": "poolhand.durable.client.named_task",
    "Session": "poolhand.agents.session",
    "Worker": "poolhand.durable.worker.worker",
    "WorkerReport": "poolhand.durable.worker.worker",
    "SyncTicket": "poolhand.durable.client.sync_ticket",
    "Task": "poolhand.durable.client.task",
    "ToolContext": "poolhand.agents.tools.tool_call",
    "step": "poolhand.agents.tools.step",
    "tool": "poolhand.agents.tools.tool",
    "tool_context": "poolhand.agents.tools.tool",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'poolhand' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def _durable_pool() -> type:
    kind: type = import_module("poolhand.app").DurablePool
    return kind


_offer_durable_pools(_durable_pool)

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
    "Worker",
    "WorkerHealth",
    "WorkerReport",
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
