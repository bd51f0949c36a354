"""A private PostgreSQL follows its methods, and leaves nothing behind however its owner ends."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import msgspec
import pytest

import poolhand
from poolhand.errors import UsageError
from tests.private_servers.postgres_server import Mode, PostgresServer
from tests.private_servers.programs import ServerFailed, free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.full]

# What an interpreter needs to find poolhand, also one of another environment.
ENVIRONMENT = {
    "PATH": os.defpath,
    "PYTHONPATH": os.pathsep.join(
        [
            str(Path(__file__).parents[3]),
            *(str(Path(module.__file__ or "").parents[1]) for module in (poolhand, msgspec)),
        ]
    ),
}
LIMIT = 30.0
# Errors of a client whose server ends, depending on the moment.
LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


def family(pid: int) -> list[int]:
    """Find a process and its children by parent ids; a server finds its own in another way."""
    return [pid, *(number for number, (parent, _) in processes().items() if parent == pid)]


def processes() -> dict[int, tuple[int, str]]:
    """Return the parent and the state of every process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        found[int(folder.name)] = (int(parent), state)
    return found


def user_of(pid: int) -> int:
    (line,) = (
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("Uid:")
    )
    return int(line.split()[1])


def living(pids: list[int]) -> list[int]:
    now = processes()
    return [pid for pid in pids if pid in now and now[pid][1] not in "ZX"]


def segments(folder: Path) -> list[str]:
    """Return the shared memory whose key is the inode of a data folder."""
    inode = os.stat(folder / "data").st_ino & 0xFFFFFFFF
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [line for line in lines if int(line.split()[0]) & 0xFFFFFFFF == inode]


@pytest.fixture(scope="module")
def patient(postgres_binaries: Path) -> Iterator[PostgresServer]:
    with PostgresServer(binaries=postgres_binaries) as server:
        yield server


@pytest.fixture
def server(patient: PostgresServer) -> PostgresServer:
    """Return a running server that tests share and may do anything to."""
    patient.resume()
    patient.start()
    return patient


# What it is


def test_a_server_serves_its_url_and_leaves_nothing_behind(postgres_binaries: Path) -> None:
    with PostgresServer(binaries=postgres_binaries) as server:

        async def connect() -> tuple[str, str]:
            connection = await asyncpg.connect(server.url)
            try:
                return await connection.fetchval(
                    "SELECT current_database()"
                ), await connection.fetchval("SHOW fsync")
            finally:
                await connection.close()

        assert asyncio.run(connect()) == ("poolhand", "on")
        assert server.url == f"postgresql://poolhand@127.0.0.1:{server.port}/poolhand"
        assert "ready to accept connections" in server.log
        folder, pids = server.folder, family(server.pid)
        assert len(pids) > 3
        assert segments(folder)
        key = os.stat(folder / "data").st_ino
    assert not living(pids)
    assert not folder.exists()
    assert str(key) not in Path("/proc/sysvipc/shm").read_text().split()
    with pytest.raises(UsageError, match="closed"):
        server.start()


def test_settings_reach_the_server_unchanged(postgres_binaries: Path) -> None:
    odd = r"it's a \ b"
    with PostgresServer(
        durable=False,
        max_connections=17,
        settings={"application_name": odd, "work_mem": "5MB"},
        binaries=postgres_binaries,
    ) as server:
        names = ("fsync", "synchronous_commit", "full_page_writes", "max_connections", "work_mem")
        shown = [server.query(f"SHOW {name}") for name in names]
        assert shown == ["off", "off", "off", "17", "5MB"]
        # psql has a name of its own.
        assert server.query("RESET application_name; SHOW application_name") == "psql"
        value = "SELECT setting FROM pg_file_settings WHERE name = 'application_name'"
        assert server.query(value) == odd


