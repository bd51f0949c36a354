"""What a running job can see of itself."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from contextvars import ContextVar
from typing import Any, Protocol


class Told:
    """What may be awaited and is there already."""

    def __await__(self) -> Generator[None, None, None]:
        return iter(())  # type: ignore[return-value]


TOLD = Told()


class Running(Protocol):
    """The attempt that this code is part of, seen from inside."""

    @property
    def stop_requested(self) -> bool: ...

    @property
    def submitter(self) -> str: ...

    @property
    def token(self) -> int | None: ...

    def snapshot(self) -> object: ...

    @property
    def shelf(self) -> dict[str, Any]:
        """What parts of the package keep here for the time of the attempt."""

    def tell(self, kind: str, data: bytes) -> Awaitable[None]:
        """Put a line, as JSON, into the event log of the job; from any thread."""

    def ask(self, verb: str, *details: Any) -> Awaitable[Any]:
        """Have something done by the store for this attempt, if its lease is good."""


running: ContextVar[Running | None] = ContextVar("poolhand_running", default=None)


def stop_requested() -> bool:
    """Tell whether the running job was asked to stop.

    Async jobs learn it by a CancelledError. A job in a thread or a process is not interrupted: long
    loops there ask this now and then and return.
    """
    inside = running.get()
    return inside is not None and inside.stop_requested


def fencing_token() -> int | None:
    """Return the number of the lease under which the running job has its attempt.

    It grows with every attempt of every job of a store: whoever keeps the highest one it has seen
    can refuse what comes from an attempt that was given up. None for a job that no store keeps.
    """
    inside = running.get()
    return None if inside is None else inside.token
