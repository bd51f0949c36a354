"""Time, randomness and threads, passed in so that tests can bring their own."""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from queue import Empty, SimpleQueue

IDLE_THREAD_SECONDS = 10.0

_Errand = tuple[str, Callable[[], None]]  # the name to bear, the call to make


class Runtime:
    """The process as it is: its clocks, its randomness, its threads."""

    def __init__(self, seed: int | None = None) -> None:
        self.random = random.Random(seed)  # noqa: S311 - jitter and ids, not secrets
        self._process = os.getpid()
        self._idle: list[SimpleQueue[_Errand]] = []

    # The bare function: every job asks for the time several times.
    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    def wall(self) -> datetime:
        return datetime.now(UTC)

    def salt(self) -> str:
        """Return 12 characters that no other process, nor a fork of this one, has."""
        return secrets.token_hex(6)

    def in_thread(self, call: Callable[[], None], name: str) -> None:
        """Run `call` once outside the event loop.

        Threads are daemons: one that never returns must not keep the process from ending.
        """
        if os.getpid() != self._process:
            # A fork has the list of the idle threads, not the threads.
            self._process, self._idle = os.getpid(), []
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
        inbox.put((name, call))

    def _serve(self, inbox: SimpleQueue[_Errand]) -> None:
        errand: _Errand | None = inbox.get()
        while errand is not None:
            threading.current_thread().name, call = errand
            call()
            # Kept while idle, it would keep all that it holds.
            del call
            errand = None
            self._idle.append(inbox)
            errand = self._next(inbox)

    def _next(self, inbox: SimpleQueue[_Errand]) -> _Errand | None:
        try:
            return inbox.get(timeout=IDLE_THREAD_SECONDS)
        except Empty:
            pass
        try:
            self._idle.remove(inbox)
        except ValueError:
            # Somebody took this thread while it was giving up: its errand is on the way.
            return inbox.get()
        return None
