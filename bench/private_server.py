"""The private PostgreSQL of the tests, for the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

# It is in the folder of the tests, not in the wheel.
sys.path.append(str(Path(__file__).parents[1]))

from tests.private_servers.postgres_server import PostgresServer
from tests.private_servers.programs import ServerMissing

__all__ = ["PostgresServer", "ServerMissing"]
