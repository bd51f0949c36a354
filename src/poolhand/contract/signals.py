"""The signals port: hints that something has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Hint = Callable[[str], None]


class Signals(Protocol):
    """Hints between all processes that share a store; they may be lost, duplicated or late.

    A store publishes after the commit: "ready" (a job can be claimed), "over" (a job is final),
    "entered" (a blocked submitter's job was admitted), "wish" (a cancellation was requested) and
    "due" (a job is to be promoted).
    """

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        """Call `hint` on the store's loop for every signal; return a function that unsubscribes."""

    def publish(self, topic: str) -> None:
        """Send a signal to all processes, this one included; never raises, never waits."""
