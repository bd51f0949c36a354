"""Helpers for tests of poolhand and of programs built on it."""

from poolhand.testing.postgres_server import PostgresServer
from poolhand.testing.restart import simulate_restart
from poolhand.testing.seeded import SeededLoop, SeededRuntime, Stalled, run_seeded
from poolhand.testing.servers import ServerFailed, ServerMissing

__all__ = [
    "PostgresServer",
    "SeededLoop",
    "SeededRuntime",
    "ServerFailed",
    "ServerMissing",
    "Stalled",
    "run_seeded",
    "simulate_restart",
]
