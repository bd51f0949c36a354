"""What a running job can see of itself."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class Running(Protocol):
    """The attempt that this code is part of, seen from inside."""

    @property
    def stop_requested(self) -> bool: ...

    @property
    def submitter(self) -> str: ...

    def snapshot(self) -> object: ...


running: ContextVar[Running | None] = ContextVar("poolhand_running", default=None)


def stop_requested() -> bool:
    """Tell whether the running job was asked to stop.

    Async jobs learn it by a CancelledError. A job in a thread or a process is not interrupted: long
    loops there ask this now and then and return.
    """
    inside = running.get()
    return inside is not None and inside.stop_requested
