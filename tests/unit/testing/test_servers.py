"""Building blocks of test servers: programs, ports, folders that end with their owner."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from poolhand.errors import UsageError
from tests.private_servers.caretaker import processes_of
from tests.private_servers.postgres_server import PostgresServer, find_postgres
from tests.private_servers.programs import (
    PrivateFolder,
    ServerFailed,
    ServerMissing,
    find_programs,
    free_port,
    wait_until,
)

HOW = "apt-get install thing"
GONE = os.WEXITED | os.WNOHANG | os.WNOWAIT


def plant(folder: Path, *programs: str) -> Path:
    folder.mkdir(parents=True)
    for name in programs:
        (folder / name).touch(0o755)
    return folder


# Programs


def test_programs_come_from_the_first_folder_that_has_them_all(tmp_path: Path) -> None:
    some = plant(tmp_path / "some", "a")
    every = plant(tmp_path / "every", "a", "b")
    plant(tmp_path / "later", "a", "b")
    found = find_programs("Thing", ("a", "b"), [some, every, tmp_path / "later"], HOW)
    assert found == {"a": every / "a", "b": every / "b"}


def test_the_error_names_exactly_the_programs_that_are_missing(tmp_path: Path) -> None:
    some = plant(tmp_path / "some", "a", "c")
    with pytest.raises(ServerMissing) as caught:
        find_programs("Thing", ("a", "b", "c"), [tmp_path / "none", some], HOW)
    assert caught.value.missing == ("b",)
    assert str(caught.value) == (
        f"Thing is not installed: no b in {tmp_path / 'none'}, {some}; install it with: {HOW}"
    )


def test_a_file_that_is_not_executable_is_not_a_program(tmp_path: Path) -> None:
    folder = plant(tmp_path / "bin", "a")
    (folder / "a").chmod(0o644)
    with pytest.raises(ServerMissing, match="no a in"):
        find_programs("Thing", ("a",), [folder], HOW)


def test_postgres_is_searched_only_in_the_named_folder(tmp_path: Path) -> None:
    folder = plant(tmp_path / "bin", "psql")
    with pytest.raises(ServerMissing, match=r"no initdb, postgres in .*apt-get install postgresql"):
        find_postgres(folder)
    with pytest.raises(ServerMissing), PostgresServer(binaries=folder):
        raise AssertionError


def test_postgres_on_the_path_is_found_where_it_really_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = plant(tmp_path / "real", "initdb", "postgres", "psql")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "postgres").symlink_to(real / "postgres")
    monkeypatch.setenv("PATH", str(tmp_path / "linked"))
    assert find_postgres()["psql"] == real / "psql"


def test_postgres_off_the_path_is_found_by_pg_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = plant(tmp_path / "real", "initdb", "postgres", "psql")
    asked = plant(tmp_path / "bin", "pg_config") / "pg_config"
    asked.write_text(f'#!/bin/sh\n[ "$1" = --bindir ] && echo {real}\n')
    monkeypatch.setenv("PATH", str(asked.parent))
    assert find_postgres()["initdb"] == real / "initdb"


# Options


@pytest.mark.parametrize("name", ["port", "cluster_name", "listen_addresses"])
def test_settings_reserved_for_the_server_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"settings: {name} cannot be set"):
        PostgresServer(settings={name: "1"})


@pytest.mark.parametrize("what", ["url", "port", "pid", "folder", "log"])
def test_a_server_that_was_never_started_raises(what: str) -> None:
    with pytest.raises(ServerFailed, match="start"):
        getattr(PostgresServer(), what)


def test_a_server_that_was_never_started_can_be_closed_and_then_not_started() -> None:
    server = PostgresServer()
    server.close()
    with pytest.raises(UsageError, match="closed"):
        server.start()


# Ports


def test_a_free_port_is_outside_of_the_ephemeral_range() -> None:
    ports = {free_port() for _ in range(50)}
    assert max(ports) < 32_768
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert listener.getsockname()[1] not in ports


def test_free_ports_do_not_follow_the_seed_of_a_test() -> None:
    def draw() -> list[int]:
        random.seed(1)
        return [free_port() for _ in range(5)]

    assert draw() != draw()


def test_a_wait_that_times_out_names_its_condition() -> None:
    with pytest.raises(ServerFailed, match=r"in vain until pigs fly. They cannot."):
        wait_until("pigs fly", lambda: False, limit=0.01, then=lambda: "They cannot.")


# Folders


@pytest.mark.slow
def test_clearing_a_folder_ends_the_processes_started_from_it() -> None:
    folder, other = (PrivateFolder("poolhand-thing-", "sleep") for _ in range(2))
    process = subprocess.Popen([f"{folder.path}/sleep", "600"], executable="/bin/sleep")
    neighbour = subprocess.Popen([f"{other.path}/sleep", "600"], executable="/bin/sleep")
    try:
        wait_until("it runs", lambda: folder.processes() == [process.pid], limit=30)
        folder.clear()
        assert process.wait(30) != 0
        assert not folder.path.exists()
        assert processes_of(other.path, "sleep") == [neighbour.pid]
    finally:
        other.clear()
        neighbour.wait(30)
        process.kill()


@pytest.mark.slow
def test_a_kill_returns_when_the_last_process_has_exited() -> None:
    folder = PrivateFolder("poolhand-thing-", "sleep")
    crowd = [
        subprocess.Popen([f"{folder.path}/sleep", "600"], executable="/bin/sleep")
        for _ in range(60)
    ]
    try:
        wait_until("all run", lambda: len(folder.processes()) == len(crowd), limit=30)
        folder.kill()
        assert all(os.waitid(os.P_PID, one.pid, GONE) is not None for one in crowd)
    finally:
        folder.clear()
        for one in crowd:
            one.wait()


@pytest.mark.slow
@pytest.mark.parametrize("why", ["deep", "closed"])
def test_a_private_folder_is_short_enough_for_sockets_and_readable_by_servers(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        os.chmod(made, 0o711 if why == "deep" else 0o700)
        place = Path(made, "d" * 60 if why == "deep" else "")
        place.mkdir(exist_ok=True)
        monkeypatch.setattr("tempfile.tempdir", str(place))
        folder = PrivateFolder("poolhand-thing-", "sleep")
        try:
            # A process that does not switch users may use a closed folder.
            stays = why == "closed" and os.geteuid() != 0
            assert (folder.path.parent == place) is stays
        finally:
            folder.clear()


def test_the_caretaker_imports_nothing_of_ours() -> None:
    probe = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p];"
        "import runpy; runpy.run_path(sys.argv[1]);"
        "print([name for name in sys.modules if name.startswith('poolhand')])"
    )
    from tests.private_servers import caretaker

    said = subprocess.check_output(
        [sys.executable, "-I", "-S", "-c", probe, caretaker.__file__], text=True
    )
    assert said == "[]\n"