def test_an_invalid_setting_is_reported_with_the_message_of_the_server(
    postgres_binaries: Path,
) -> None:
    server = PostgresServer(settings={"work_mem": "much"}, binaries=postgres_binaries)
    with pytest.raises(ServerFailed, match="does not start") as caught:
        server.start()
    assert 'invalid value for parameter "work_mem": "much"' in str(caught.value)
    with pytest.raises(ServerFailed):
        _ = server.folder


def test_every_database_is_new_and_empty_and_dropped_despite_connections(
    postgres: PostgresServer,
) -> None:
    first, second = postgres.database(), postgres.database('odd "name" /?#%41 é')
    assert first != second
    postgres.query("CREATE TABLE mine (n int)", first)
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert [postgres.query(tables, url) for url in (first, second)] == ["1", "0"]

    async def drop_under_a_client(url: str) -> None:
        client = await asyncpg.connect(url)
        try:
            await asyncio.to_thread(postgres.drop, url)
            with pytest.raises(LOST):
                await client.fetchval("SELECT 1")
        finally:
            await client.close()

    for url in (first, second):
        asyncio.run(drop_under_a_client(url))
        with pytest.raises(ServerFailed, match="does not exist"):
            postgres.query("SELECT 1", url)


def test_text_is_not_ordered_by_bytes(database: str, postgres: PostgresServer) -> None:
    if int(postgres.query("SHOW server_version_num")) < 150_000:
        pytest.skip("before 15 a server cannot be told to order text by ICU")
    assert postgres.query("SELECT 'a' < 'B'", database) == "t"


def test_a_wrong_statement_is_reported_with_its_text(postgres: PostgresServer) -> None:
    with pytest.raises(ServerFailed, match=r"syntax error(.|\n)*\(in: SELEC 1\)"):
        postgres.query("SELEC 1")


# Stopping, killing, holding


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
def test_committed_data_is_there_after_a_restart_on_the_same_url(
    server: PostgresServer, mode: Mode
) -> None:
    url, pid, told = server.database(), server.pid, len(server.log)
    server.query("CREATE TABLE kept AS SELECT 7 AS n", url)
    server.restart(mode)
    assert server.pid != pid
    assert str(server.port) in url
    assert server.query("SELECT n FROM kept", url) == "7"
    recovered = "not properly shut down" in server.log[told:]
    assert recovered is (mode == "immediate")


def test_a_killed_server_exits_at_once_and_restarts_with_all_committed_data(
    server: PostgresServer,
) -> None:
    url = server.database()
    server.query("CREATE TABLE kept (n int)", url)

    async def write_until_it_dies() -> int:
        client, written = await asyncpg.connect(url), 0
        killing = None
        try:
            while True:
                await client.execute("INSERT INTO kept VALUES ($1)", written)
                written += 1
                if written == 20:
                    killing = asyncio.create_task(asyncio.to_thread(server.kill))
        except LOST:
            assert killing is not None
            await killing
            return written
        finally:
            client.terminate()

    for _ in range(3):
        pids = family(server.pid)
        server.query("TRUNCATE kept", url)
        written = asyncio.run(write_until_it_dies())
        assert not living(pids)
        assert not server.running
        with pytest.raises(ServerFailed, match="does not run"):
            _ = server.pid
        server.start()
        assert int(server.query("SELECT count(*) FROM kept", url)) >= written >= 20
    assert len(segments(server.folder)) == 1


def test_a_server_killed_by_another_process_can_be_started_again(server: PostgresServer) -> None:
    url = server.database()
    server.query("CREATE TABLE kept AS SELECT 7 AS n", url)
    pids = family(server.pid)
    # Paused children cannot see that their parent is gone, and keep its memory.
    server.pause()
    os.kill(server.pid, signal.SIGKILL)
    wait_until("it is seen to have ended", lambda: not server.running, LIMIT)
    assert living(pids)
    server.start()
    assert not living(pids)
    assert server.query("SELECT n FROM kept", url) == "7"


