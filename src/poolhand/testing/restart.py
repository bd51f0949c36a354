"""A restart without a restart: what a process knows is forgotten, what it wrote stays."""

from __future__ import annotations

from poolhand.durable.local_pool.durable_pool import DurablePool
from poolhand.pool import registry


def simulate_restart() -> None:
    """Let every pool of this process go as if the process had been killed.

    Nothing is drained, given back or written. A pool in memory is gone with its jobs, and its name
    is free. A durable pool, made again, finds its file as it was: tasks go on, and closures, which
    died with the process, are reloaded as failed jobs.
    """
    for pool in registry.list_pools():
        if isinstance(pool, DurablePool):
            registry.unregister(pool)
            pool.abandon()
        else:
            pool.forget()
