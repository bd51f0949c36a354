"""A store: all ports behind one URL."""

from __future__ import annotations

from typing import Protocol

from poolhand.contract.documents import Documents
from poolhand.contract.jobs import Jobs
from poolhand.contract.log import Log
from poolhand.contract.signals import Signals


class Store(Jobs, Documents, Log, Signals, Protocol):
    """All ports behind one URL. A store is used only from the event loop that opened it."""

    @property
    def place(self) -> str:
        """The location to show to users: the full path of its file, or its server."""

    async def open(self) -> None:
        """Prepare the store: connect and check the schema, or raise a StoreError that says why."""

    async def close(self) -> None:
        """Release everything; stored data remains, unless the store is in memory."""

    async def check(self) -> None:
        """Raise the StoreError that a submit would raise now; return if a job can be accepted."""
