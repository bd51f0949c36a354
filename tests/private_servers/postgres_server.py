"""A private PostgreSQL server for tests, which can be started, stopped, killed and paused."""

from __future__ import annotations

import re
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args
from urllib.parse import quote, unquote, urlsplit

from poolhand.errors import UsageError
from tests.private_servers import caretaker
from tests.private_servers.programs import (
    ENVIRONMENT,
    PATIENCE,
    PrivateFolder,
    ServerFailed,
    find_programs,
    free_port,
    on_path,
    wait_until,
)

Mode = Literal["smart", "fast", "immediate"]

WHAT = "PostgreSQL"
HOW = "apt-get install postgresql"
PROGRAMS = ("initdb", "postgres", "psql")
USER = "poolhand"
OURS = {"cluster_name", "data_directory", "listen_addresses", "port", "unix_socket_directories"}
# A crash of the machine may lose the last changes, or all of them.
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
# Shared memory in files of the folder: elsewhere it would outlive a killed server.
KEPT = {"dynamic_shared_memory_type": "mmap"}
NOT_THERE = "PostgreSQL was never started, or is closed; use it inside `with PostgresServer()`"
PORT_TRIES = 20
PORT_SECONDS = 10.0


def find_postgres(binaries: Path | None = None) -> dict[str, Path]:
    """Return initdb, postgres and psql from one folder; raises ServerMissing."""
    folders = iter([binaries]) if binaries is not None else _usual_folders()
    return find_programs(WHAT, PROGRAMS, folders, HOW)


def _usual_folders() -> Iterator[Path]:
    yield from on_path("postgres")
    try:
        asked = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True)
    except OSError:
        asked = None
    if asked is not None and asked.stdout.strip():
        yield Path(asked.stdout.strip())
    packaged = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    yield from sorted(packaged, key=_version, reverse=True)


def _version(folder: Path) -> float:
    return float((re.findall(r"\d+(?:\.\d+)?", str(folder)) or ["0"])[0])


