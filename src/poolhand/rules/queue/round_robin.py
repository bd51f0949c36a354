"""Turns: how the free slots of one claim are dealt over several pools."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

P = TypeVar("P")
T = TypeVar("T")


def behind(pools: Sequence[P], last: P | None) -> list[P]:
    """Return all pools in their order, from the one behind `last` on, round to that one itself."""
    start = 0 if last is None else pools.index(last) + 1
    return [*pools[start:], *pools[:start]]


def deal(pools: Sequence[P], take: Callable[[P], T | None]) -> Iterator[tuple[P, T]]:
    """Yield what pools give, one of each in turn; who gives nothing is not asked again."""
    line = deque(pools)
    while line:
        pool = line.popleft()
        given = take(pool)
        if given is not None:
            yield pool, given
            line.append(pool)
