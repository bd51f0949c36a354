"""Helpers for tests of poolhand and of programs built on it."""

from poolhand.durable.local_pool.durable_pool import DurablePool
from poolhand.pool import registry
from poolhand.testing.seeded import SeededLoop, SeededRuntime, Stalled, run_seeded

__all__ = [
    "SeededLoop",
    "SeededRuntime",
    "Stalled",
    "run_seeded",
    "simulate_restart",
]


def simulate_restart() -> None:
    """Drop every pool of this process as if the process had been killed.

    Nothing is drained, handed back or written. An in-memory pool is gone with its jobs, and its
    name is free. A durable pool that is created again finds its file unchanged: tasks continue,
    and closures, which died with the process, are reloaded as failed jobs.
    """
    for pool in registry.list_pools():
        if isinstance(pool, DurablePool):
            registry.unregister(pool)
            pool.abandon()
        else:
            pool.forget()
