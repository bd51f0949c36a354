"""A real PgBouncer for tests, one per process of the run, before the PostgreSQL they share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from poolhand.stores.postgres.connections import SETTINGS as SERVER_SETTINGS
from tests.private_servers.postgres_server import PostgresServer
from tests.private_servers.programs import (
    PrivateFolder,
    ServerMissing,
    find_programs,
    free_port,
    on_path,
    wait_until,
)
from tests.servers import do_without

SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 2
max_client_conn = 60
"""


class Pooler:
    """A running PgBouncer with two connections to the server."""

    def __init__(self, program: Path, server: PostgresServer, more: str = "") -> None:
        self.port = free_port()
        self._place = PrivateFolder("poolhand-pooler-", "pgbouncer")
        users, settings = self._place.path / "users", self._place.path / "pgbouncer.ini"
        users.write_text('"poolhand" ""\n')
        text = SETTINGS.format(server=server.port, port=self.port, users=users)
        settings.write_text(text + more)
        self._place.path.chmod(0o755)
        with (self._place.path / "log").open("wb") as log:
            self._process = self._place.start([program, settings], log)
        wait_until("the pooler listens", self._listens, then=self._said)

    def through(self, url: str) -> str:
        return f"{self.unsaid(url)}&pooler=transaction"

    def unsaid(self, url: str) -> str:
        """Return a URL of the pooler without `pooler=transaction`."""
        return url.replace(f":{urlsplit(url).port}/", f":{self.port}/")

    def close(self) -> None:
        self._place.clear()
        self._process.wait()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _said(self) -> str:
        return (self._place.path / "log").read_text()


def find_pooler() -> Path:
    folders = [*on_path("pgbouncer"), Path("/usr/sbin"), Path("/usr/bin")]
    how = "apt-get install pgbouncer"
    return find_programs("PgBouncer", ["pgbouncer"], folders, how)["pgbouncer"]


@pytest.fixture(scope="session")
def pooler(postgres: PostgresServer) -> Iterator[Pooler]:
    """Return a pooler with two connections for all clients."""
    try:
        program = find_pooler()
    except ServerMissing as missing:
        do_without(missing)
    running = Pooler(program, postgres)
    yield running
    running.close()


@pytest.fixture
def lenient_pooler(postgres: PostgresServer, pooler: Pooler) -> Iterator[Pooler]:
    """Return a pooler that lets a client believe that its settings are kept."""
    names = ", ".join(sorted(SERVER_SETTINGS))
    running = Pooler(find_pooler(), postgres, f"ignore_startup_parameters = {names}\n")
    yield running
    running.close()


@pytest.fixture
def pooled(schema: str, pooler: Pooler) -> str:
    """Return the URL of a new and empty schema, through the pooler."""
    return pooler.through(schema)