class PostgresServer:
    """A private PostgreSQL on a free port of 127.0.0.1, in a temporary folder.

    `with PostgresServer() as server:` starts it and leaves nothing behind at the end, even if this
    process is killed. Under root it runs as the user postgres, or nobody. Every user of this
    machine may connect. `durable=False` is faster and keeps nothing through a crash of the machine.
    Text is ordered as in English, not by bytes, if the build allows: as on most servers. Every
    method blocks until it is done; in a coroutine use `asyncio.to_thread`.
    """

    def __init__(
        self,
        *,
        durable: bool = True,
        max_connections: int = 100,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
    ) -> None:
        own = OURS.intersection(settings or ())
        if own:
            raise UsageError(f"settings: {', '.join(sorted(own))} cannot be set; the server does")
        self._settings = {
            **KEPT,
            **({} if durable else QUICK),
            "max_connections": str(max_connections),
            **(settings or {}),
        }
        self._binaries = binaries
        self._programs: dict[str, Path] = {}
        self._place: PrivateFolder | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._closed = False

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # State

    @property
    def url(self) -> str:
        """The URL of the database `poolhand`, the same through every restart."""
        return self._url_of(USER)

    @property
    def folder(self) -> Path:
        """The folder of the server: it contains `data`, the socket and `log`."""
        return self._here.path

    @property
    def port(self) -> int:
        """The port on 127.0.0.1, the same through every restart."""
        if not self._port:
            raise ServerFailed(NOT_THERE)
        return self._port

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended; a paused server counts as running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of its first process."""
        if self._process is None or not self.running:
            raise ServerFailed("PostgreSQL does not run; start() it")
        return self._process.pid

    @property
    def log(self) -> str:
        """The complete text of its log, including all restarts."""
        return self._log_file.read_text(errors="replace")

    # Life cycle

    def start(self) -> None:
        """Start it unless it runs; a server that ran before keeps its data."""
        if self.running:
            return
        if self._closed:
            raise UsageError("a server that was closed has lost its data; make a new one")
        if self._place is not None:
            self._place.kill()
            wait_until(f"port {self._port} is free again", self._launch, PORT_SECONDS)
            return
        self._programs = find_postgres(self._binaries)
        self._place = PrivateFolder("poolhand-pg-", "postgres")
        try:
            self._begin()
        except BaseException:
            self._discard()
            raise

    def stop(self, mode: Mode = "fast", limit: float = PATIENCE) -> None:
        """Stop it: disconnect its clients (fast), wait for them (smart), or at once (immediate).

        An immediate stop is a crash for its data, which the next start recovers.
        """
        if mode not in get_args(Mode):
            raise UsageError(f"mode: {mode!r} is none of {', '.join(get_args(Mode))}")
        if self._process is None or not self.running:
            return
        numbers = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
        self._process.send_signal(numbers[mode])
        self.resume()
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            raise ServerFailed(
                f"PostgreSQL has not ended {limit:g} s after a {mode} stop. {self._last_words()}"
            ) from None

    def kill(self) -> None:
        """Kill all its processes, like a crash of its machine; start() recovers the data."""
        # Find them all while they live: a process that sees its parent dead ends unnoticed.
        self._here.kill()
        self._reap()

    def restart(self, mode: Mode = "fast") -> None:
        """Stop it and start it again on the same port and data."""
        self.stop(mode)
        self.start()

    def pause(self) -> None:
        """Stop all its processes by SIGSTOP: connections stay open, but get no answer."""
        caretaker.signal_process(self.pid, signal.SIGSTOP)
        wait_until("PostgreSQL stands still", self._here.hold)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._here.signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop it and remove its folder; it cannot be started again."""
        self._closed = True
        self._discard()

    # Databases

    def database(self, name: str | None = None) -> str:
        """Create an empty database and return its URL."""
        name = f"test_{secrets.token_hex(6)}" if name is None else name
        self.query(f"CREATE DATABASE {_quoted(name)}")
        return self._url_of(name)

    def drop(self, url: str) -> None:
        """Drop a database, even if clients are connected."""
        self.query(f"DROP DATABASE {_quoted(_name_in(url))} WITH (FORCE)")

    def query(self, sql: str, url: str | None = None) -> str:
        """Run a statement as superuser; rows are lines, columns are separated by `|`."""
        name = "postgres" if url is None else _name_in(url)
        options = ("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1")
        where = ("-h", self.folder, "-p", str(self._port), "-U", USER, "-d", name)
        try:
            done = subprocess.run(
                [self._programs["psql"], *options, *where, "-c", sql],
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"no answer within {PATIENCE:g} s to: {sql}") from None
        if done.returncode:
            raise ServerFailed(f"{done.stderr.strip()} (in: {sql})")
        return done.stdout.rstrip("\n")

    # Inside

    @property
    def _here(self) -> PrivateFolder:
        if self._place is None:
            raise ServerFailed(NOT_THERE)
        return self._place

    def _url_of(self, name: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{quote(name, safe='')}"

    def _begin(self) -> None:
        self._make_data()
        for _ in range(PORT_TRIES):
            self._port = free_port()
            if self._launch():
                self.query(f"CREATE DATABASE {USER}")
                return
        raise ServerFailed(f"{PORT_TRIES} ports were free and then taken; try again")

    def _make_data(self) -> None:
        plain = (
            *(self._programs["initdb"], "-D", self.folder / "data", "-U", USER, "-E", "UTF8"),
            *("--auth=trust", "--locale=C", "--no-sync"),
        )
        try:
            self._here.run((*plain, "--locale-provider=icu", "--icu-locale=en-US"))
        except ServerFailed:
            # PostgreSQL is older than 15, or built without ICU.
            self._here.run(plain)
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            for name, value in self._settings.items():
                escaped = value.replace("\\", "\\\\").replace("'", "''")
                file.write(f"{name} = '{escaped}'\n")

    def _discard(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.clear()
        self._reap()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _launch(self) -> bool:
        """Start it and wait until it accepts connections; return False if its port is taken."""
        # No server runs here: the processes they name are gone, and their ids may be reused.
        for lock in (self._lock_file, self.folder / f".s.PGSQL.{self._port}.lock"):
            lock.unlink(missing_ok=True)
        where = ("-p", str(self._port), "-h", "127.0.0.1", "-k", self.folder)
        mark = f"cluster_name={self.folder.name}"
        with self._log_file.open("ab") as log:
            before = log.tell()
            self._process = self._here.start(
                [self._programs["postgres"], "-D", self.folder / "data", *where, "-c", mark], log
            )
        wait_until("PostgreSQL accepts connections", self._answers_or_ended, then=self._last_words)
        if self.running:
            return True
        if b"could not bind" in self._log_file.read_bytes()[before:]:
            return False
        raise ServerFailed(f"PostgreSQL does not start. {self._last_words()}")

    @property
    def _lock_file(self) -> Path:
        return self.folder / "data" / "postmaster.pid"

    @property
    def _log_file(self) -> Path:
        return self.folder / "log"

    def _answers_or_ended(self) -> bool:
        try:
            lines = self._lock_file.read_text().splitlines()
        except OSError:
            lines = []
        # The eighth line is written last, and again with every change.
        return not self.running or [line.strip() for line in lines[7:]] == ["ready"]

    def _last_words(self) -> str:
        return "Its log ends with:\n" + "\n".join(self.log.splitlines()[-10:])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _name_in(url: str) -> str:
    return unquote(urlsplit(url).path.removeprefix("/"))
