"""Calls from threads without an event loop, which wait until the store has answered."""

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
    """Asks the store while the calling thread waits; any number of threads may."""

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
            # On this thread: subscribers are user code, which the keeper never runs.
            for event in heard:
                self._events.emit(event)
        return self.ticket(ticket)

    def ticket(self, ticket: StoredTicket[Any]) -> SyncTicket[Any]:
        return SyncTicket(ticket, self.ask)
