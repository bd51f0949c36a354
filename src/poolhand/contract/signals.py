"""The port of signals: hints that something has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Hint = Callable[[str], None]


class Signals(Protocol):
    """Hints between all who share a store; they may be lost, doubled or late.

    A store gives "ready" (a job can be claimed), "over" (one has ended), "entered" (a parked order
    has a place), "wish" (one shall end) and "due" (one is to be promoted) when that is written.
    """

    def subscribe(self, hint: Hint) -> Callable[[], None]:
        """Call `hint` on the loop of the store for every signal; return what ends that."""

    def publish(self, topic: str) -> None:
        """Give a signal to everybody, oneself included; never raises, never waits."""
