"""Permissions of the files of a store: one user or one group, never everyone."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from poolhand import UsageError
from poolhand.contract import Store
from poolhand.operate.doctor import examine
from poolhand.operate.store_findings import Finding, Level
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of
from poolhand.stores.sqlite.place import Rights
from poolhand.stores.sqlite.wake import Wake, folder_of

FILES = ("", "-wal", "-shm", "-lock", "-lock-turn")
NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a path short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="ph-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@asynccontextmanager
async def in_use(path: Path, query: str = "") -> AsyncIterator[Store]:
    """Return an open store that has written something."""
    store = store_of(f"sqlite:///{path}{query}", Runtime())
    await store.open()
    try:
        await store.check()
        yield store
    finally:
        await store.close()


def mode(path: str | Path) -> str:
    return f"{stat.S_IMODE(os.lstat(path).st_mode):o}"


def modes(path: Path) -> set[str]:
    return {mode(f"{path}{end}") for end in FILES}


def sockets(path: Path) -> list[Path]:
    return list(Path(folder_of(str(path))).iterdir())


@pytest.mark.usefixtures("umask")
async def test_files_of_a_store_are_accessible_to_its_user_only(folder: Path) -> None:
    path = folder / "a.db"
    async with in_use(path):
        assert modes(path) == {"600"}
        assert mode(folder_of(str(path))) == "700"
        assert [mode(one) for one in sockets(path)] == ["600"]


@pytest.mark.usefixtures("umask")
async def test_a_group_may_use_a_store_with_the_permissions_option(folder: Path) -> None:
    path = folder / "a.db"
    async with in_use(path, "?permissions=660"):
        assert modes(path) == {"660"}
        assert mode(folder_of(str(path))) == "770"
        assert [mode(one) for one in sockets(path)] == ["660"]


async def test_an_existing_file_keeps_its_permissions_and_the_doctor_reports_them(
    folder: Path,
) -> None:
    path = folder / "a.db"
    async with in_use(path):
        pass
    path.chmod(0o644)
    async with in_use(path):
        assert mode(path) == mode(f"{path}-wal") == "644"
        assert mode(f"{path}-lock") == "600"
    found = {one.check: one for one in await look(path)}
    assert found["permissions"].level is Level.WARN
    assert "a.db (644)" in found["permissions"].text
    assert f"chmod 600 {path}" in (found["permissions"].fix or "")
    path.chmod(0o660)
    assert {one.check: one.level for one in await look(path)}["permissions"] is Level.WARN
    group = {one.check: one.level for one in await look(path, "?permissions=660")}
    assert group["permissions"] is Level.OK


async def look(path: Path, query: str = "") -> list[Finding]:
    return await examine(store_of(f"sqlite:///{path}{query}", Runtime()), Runtime())


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("mode=ro", "a store is always opened to read and to write (to only look at one, use the"),
        ("permissions=660&mode=ro", "a store is always opened to read and to write"),
        ("cache=shared", "there is no option 'cache'; leave it out"),
        ("permissions=666", "('permissions=666') is not allowed; leave it out"),
        ("permissions=0660", ""),
        ("permissions", ""),
        ("", ""),
        ("Permission=1", "there is no option 'Permission'"),
    ],
)
def test_other_options_are_refused_with_the_allowed_ones(query: str, hint: str) -> None:
    with pytest.raises(UsageError, match="permissions=660 to let a group use") as caught:
        store_of(f"sqlite:///a.db?{query}", Runtime())
    assert hint in str(caught.value)


async def test_a_name_may_have_a_question_mark_in_it(folder: Path) -> None:
    async with in_use(folder / "what?.db"):
        pass
    assert (folder / "what?.db").is_file()
    (folder / "a?b=c").mkdir()
    async with in_use(folder / "a?b=c" / "a.db", "?permissions=660"):
        assert mode(folder / "a?b=c" / "a.db") == "660"


async def test_only_sockets_are_ever_removed_from_the_folder(folder: Path) -> None:
    path = folder / "a.db"
    async with in_use(path) as store:
        wake = Path(folder_of(str(path)))
        (wake / "letter").write_text("mine")
        (wake / "link").symlink_to(folder / "elsewhere")
        dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        dead.bind(str(wake / "dead"))
        dead.close()
        heard = asyncio.Event()
        store.subscribe(lambda topic: heard.set())
        store.publish("word")
        await heard.wait()
        names = {one.name for one in sockets(path)}
        assert {"letter", "link"} <= names
        assert "dead" not in names
    assert (wake / "letter").read_text() == "mine"


async def test_a_symlinked_wake_folder_is_not_used(folder: Path) -> None:
    path, elsewhere = folder / "a.db", folder / "elsewhere"
    os.mkdir(elsewhere)
    wake = folder_of(str(path))
    os.symlink(elsewhere, wake)
    async with in_use(path):
        assert os.listdir(elsewhere) == []
    os.unlink(wake)
    for open_to in (0o777, 0o770):
        os.mkdir(wake)
        os.chmod(wake, open_to)
        async with in_use(path):
            assert sockets(path) == []
        os.rmdir(wake)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for two users")
async def test_a_folder_that_another_user_made_first_is_not_used(folder: Path) -> None:
    path = folder / "a.db"
    wake = folder_of(str(path))
    os.mkdir(wake, 0o700)
    os.chown(wake, NOBODY, NOBODY)
    async with in_use(path):
        assert sockets(path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
async def test_files_that_root_creates_beside_a_user_file_belong_to_that_user(folder: Path) -> None:
    path = folder / "a.db"
    async with in_use(path):
        pass
    os.chown(path, NOBODY, NOBODY)
    for end in ("-lock", "-lock-turn"):
        os.unlink(f"{path}{end}")
    async with in_use(path):
        wake = folder_of(str(path))
        made = [f"{path}{end}" for end in FILES] + [wake, *map(str, sockets(path))]
        assert {os.stat(one).st_uid for one in made} == {NOBODY}


async def test_a_socket_whose_name_is_taken_leaves_the_existing_file(folder: Path) -> None:
    path = str(folder / "a.db")
    assert Rights(path).make_folder(folder_of(path))
    taken = Path(folder_of(path)) / "one"
    taken.write_text("mine")
    wake = Wake(path, "one")
    wake.open()
    wake.close()
    assert taken.read_text() == "mine"
