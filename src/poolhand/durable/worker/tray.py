"""The settle queue: batches what a worker sends to its dispatcher within one turn of its loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop

from poolhand.durable.worker.hand import Dispatcher, SettledClaim


class SettleQueue:
    """Collects settled claims, free slots, and tokens whose stuck code has ended."""

    def __init__(self, loop: AbstractEventLoop, hand: Dispatcher) -> None:
        self._loop = loop
        self._hand = hand
        self._done: list[SettledClaim] = []
        self._free: list[int] = []
        self._released: list[int] = []
        self._sends_soon = False

    @property
    def full(self) -> bool:
        """Whether something is queued that must be written."""
        return bool(self._done or self._released)

    def put(self, done: SettledClaim) -> None:
        self._done.append(done)
        self._send_soon()

    def free(self, slot: int) -> None:
        self._free.append(slot)
        self._send_soon()

    def release(self, token: int) -> None:
        self._released.append(token)
        self._send_soon()

    def send(self) -> None:
        """Pass everything to the dispatcher."""
        self._sends_soon = False
        done, free, released = self._done, self._free, self._released
        if done or free or released:
            # Pass it on before clearing: a check from another thread sees it in one place or the
            # other.
            self._hand.put(done, free, released)
            self._done, self._free, self._released = [], [], []

    def _send_soon(self) -> None:
        if not self._sends_soon:
            self._sends_soon = True
            self._loop.call_soon(self.send)
