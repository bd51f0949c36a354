"""The ready callbacks of a seeded loop, and the two orders in which the loop runs them."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any


class Handle(asyncio.TimerHandle):
    """A scheduled callback; all of its state is here, none in asyncio's class."""

    __slots__ = ("args", "at", "callback", "context", "dead")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, at: float
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.at = at
        self.dead = False

    def cancel(self) -> None:
        self.dead = True
        # A cancelled timer stays in the heap until its time: it must not reference its callback.
        self.callback = _nothing
        self.args = ()

    def cancelled(self) -> bool:
        return self.dead

    def when(self) -> float:
        return self.at

    def get_context(self) -> Context:
        return self.context

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return hash(self.at)

    def __repr__(self) -> str:
        return f"<{getattr(self.callback, '__qualname__', self.callback)} at {self.at:g}>"


def _nothing() -> None:
    """Replace the callback of a cancelled handle."""


class Shuffled(list[Handle]):
    """Ready callbacks in random order; taking one costs O(1)."""

    __slots__ = ("choices", "draw")

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed).random  # noqa: S311 - a schedule, not a secret
        self.choices = 0

    def take(self) -> Handle:
        last = self.pop()
        count = len(self) + 1
        if count == 1:
            return last
        index = int(self.draw() * count)
        self.choices = hash((self.choices, index, count))
        if index == count - 1:
            return last
        chosen = self[index]
        self[index] = last
        return chosen


class Queued(deque[Handle]):
    """Ready callbacks in the order of their arrival."""

    __slots__ = ("choices",)

    def __init__(self) -> None:
        self.choices = 0

    def take(self) -> Handle:
        self.choices = hash((self.choices, len(self)))
        return self.popleft()