def test_a_paused_server_keeps_its_clients_and_answers_after_it_is_resumed(
    server: PostgresServer,
) -> None:
    async def ask_while_it_stands_still() -> tuple[str, int]:
        client = await asyncpg.connect(server.url)
        try:
            await asyncio.to_thread(server.pause)
            pids = family(server.pid)
            states = [processes()[pid][1] for pid in pids]
            assert states.count("T") > 4
            # A process that had just ended is a zombie until its parent waits for it.
            assert set(states) <= {"T", "Z"}
            asked = asyncio.create_task(client.fetchval("SELECT 7"))
            await asyncio.sleep(0)
            assert server.running
            await asyncio.to_thread(server.resume)
            return "answered", await asked
        finally:
            await client.close()

    assert asyncio.run(ask_while_it_stands_still()) == ("answered", 7)


def test_a_stale_lock_with_a_foreign_pid_does_not_prevent_a_start(
    server: PostgresServer, postgres: PostgresServer
) -> None:
    server.kill()
    lock = server.folder / "data" / "postmaster.pid"
    _, *rest = lock.read_text().splitlines()
    lock.write_text("\n".join([str(postgres.pid), *rest]))
    server.start()
    assert server.query("SELECT 7", server.url) == "7"


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_paused_server_can_be_ended(server: PostgresServer, end: str) -> None:
    pids = family(server.pid)
    server.pause()
    getattr(server, end)()
    assert not living(pids)


def test_a_smart_stop_waits_for_clients_for_a_limited_time(server: PostgresServer) -> None:
    async def stop_beside_a_client() -> None:
        client = await asyncpg.connect(server.url)
        try:
            with pytest.raises(ServerFailed, match=r"not ended 0\.1 s after a smart stop"):
                await asyncio.to_thread(server.stop, "smart", 0.1)
        finally:
            await client.close()

    asyncio.run(stop_beside_a_client())
    server.stop("smart")
    assert not server.running


def test_repeated_start_stop_and_kill_do_nothing(server: PostgresServer) -> None:
    pid = server.pid
    server.start()
    assert server.pid == pid
    server.stop()
    server.stop()
    server.kill()
    server.start()
    assert server.query("SELECT 7", server.url) == "7"


def test_a_paused_server_can_be_closed_and_that_again(own_postgres: PostgresServer) -> None:
    pids = family(own_postgres.pid)
    own_postgres.pause()
    own_postgres.close()
    assert not living(pids)
    own_postgres.close()


def test_an_unknown_stop_mode_is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(UsageError, match="mode: 'soon' is none of smart, fast, immediate"):
        postgres.stop("soon")  # type: ignore[arg-type]


def test_killing_one_server_leaves_the_others(
    server: PostgresServer, postgres: PostgresServer
) -> None:
    server.kill()
    assert postgres.query("SELECT 7") == "7"


# Ports


@contextmanager
def taken(port: int) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", port)) as listener:
        yield listener


