"""Hints on one file, between objects that each stand for a process."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from poolhand.stores.sqlite.wake import Wake, folder_of
from poolhand.testing.seeded import SeededRuntime, run_seeded


class Ear:
    """Records topics, and lets a test wait for one."""

    def __init__(self, wake: Wake) -> None:
        self.heard: list[str] = []
        self._news = asyncio.Event()
        self.end = wake.subscribe(self._hear)

    def _hear(self, topic: str) -> None:
        self.heard.append(topic)
        self._news.set()

    async def until(self, topic: str) -> None:
        async with asyncio.timeout(30):
            while topic not in self.heard:
                self._news.clear()
                await self._news.wait()


def touch(path: str) -> None:
    Path(path).touch()


def exists(path: str) -> bool:
    return os.path.exists(path)


@asynccontextmanager
async def awake(path: str, *names: str) -> AsyncIterator[list[Wake]]:
    wakes = [Wake(path, name) for name in names]
    for wake in wakes:
        wake.open()
    try:
        yield wakes
    finally:
        for wake in wakes:
            wake.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    # Short, whatever the name of the test.
    return os.path.join(tempfile.mkdtemp(dir=tmp_path.parent), "a.db")


async def test_a_topic_reaches_every_process_including_the_publisher(path: str) -> None:
    async with awake(path, "one", "two", "three") as wakes:
        ears = [Ear(wake) for wake in wakes]
        wakes[0].publish(["ready"])
        for ear in ears:
            await ear.until("ready")
        assert ears[0].heard == ["ready"], "no echo"


async def test_own_subscribers_are_called_later_on_the_loop(path: str) -> None:
    async with awake(path, "one") as (wake,):
        ear = Ear(wake)
        wake.publish(["ready"])
        assert ear.heard == []
        await ear.until("ready")


async def test_topics_of_one_loop_iteration_are_sent_together_each_once(path: str) -> None:
    async with awake(path, "one") as (wake,):
        other = bound(path, "other")
        wake.publish(["ready"])
        wake.publish(["over", "ready"])
        await Ear(wake).until("ready")
        assert other.recv(4096).split(b"\n") == [b"ready", b"over"]
        with pytest.raises(BlockingIOError):
            other.recv(4096)
        other.close()


def bound(path: str, name: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.bind(os.path.join(folder_of(path), name))
    return made


async def test_the_socket_of_a_dead_process_is_removed(path: str) -> None:
    async with awake(path, "one", "two") as (one, two):
        bound(path, "dead").close()
        ear = Ear(two)
        one.publish(["ready"])
        await ear.until("ready")
        assert sorted(os.listdir(folder_of(path))) == ["one", "two"]


async def test_a_process_that_does_not_read_its_socket_blocks_no_other(path: str) -> None:
    async with awake(path, "one", "two") as (one, two):
        deaf = bound(path, "deaf")
        ear = Ear(two)
        for number in range(2000):
            one.publish([f"n{number}"])
            if number % 50 == 0:
                await ear.until(f"n{number}")
            await asyncio.sleep(0)
        one.publish(["last"])
        await ear.until("last")
        assert "deaf" in os.listdir(folder_of(path))
        deaf.close()


async def test_an_unsubscribed_function_gets_no_more_topics(path: str) -> None:
    async with awake(path, "one") as (wake,):
        gone, here = Ear(wake), Ear(wake)
        gone.end()
        gone.end()
        wake.publish(["ready"])
        await here.until("ready")
        assert gone.heard == []


async def test_a_subscriber_that_raises_does_not_affect_the_others(path: str) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with awake(path, "one") as (wake,):
        wake.subscribe(lambda topic: dict[str, None]().pop(topic))
        ear = Ear(wake)
        wake.publish(["ready", "over"])
        await ear.until("over")
    assert [type(context["exception"]) for context in told] == [KeyError, KeyError]


async def test_pending_topics_are_sent_before_the_close_and_nothing_is_left(path: str) -> None:
    async with awake(path, "two") as (two,):
        one = Wake(path, "one")
        one.open()
        ear = Ear(two)
        one.publish(["over"])
        one.close()
        one.close()
        one.publish(["never"])
        await ear.until("over")
        assert os.listdir(folder_of(path)) == ["two"]
    assert not exists(folder_of(path))


async def test_random_bytes_on_the_socket_are_no_harm(path: str) -> None:
    async with awake(path, "one", "two") as (one, two):
        ear = Ear(one)
        noise = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for datagram in (b"", b"\n\n", b"\xff\xfe\x00", b"x" * 9000):
            noise.sendto(datagram, os.path.join(folder_of(path), "one"))
        noise.close()
        two.publish(["ready"])
        await ear.until("ready")


async def test_a_long_path_has_its_sockets_in_the_temporary_folder(tmp_path: Path) -> None:
    path = str(tmp_path / ("long" * 30) / "a.db")
    folder = folder_of(path)
    assert os.path.dirname(folder) == tempfile.gettempdir()
    assert folder == folder_of(path) != folder_of(path + "x")
    async with awake(path, "one", "two") as (one, two):
        ear = Ear(two)
        one.publish(["ready"])
        await ear.until("ready")
    assert not exists(folder)


async def test_without_a_socket_a_process_still_gets_its_own_topics(path: str) -> None:
    touch(folder_of(path))
    async with awake(path, "one") as (wake,):
        ear = Ear(wake)
        wake.publish(["ready"])
        await ear.until("ready")


async def test_without_a_free_descriptor_a_process_still_gets_its_own_topics(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", none_left)
    async with awake(path, "one") as (wake,):
        ear = Ear(wake)
        wake.publish(["ready"])
        await ear.until("ready")


def test_on_a_loop_without_sockets_a_process_still_gets_its_own_topics(path: str) -> None:
    async def main(runtime: SeededRuntime) -> list[str]:
        async with awake(path, "one") as (wake,):
            ear = Ear(wake)
            wake.publish(["ready"])
            await ear.until("ready")
            return ear.heard

    assert run_seeded(main, seed=1) == ["ready"]
    assert not os.path.exists(folder_of(path))
