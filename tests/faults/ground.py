"""The place of a row: a folder for the files outside, and a store of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults import outside

if TYPE_CHECKING:
    from tests.private_servers.postgres_server import PostgresServer

SQLITE, POSTGRES = "sqlite", "postgres"
STORES = (SQLITE, POSTGRES)
NO_STORE = "none"  # of rows that play inside one process


class Skipped(Exception):
    """A row that cannot be played here; the text says what is missing."""


class Ground:
    """The place of one row; the URL of its store is written down for all processes."""

    def __init__(
        self,
        folder: Path,
        store: str,
        url: str,
        server: PostgresServer | None = None,
        move_clock: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.folder = folder
        self.store = store
        self.url = url
        self.move_clock = move_clock  # of its server, to so many seconds from the true time
        self._server = server
        (folder / outside.URL).write_text(url, encoding="utf-8")

    @property
    def server(self) -> PostgresServer:
        """The server of its store, to be stopped and killed."""
        assert self._server is not None, f"a {self.store} store has no server"
        return self._server

    @property
    def version(self) -> str:
        """The version of its server, if it has one and that runs."""
        if self._server is None or not self._server.running:
            return ""
        return self._server.query("SHOW server_version").partition(" ")[0]

    def beside(self, name: str) -> Ground:
        """Return another ground, with a folder and a store of its own, on the same server."""
        folder = self.folder / name
        folder.mkdir()
        if self._server is None:
            return Ground(folder, self.store, file_url(folder))
        return Ground(folder, self.store, self._server.database(), self._server, self.move_clock)


def file_url(folder: Path) -> str:
    return f"sqlite:///{folder / outside.STORE}"


@contextmanager
def laid(
    folder: Path, store: str, moves_clock: bool = False, programs: Path | None = None
) -> Iterator[Ground]:
    """Provide a place for a block, with a durable server if the store needs one.

    `programs` is the folder of the server's programs, where it is not the usual one.
    """
    with ExitStack() as stack:
        if store != POSTGRES:
            yield Ground(folder, store, file_url(folder) if store == SQLITE else "")
        elif moves_clock:
            from tests.faults.movable import movable_programs, move

            programs = stack.enter_context(movable_programs())
            server = stack.enter_context(postgres(programs))
            yield Ground(folder, store, server.url, server, partial(move, programs))
        else:
            server = stack.enter_context(postgres(programs))
            yield Ground(folder, store, server.url, server)


@contextmanager
def postgres(programs: Path | None = None) -> Iterator[PostgresServer]:
    """Provide a server for a block, or say why there is none."""
    from poolhand.errors import Unsupported
    from poolhand.runtime import Runtime
    from poolhand.stores.open import store_of
    from tests.private_servers.postgres_server import PostgresServer
    from tests.private_servers.programs import ServerMissing

    server = PostgresServer(binaries=programs)
    try:
        store_of("postgresql://127.0.0.1/poolhand", Runtime())
        server.start()
    except (Unsupported, ServerMissing) as missing:
        raise Skipped(str(missing)) from missing
    try:
        yield server
    finally:
        server.close()
