"""The tray of a worker: what it puts down for its hand within one turn of its loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop

from poolhand.durable.worker.hand import Dispatcher, SettledClaim


class SettleQueue:
    """Gathers what is done, which slots are free and which tokens have left theirs."""

    def __init__(self, loop: AbstractEventLoop, hand: Dispatcher) -> None:
        self._loop = loop
        self._hand = hand
        self._done: list[SettledClaim] = []
        self._free: list[int] = []
        self._released: list[int] = []
        self._sends_soon = False

    @property
    def full(self) -> bool:
        """Whether something lies here that is to be written."""
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
        """Let the hand have it."""
        self._sends_soon = False
        done, free, released = self._done, self._free, self._released
        if done or free or released:
            # Before it is taken off: whoever looks from another thread sees it here or there.
            self._hand.put(done, free, released)
            self._done, self._free, self._released = [], [], []

    def _send_soon(self) -> None:
        if not self._sends_soon:
            self._sends_soon = True
            self._loop.call_soon(self.send)
