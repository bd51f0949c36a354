"""Relays events of the store thread to subscribers on another thread.

Subscribers and log handlers are user code and may take long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Lock

from poolhand.observe.events import Event, Events
from poolhand.runtime import Runtime


class EventRelay:
    """Emits events in the order in which they are added, off the loop that adds them."""

    def __init__(self, runtime: Runtime, events: Events) -> None:
        self._runtime = runtime
        self._events = events
        self._waiting: deque[Callable[[], None]] = deque()
        self._lock = Lock()
        self._draining = False

    def emit(self, event: Event) -> None:
        if self._events.live:
            self.do(partial(self._events.emit, event))

    def do(self, call: Callable[[], None]) -> None:
        """Run a call that raises nothing, after everything added before it."""
        with self._lock:
            self._waiting.append(call)
            if self._draining:
                return
            self._draining = True
        try:
            self._runtime.in_thread(self._drain, "poolhand-events")
        except RuntimeError:
            # No thread can be started: run the calls here, as a delay is better than losing events.
            self._drain()

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._draining = False
                    return
                call = self._waiting.popleft()
            call()
