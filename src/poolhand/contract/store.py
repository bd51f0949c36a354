"""A store: all ports behind one URL."""

from __future__ import annotations

from typing import Protocol

from poolhand.contract.documents import Documents
from poolhand.contract.jobs import Jobs
from poolhand.contract.log import Log
from poolhand.contract.signals import Signals


class Store(Jobs, Documents, Log, Signals, Protocol):
    """All ports behind one URL. A store is used from the event loop that opened it."""

    @property
    def place(self) -> str:
        """Where it is, as people are shown it: the full path of its file, or its server."""

    async def open(self) -> None:
        """Make the store ready: connect, check the schema, or raise a StoreError that says why."""

    async def close(self) -> None:
        """Let go of everything; what was written stays, unless the store is memory."""

    async def check(self) -> None:
        """Return if the store could take a job now, else raise the StoreError it would raise."""
