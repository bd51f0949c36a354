"""A TCP proxy with faults, between the processes under test and a server.

It runs in a thread of the harness, so that it works whatever happens to those processes. Its faults
are plain calls, from any thread but its own; random choices come from a seed.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable, Coroutine
from random import Random
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tests.faults.link import Link
from tests.faults.messages import Way
from tests.private_servers.programs import free_port

T = TypeVar("T")

BOTH = (Way.UP, Way.DOWN)
LIMIT = 10.0  # seconds that a call may take
ROUNDS = 3  # loop iterations until an accepted connection is a link
_AT_ONCE = struct.pack("ii", 1, 0)  # linger for no time: the connection is reset


class Trap:
    """Cuts a connection around one statement; `sprung` is set when it has.

    `after`: the server has run it, and its answer is held back; otherwise the statement never
    reaches the server. `tag` is the command tag of the server.
    """

    def __init__(self, pattern: str, skip: int, after: bool, when: Callable[[], bool]) -> None:
        self._pattern = re.compile(pattern, re.IGNORECASE)
        self._skip = skip
        self._when = when
        self.after = after
        self.tag = ""
        self.sprung = Event()

    def catches(self, statement: str) -> bool:
        """Return whether this is the statement, after the ones to let pass."""
        if not self._pattern.search(statement) or not self._when():
            return False
        self._skip -= 1
        return self._skip < 0


class Proxy:
    """Forwards connections of its port to a server, with the faults that were set.

    With `watches`, the data are messages of PostgreSQL, so that traps can be set.
    """

    def __init__(self, host: str, port: int, seed: int = 0, watches: bool = False) -> None:
        self.target = (host, port)
        self.watches = watches
        # Below the client ports: a client that reconnects might otherwise connect to itself.
        self.port = free_port()
        self.links: set[Link] = set()
        self.trap: Trap | None = None
        self.delays = dict.fromkeys(BOTH, 0.0)
        self.mute_new: frozenset[Way] = frozenset()
        self._random = Random(f"proxy {seed}")
        self._spoils = dict.fromkeys(BOTH, 0)
        self._hangs_up = False
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT)
        self._loop.close()

    def through(self, url: str) -> str:
        """Return a URL of the server that leads through this proxy."""
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}"))

    # Faults

    def mend(self) -> None:
        """Forward everything again; held connections continue."""

        async def act() -> None:
            self.delays = dict.fromkeys(BOTH, 0.0)
            self._spoils = dict.fromkeys(BOTH, 0)
            self.mute_new, self._hangs_up, self.trap = frozenset(), False, None
            for link in self.links:
                link.hold(frozenset())
            if self._listener is None:
                await self._listen()

        self._do(act)

    def cut(self) -> int:
        """Close all connections; return how many there were."""
        return self._end_all(resets=False)

    def reset(self) -> int:
        """Reset all connections; return how many there were."""
        return self._end_all(resets=True)

    def delay(self, seconds: float, *ways: Way) -> None:
        """Delay all later data by so much."""

        async def act() -> None:
            self.delays |= dict.fromkeys(ways or BOTH, seconds)

        self._do(act)

    def half_open(self, new: bool = False) -> None:
        """Forward nothing more, silently; `new`: nor for later connections."""
        self._mute(frozenset(BOTH), new)

    def one_way(self, way: Way, new: bool = False) -> None:
        """Forward only data in this direction."""
        self._mute(frozenset(BOTH) - {way}, new)

    def corrupt(self, every: int, *ways: Way) -> None:
        """Change one byte in so many, on average."""

        async def act() -> None:
            self._spoils |= dict.fromkeys(ways or BOTH, every)

        self._do(act)

    def refuse(self, accepts: bool = False) -> None:
        """Accept no new connections; `accepts`: accept each, and close it at once."""

        async def act() -> None:
            if accepts:
                self._hangs_up = True
            else:
                await self._deafen()

        self._do(act)

    def cut_after(
        self, pattern: str, skip: int = 0, when: Callable[[], bool] = lambda: True
    ) -> Trap:
        """Cut the connection of the next such statement when it has run, before its answer.

        Of the statements that pass while `when` holds, so many are let pass.
        """
        return self._set(Trap(pattern, skip, after=True, when=when))

    def cut_before(
        self, pattern: str, skip: int = 0, when: Callable[[], bool] = lambda: True
    ) -> Trap:
        """Cut the connection of the next such statement before the server sees it."""
        return self._set(Trap(pattern, skip, after=False, when=when))

    @property
    def idle_in_transaction(self) -> bool:
        """Whether the server waits for the next statement of a transaction through here."""

        async def act() -> bool:
            return any(link.exchange.idle_in_transaction for link in self.links)

        return self._do(act)

    # What links ask, on the loop of the proxy

    def spoiled(self, way: Way, data: bytes) -> bytes:
        """Return what happens to bytes in flight."""
        every = self._spoils[way]
        if not every:
            return data
        changed = bytearray(data)
        for place in range(len(changed)):
            if not self._random.randrange(every):
                changed[place] ^= self._random.randrange(1, 256)
        return bytes(changed)

    # Steps

    def _set(self, trap: Trap) -> Trap:
        async def act() -> Trap:
            self.trap = trap
            return trap

        return self._do(act)

    def _mute(self, ways: frozenset[Way], new: bool) -> None:
        async def act() -> None:
            self.mute_new = ways if new else frozenset()
            for link in self.links:
                link.hold(ways)

        self._do(act)

    def _end_all(self, resets: bool) -> int:
        async def act() -> int:
            links = list(self.links)
            for link in links:
                link.end(_AT_ONCE if resets else None)
            return len(links)

        return self._do(act)

    async def _listen(self) -> None:
        self._listener = await self._loop.create_server(self._accept, "127.0.0.1", self.port)

    def _accept(self) -> asyncio.Protocol:
        return Link(self, self._loop).client if not self._hangs_up else HangsUp()

    async def _deafen(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        for one in listener.sockets:
            self._loop.remove_reader(one.fileno())
        # Connections accepted at this moment are handled first: a closed listener would lose them.
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        listener.close()

    async def _close(self) -> None:
        await self._deafen()
        for link in list(self.links):
            link.end(None)
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _do(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call on the loop of the proxy, and wait until it is done."""
        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(LIMIT)


class HangsUp(asyncio.Protocol):
    """Closes each new connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
