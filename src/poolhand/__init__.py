"""poolhand: the worker pool for AI agents.

The other errors are in `poolhand.errors`, records that configure something in `poolhand.settings`,
and the types of returned objects in `poolhand.views`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from poolhand import context
from poolhand.context import fencing_token, stop_requested
from poolhand.durable.streams.events import emit, progress
from poolhand.errors import (
    GiveUp,
    JobError,
    PoolhandError,
    Refused,
    RetryLater,
    Snooze,
    StoreError,
    ToolError,
    UsageError,
    WireError,
)
from poolhand.observe import events
from poolhand.observe.events import subscribe
from poolhand.observe.logs import log_events, trace_events
from poolhand.pool.faces.agent_pool import AgentPool, pool_lifespan
from poolhand.pool.faces.fanout import AgentRequest, agent_fanout, bounded_map
from poolhand.pool.pool import Pool
from poolhand.pool.registry import get_pool, list_pools
from poolhand.pool.registry import offer_durable as _offer_durable_pools
from poolhand.pool.slots.attempt import current_job
from poolhand.pool.ticket import Ticket, wait
from poolhand.rules.outcome import Retry
from poolhand.rules.queue.backpressure import bounded, fail_fast, ring_buffer, unbounded
from poolhand.rules.queue.strategy import fair_round_robin, fifo, lifo, priority

if TYPE_CHECKING:
    from poolhand.agents.agent import Agent
    from poolhand.agents.session import Session
    from poolhand.agents.tools.step import step
    from poolhand.agents.tools.tool import tool, tool_context
    from poolhand.app import App
    from poolhand.durable.client.task import Task
    from poolhand.durable.worker.worker import Worker

# What a pool in memory does not need is imported when it is first named.
_LATER = {
    "Agent": "poolhand.agents.agent",
    "App": "poolhand.app",
    "Session": "poolhand.agents.session",
    "Worker": "poolhand.durable.worker.worker",
    "Task": "poolhand.durable.client.task",
    "step": "poolhand.agents.tools.step",
    "tool": "poolhand.agents.tools.tool",
    "tool_context": "poolhand.agents.tools.tool",
}

_OTHERS = ("poolhand.settings", "poolhand.errors", "poolhand.views")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        module = None if name.startswith("_") else _home_of(name)
        if module is not None:
            # Not an AttributeError: `from poolhand import …` would replace its text.
            raise ImportError(f"{name} is in {module}: write `from {module} import {name}`")
        raise AttributeError(f"module 'poolhand' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def _home_of(name: str) -> str | None:
    """Return the public module of a name that is not at the top level."""
    for module in _OTHERS:
        found = import_module(module)
        own = getattr(getattr(found, name, None), "__module__", None) == module
        if own or name in getattr(found, "__all__", ()):
            return module
    return None


def _durable_pool() -> type:
    kind: type = import_module("poolhand.app").DurablePool
    return kind


_offer_durable_pools(_durable_pool)

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentPool",
    "AgentRequest",
    "App",
    "GiveUp",
    "JobError",
    "Pool",
    "PoolhandError",
    "Refused",
    "Retry",
    "RetryLater",
    "Session",
    "Snooze",
    "StoreError",
    "Task",
    "Ticket",
    "ToolError",
    "UsageError",
    "WireError",
    "Worker",
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
    "tool",
    "tool_context",
    "trace_events",
    "unbounded",
    "wait",
]
