"""Hints between all processes on a PostgreSQL store: LISTEN on a connection, and NOTIFY.

They are sent on their own after the change is committed: inside a transaction NOTIFY would make all
commits of a server queue behind each other. Through a pooler a process can send but not listen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any
from zlib import crc32

from poolhand.contract import Hint
from poolhand.runtime import Runtime
from poolhand.stores.postgres.connections import Address, connect, sever
from poolhand.stores.postgres.tables import RawConnection

AGAIN_FIRST, AGAIN_MOST = 0.1, 5.0
OPEN_SECONDS = 3.0  # after which a store is open even if it does not listen yet
APART = 0.01  # seconds between two messages; topics in between are sent together
PING_EVERY = 10.0
PING_SECONDS = 5.0
# A message is delivered at its commit; waiting until it is durable is needless.
AT_ONCE = "SET synchronous_commit = off"
LONGEST = 7000  # bytes in a message; the server allows some more
# Topics that may have been missed while not listening.
ANYTHING = ("ready", "over", "entered", "wish", "due")


class PostgresSignals:
    """Publishes topics to its own subscribers and to all processes that listen on the schema."""

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
        """Listen on the running loop; before this returns, if the server answers soon."""
        if self._loop is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        listening = asyncio.Event()
        self._task = self._loop.create_task(self._run(listening), name="poolhand-signals")
        with suppress(TimeoutError):
            async with asyncio.timeout(OPEN_SECONDS):
                await listening.wait()
        # A connection that listens only later has missed hints.
        listening.set()

    async def close(self) -> None:
        """Stop sending and receiving."""
        task, self._task, self._loop = self._task, None, None
        self._due, self._out = {}, {}
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        """Call `hint` on the loop for every topic; return a function that ends that."""
        place = object()
        self._hints[place] = hint

        def end() -> None:
            self._hints.pop(place, None)

        return end

    def publish(self, topic: str) -> None:
        """Publish a topic to all processes; those of one loop iteration are sent together."""
        if self._loop is None or self._loop.is_closed():
            return
        if not self._due:
            self._loop.call_soon(self._deliver)
        self._due[topic] = None

    def _deliver(self) -> None:
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
        """Stay connected: reconnect whenever the connection breaks."""
        pause = AGAIN_FIRST
        while True:
            # Polling suffices without hints, and every verb reports an unreachable server.
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

    async def _begin(self, connection: RawConnection, listening: asyncio.Event) -> None:
        """Listen; if hints may have been missed before, emit all topics."""
        connection.add_termination_listener(lambda *_: self._wake.set())
        if self._can_hear:
            async with asyncio.timeout(PING_SECONDS):
                await connection.add_listener(self.channel, self._hear)
                await connection.fetch(AT_ONCE)
        if listening.is_set():
            self._hint(ANYTHING)
        listening.set()

    async def _go_on(self, connection: Any) -> None:
        """Send and receive while the connection lives."""
        while not connection.is_closed():
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_EVERY):
                    await self._wake.wait()
            self._wake.clear()
            topics, self._out = self._out, {}
            async with asyncio.timeout(PING_SECONDS):
                await self._send(connection, topics)
            await asyncio.sleep(APART)

    async def _send(self, connection: RawConnection, topics: Iterable[str]) -> None:
        if not topics:
            await connection.fetch("SELECT 1")
        for message in self._messages(topics):
            await connection.fetch("SELECT pg_notify($1, $2)", self.channel, message)

    def _messages(self, topics: Iterable[str]) -> Iterator[str]:
        """Yield topics in as many messages as needed; skip a topic too long for any."""
        message = self._name
        for topic in topics:
            # A topic that cannot be encoded is sent altered, rather than not at all.
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