def test_a_new_server_takes_another_port_when_its_own_was_just_taken(
    postgres_binaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with taken(0) as listener:
        port: int = listener.getsockname()[1]
        ports = iter([port, port, free_port()])
        # Free when it was chosen, and taken a moment later.
        monkeypatch.setattr("tests.private_servers.postgres_server.free_port", lambda: next(ports))
        with PostgresServer(binaries=postgres_binaries) as server:
            assert server.port != port
            assert server.query("SELECT 7", server.url) == "7"
    assert not list(ports)


def test_a_server_waits_for_its_own_port_to_be_free_again(server: PostgresServer) -> None:
    url = server.url
    server.stop()
    before = server.log.count("could not bind")
    with taken(server.port):
        starting = threading.Thread(target=server.start)
        starting.start()
        wait_until("it has tried", lambda: server.log.count("could not bind") > before, LIMIT)
    starting.join()
    assert server.query("SELECT 7", url) == "7"


def test_a_port_that_stays_taken_is_named(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.private_servers.postgres_server.PORT_SECONDS", 0.1)
    server.stop()
    with (
        taken(server.port),
        pytest.raises(ServerFailed, match=f"in vain until port {server.port} is free"),
    ):
        server.start()


# Owners

OWNER = """
import os, signal, sys, threading
from pathlib import Path
from tests.private_servers.postgres_server import PostgresServer

server = PostgresServer(durable=False, binaries=Path(sys.argv[1]))
starting = threading.Thread(target=server.start)
starting.start()
starting.join()
"""
TELL = """
print(server.pid, server.folder, flush=True)
"""
WAIT = "sys.stdin.read()\n"
FORK = "os.fork() or sys.stdin.read()\n"


class Owner:
    """A process that starts a server, in a thread that ends, and prints its place."""

    def __init__(
        self, binaries: Path, code: str, user: int | None = None, python: str = sys.executable
    ) -> None:
        self.process = subprocess.Popen(
            [python, "-c", OWNER + code, str(binaries)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=ENVIRONMENT,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            start_new_session=True,
        )
        assert self.process.stdout is not None
        pid, folder = self.process.stdout.readline().split()
        self.folder = Path(folder)
        self.server = int(pid)
        self.pids = family(self.server)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def expect_nothing_left(owner: Owner, segment: str) -> None:
    wait_until("its server is gone", lambda: not living(owner.pids), LIMIT)
    wait_until("its folder is gone", lambda: not owner.folder.exists(), LIMIT)
    assert segment not in Path("/proc/sysvipc/shm").read_text()


@pytest.mark.parametrize(
    "code",
    [
        TELL + WAIT,
        TELL + FORK + WAIT,
        TELL + "server.pause()\n" + WAIT,
        TELL + "server.kill()\n" + WAIT,
        TELL + "os.kill(server.pid, signal.SIGKILL)\n" + WAIT,
    ],
    ids=["running", "with a fork", "paused", "after a kill", "orphaned"],
)
def test_nothing_is_left_when_its_owner_is_killed(postgres_binaries: Path, code: str) -> None:
    owner = Owner(postgres_binaries, code)
    try:
        (segment,) = segments(owner.folder) or [""]
        os.kill(owner.process.pid, signal.SIGKILL)
        owner.process.wait()
        expect_nothing_left(owner, segment)
    finally:
        owner.end()


def test_nothing_is_left_when_the_owning_process_does_not_close_it(postgres_binaries: Path) -> None:
    owner = Owner(postgres_binaries, TELL)
    try:
        assert owner.process.wait(LIMIT) == 0
        expect_nothing_left(owner, "nothing of it")
    finally:
        owner.end()


def test_a_server_has_its_own_process_group_and_session(server: PostgresServer) -> None:
    """Ctrl-C goes to the whole process group, and would be a fast stop."""
    assert os.getpgid(0) != os.getpgid(server.pid)
    assert os.getsid(0) != os.getsid(server.pid)


def test_a_server_never_runs_as_root(server: PostgresServer) -> None:
    user = user_of(server.pid)
    assert user != 0
    assert user == os.stat(server.folder).st_uid
    assert os.geteuid() in {0, user}


def python_for(user: int) -> str:
    """Return an interpreter like this one that another user can run."""
    mine, packaged = sys.executable, "/usr/bin/python{}.{}".format(*sys.version_info)
    for python in (mine, packaged):
        probe = [python, "-c", "import tests.private_servers.postgres_server"]
        try:
            subprocess.run(
                probe, env=ENVIRONMENT, cwd="/", user=user, group=user, extra_groups=[], check=True
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    pytest.skip("no interpreter of this version lies where other users may look")


def test_a_server_can_be_run_by_an_unprivileged_user(postgres_binaries: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("every other test of this run shows it")
    user = pwd.getpwnam("nobody").pw_uid
    owner = Owner(postgres_binaries, TELL + WAIT, user, python_for(user))
    try:
        assert user_of(owner.server) == user
        os.kill(owner.process.pid, signal.SIGKILL)
        expect_nothing_left(owner, "nothing of it")
    finally:
        owner.end()
