"""The outbox: events wait here until what they tell of is done."""

from __future__ import annotations

from collections import deque

from poolhand.observe.events import Event, Events


class Outbox:
    """Hands events out in order, never in the middle of a change.

    A listener may look at the pool or use it: it finds the books balanced, and what it causes is
    told after what it was told.
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
