"""Blocking store calls, for threads without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from poolhand.contract import JobRequest
from poolhand.durable.client.submit import StoreSubmitter, SubmitContext
from poolhand.durable.client.sync_ticket import SyncTicket
from poolhand.durable.client.ticket import OpenStore, StoredTicket
from poolhand.durable.connection.opening import ConnectionSlot
from poolhand.observe.events import Event, Events

T = TypeVar("T")


class Blocking:
    """Calls the store while the calling thread waits; safe to use from any number of threads."""

    def __init__(self, opened: OpenStore, opening: ConnectionSlot, events: Events) -> None:
        self._opened = opened
        self._opening = opening
        self._events = events

    def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return self._opening.station_sync().keeper.ask_sync(call)

    def submit(self, order: JobRequest, how: SubmitContext) -> SyncTicket[Any]:
        heard: list[Event] = []
        submissions = StoreSubmitter(self._opened, self._events, heard.append)
        try:
            (ticket,) = self.ask(lambda: submissions.submit([order], how))
        finally:
            # Emit on this thread: subscribers are user code, which the store thread never runs.
            for event in heard:
                self._events.emit(event)
        return self.ticket(ticket)

    def ticket(self, ticket: StoredTicket[Any]) -> SyncTicket[Any]:
        return SyncTicket(ticket, self.ask)
