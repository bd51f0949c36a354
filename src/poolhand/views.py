"""The types of what calls return, and the `Filter` that chooses the jobs to list."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from poolhand.contract import Filter
from poolhand.observe.events import Event
from poolhand.pool.engine.drain import DrainReport
from poolhand.pool.engine.views import PoolHealth, PoolSnapshot, PoolStats, WorkerHealth
from poolhand.pool.faces.fanout import FanoutResult
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Fault, Job, Status
from poolhand.rules.streams import JobEvent

if TYPE_CHECKING:
    from poolhand.agents.tools.tool_call import ToolContext
    from poolhand.durable.client.named_task import NamedTask
    from poolhand.durable.client.ticket import SyncTicket
    from poolhand.durable.streams.job_api import Execution
    from poolhand.durable.worker.worker import WorkerReport

# A pool in memory does not need these: they are imported when they are first used.
_LATER = {
    "Execution": "poolhand.durable.streams.job_api",
    "NamedTask": "poolhand.durable.client.named_task",
    "SyncTicket": "poolhand.durable.client.ticket",
    "ToolContext": "poolhand.agents.tools.tool_call",
    "WorkerReport": "poolhand.durable.worker.worker",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'poolhand.views' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


__all__ = [
    "DrainReport",
    "Event",
    "Execution",
    "Explanation",
    "FanoutResult",
    "Fault",
    "Filter",
    "Job",
    "JobEvent",
    "NamedTask",
    "PoolHealth",
    "PoolSnapshot",
    "PoolStats",
    "Status",
    "SyncTicket",
    "ToolContext",
    "WorkerHealth",
    "WorkerReport",
]
