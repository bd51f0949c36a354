"""Hints between all who share a PostgreSQL store: LISTEN on a connection of its own, and NOTIFY.

They are sent after the change is written, by themselves: inside a transaction they would make all
commits of a server queue behind each other. Through a pooler nobody can listen, but all can tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol
from zlib import crc32

from poolhand.contract import Hint
from poolhand.runtime import Runtime
from poolhand.stores.postgres.server.address import Address
from poolhand.stores.postgres.server.connections import connect, sever

AGAIN_FIRST, AGAIN_MOST = 0.1, 5.0
OPEN_SECONDS = 3.0  # after which a store is open though nobody listens yet
APART = 0.01  # seconds between two messages: what comes in between goes together
PING_EVERY = 10.0
PING_SECONDS = 5.0
# A message is told when it is committed; nobody has to wait until it could not be lost any more.
AT_ONCE = "SET synchronous_commit = off"
LONGEST = 7000  # bytes that a message may have; the server takes some more
# What may have happened while nobody listened.
ANYTHING = ("ready", "over", "entered", "wish", "due")


class NotifyConnection(Protocol):
    """What is used of a connection of asyncpg."""

    async def fetch(self, text: str, *values: Any) -> list[Any]: ...

    async def add_listener(self, channel: str, heard: Callable[..., None]) -> None: ...

    def add_termination_listener(self, ended: Callable[..., None]) -> None: ...


class PostgresSignals:
    """Tells topics to its own subscribers and to everybody who listens on the schema."""

    def __init__(self, address: Address, runtime: Runtime) -> None:
        self._address = address
        self._random = runtime.random
        self._name = runtime.salt()
        self.channel = f"poolhand_{crc32(address.schema.encode()):08x}"
        self._can_hear = not address.pooled or address.listen is not None
        self._hints: dict[object, Hint] = {}
        self._due: dict[str, None] = {}
        self._out: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen, on the running loop; from when this returns on if the server answers soon."""
        if self._loop is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        listening = asyncio.Event()
        self._task = self._loop.create_task(self._run(listening), name="poolhand-signals")
        with suppress(TimeoutError):
            async with asyncio.timeout(OPEN_SECONDS):
                await listening.wait()
        # Who listens later has missed something.
        listening.set()

    async def close(self) -> None:
        """Hear and tell nothing more."""
        task, self._task, self._loop = self._task, None, None
        self._due, self._out = {}, {}
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        """Call `hint` on the loop for every topic told; return what ends that."""
        place = object()
        self._hints[place] = hint

        def end() -> None:
            self._hints.pop(place, None)

        return end

    def publish(self, topic: str) -> None:
        """Tell a topic to everybody, all that come in one turn of the loop together."""
        if self._loop is None or self._loop.is_closed():
            return
        if not self._due:
            self._loop.call_soon(self._tell)
        self._due[topic] = None

    def _tell(self) -> None:
        topics, self._due = self._due, {}
        self._hint(topics)
        if self._task is not None:
            self._out.update(topics)
            self._wake.set()

    def _hint(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for hint in list(self._hints.values()):
                try:
                    hint(topic)
                except Exception as error:
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": f"a subscriber of {topic!r} raised", "exception": error}
                    )

    async def _run(self, listening: asyncio.Event) -> None:
        """Be connected, again and again."""
        pause = AGAIN_FIRST
        while True:
            # The poll is what counts; who cannot reach the server hears it from every verb.
            with suppress(Exception):
                connection: Any = await connect(self._address, self._address.listen)
                try:
                    await self._begin(connection, listening)
                    pause = AGAIN_FIRST
                    await self._go_on(connection)
                finally:
                    sever(connection)
            listening.set()
            await asyncio.sleep(pause * self._random.uniform(0.5, 1.0))
            pause = min(AGAIN_MOST, pause * 2)

    async def _begin(self, connection: NotifyConnection, listening: asyncio.Event) -> None:
        """Listen, and say that anything may have happened where nobody listened before."""
        connection.add_termination_listener(lambda *_: self._wake.set())
        if self._can_hear:
            async with asyncio.timeout(PING_SECONDS):
                await connection.add_listener(self.channel, self._hear)
                await connection.fetch(AT_ONCE)
        if listening.is_set():
            self._hint(ANYTHING)
        listening.set()

    async def _go_on(self, connection: Any) -> None:
        """Hear and tell for as long as the connection lives."""
        while not connection.is_closed():
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_EVERY):
                    await self._wake.wait()
            self._wake.clear()
            topics, self._out = self._out, {}
            async with asyncio.timeout(PING_SECONDS):
                await self._send(connection, topics)
            await asyncio.sleep(APART)

    async def _send(self, connection: NotifyConnection, topics: Iterable[str]) -> None:
        if not topics:
            await connection.fetch("SELECT 1")
        for message in self._messages(topics):
            await connection.fetch("SELECT pg_notify($1, $2)", self.channel, message)

    def _messages(self, topics: Iterable[str]) -> Iterator[str]:
        """Yield topics in as many messages as it takes; one that fits into none goes nowhere."""
        message = self._name
        for topic in topics:
            # What cannot be written is told as something else, rather than not at all.
            writable = topic.replace("\0", "").encode(errors="replace").decode()
            if len(f"{self._name}\n{writable}".encode()) > LONGEST:
                continue
            longer = f"{message}\n{writable}"
            if len(longer.encode()) > LONGEST:
                yield message
                longer = f"{self._name}\n{writable}"
            message = longer
        if message != self._name:
            yield message

    def _hear(self, _connection: object, _pid: int, _channel: str, message: object) -> None:
        sender, *topics = str(message).split("\n")
        if sender != self._name:
            self._hint(dict.fromkeys(filter(None, topics)))
