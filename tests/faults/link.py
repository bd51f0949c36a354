"""One connection through the proxy: a client, a server, and the data between them."""

from __future__ import annotations

import asyncio
import socket
from asyncio import AbstractEventLoop, BaseTransport, Transport
from collections import deque
from typing import TYPE_CHECKING, cast

from tests.faults.messages import Exchange, Message, Way

if TYPE_CHECKING:
    from tests.faults.proxy import Proxy, Trap


class End(asyncio.Protocol):
    """One of the two ends; its data goes in one direction."""

    def __init__(self, link: Link, way: Way) -> None:
        self.transport: Transport | None = None
        self._link = link
        self._way = way

    def connection_made(self, transport: BaseTransport) -> None:
        self.transport = cast(Transport, transport)
        self._link.made(self._way)

    def data_received(self, data: bytes) -> None:
        self._link.received(self._way, data)

    def eof_received(self) -> bool:
        self._link.queue(self._way, b"")
        # Open in the other direction until that is closed too.
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._link.lost()


class Link:
    """Forwards both directions, as late as the proxy says, unless one is held."""

    def __init__(self, proxy: Proxy, loop: AbstractEventLoop) -> None:
        self.client = End(self, Way.UP)
        self.exchange = Exchange()
        self._server = End(self, Way.DOWN)
        self._proxy = proxy
        self._loop = loop
        self._held: frozenset[Way] = proxy.mute_new
        # Data in flight, with its arrival time; an empty piece is the end.
        self._queues: dict[Way, deque[tuple[float, bytes]]] = {way: deque() for way in Way}
        self._trap: Trap | None = None
        self._trapped = 0
        self._dialing: asyncio.Task[None] | None = None
        self._over = self._lost = False

    def made(self, way: Way) -> None:
        if way is Way.UP:
            self._proxy.links.add(self)
            self._dialing = self._loop.create_task(self._dial())

    async def _dial(self) -> None:
        try:
            await self._loop.create_connection(lambda: self._server, *self._proxy.target)
        except OSError:
            self.end(None)
        else:
            self._flush(Way.UP)

    def lost(self) -> None:
        """Note that one end is gone; on a silent line the other end is not notified."""
        self._lost = True
        if not self._held:
            self.end(None)

    def received(self, way: Way, data: bytes) -> None:
        if self._proxy.watches:
            for message in self.exchange.cut_out(way, data):
                if not (self._over or self._is_caught(way, message)):
                    self.queue(way, self._proxy.spoiled(way, message.data))
        else:
            self.queue(way, self._proxy.spoiled(way, data))

    def queue(self, way: Way, data: bytes) -> None:
        """Send bytes on their way."""
        queue, now = self._queues[way], self._loop.time()
        due = now + self._proxy.delays[way]
        if queue:
            due = max(due, queue[-1][0])
        queue.append((due, data))
        if due > now:
            self._loop.call_at(due, self._flush, way)
        else:
            self._flush(way)

    def hold(self, ways: frozenset[Way]) -> None:
        """Hold these directions from now on, and forward the others."""
        self._held = ways
        if self._lost and not ways:
            self.end(None)
        for way in Way:
            self._flush(way)

    def end(self, linger: bytes | None) -> None:
        """Close both ends, in the way that `linger` says."""
        if self._over:
            return
        self._over = True
        self._proxy.links.discard(self)
        if self._dialing is not None:
            self._dialing.cancel()
        for end in (self.client, self._server):
            if end.transport is None:
                continue
            if linger is not None:
                end.transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
            end.transport.abort()

    def _flush(self, way: Way) -> None:
        """Forward the data that is due."""
        target = self._server.transport if way is Way.UP else self.client.transport
        queue, now = self._queues[way], self._loop.time()
        while queue and queue[0][0] <= now and target is not None:
            if self._over or way in self._held:
                return
            _, data = queue.popleft()
            if data:
                target.write(data)
            elif target.can_write_eof():
                target.write_eof()

    # Traps

    def _is_caught(self, way: Way, message: Message) -> bool:
        """Return whether a message is dropped; the last one of a trap springs it."""
        if way is Way.UP:
            return self._sets_off(message)
        trap, exchange = self._trap, self.exchange
        if trap is None or exchange.answered + (message.kind != "Z") < self._trapped:
            return False
        if message.kind == "C":
            trap.tag = message.texts[0]
        elif message.kind == "Z":
            self._spring(trap)
        return True

    def _sets_off(self, message: Message) -> bool:
        trap, statement = self._proxy.trap, self.exchange.statement(message)
        if trap is None or not statement or not trap.catches(statement):
            return False
        self._proxy.trap = None
        if not trap.after:
            self._spring(trap)
            return True
        self._trap = trap
        # A prepared statement ends with a Sync, which follows.
        self._trapped = self.exchange.asked + (message.kind != "Q")
        return False

    def _spring(self, trap: Trap) -> None:
        self.end(None)
        trap.sprung.set()
