"""The outbox: events wait here until the step they describe is done."""

from __future__ import annotations

from collections import deque

from poolhand.observe.events import Event, Events


class Outbox:
    """Emits events in order, never in the middle of a change.

    A subscriber may inspect or use the pool: it sees a consistent state, and the events it causes
    are emitted after the event it received.
    """

    __slots__ = ("_events", "_handing_out", "waiting")

    def __init__(self, events: Events) -> None:
        self.waiting: deque[Event] = deque()
        self._events = events
        self._handing_out = False

    @property
    def live(self) -> bool:
        return self._events.live

    def put(self, event: Event) -> None:
        self.waiting.append(event)

    def hand_out(self) -> None:
        if self._handing_out:
            return
        self._handing_out = True
        try:
            while self.waiting:
                self._events.emit(self.waiting.popleft())
        finally:
            self._handing_out = False
