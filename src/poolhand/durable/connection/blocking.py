"""Calls from threads without an event loop, which wait until the store has answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from poolhand.contract import Order
from poolhand.durable.client.submit import How, Submissions
from poolhand.durable.client.sync_ticket import SyncTicket
from poolhand.durable.client.ticket import Opened, StoredTicket
from poolhand.durable.connection.opening import Opening
from poolhand.observe.events import Event, Events

T = TypeVar("T")


class Blocking:
    """Asks the store while the calling thread waits; any number of threads may."""

    def __init__(self, opened: Opened, opening: Opening, events: Events) -> None:
        self._opened = opened
        self._opening = opening
        self._events = events

    def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return self._opening.station_sync().keeper.ask_sync(call)

    def submit(self, order: Order, how: How) -> SyncTicket[Any]:
        heard: list[Event] = []
        submissions = Submissions(self._opened, self._events, heard.append)
        try:
            (ticket,) = self.ask(lambda: submissions.submit([order], how))
        finally:
            # On this thread: subscribers are user code, which the keeper never runs.
            for event in heard:
                self._events.emit(event)
        return self.ticket(ticket)

    def ticket(self, ticket: StoredTicket[Any]) -> SyncTicket[Any]:
        return SyncTicket(ticket, self.ask)
