"""Round robin: how the free slots of one claim are distributed over several pools."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

P = TypeVar("P")
T = TypeVar("T")


def behind(pools: Sequence[P], last: P | None) -> list[P]:
    """Return all pools in order, starting after `last` and ending with it."""
    start = 0 if last is None else pools.index(last) + 1
    return [*pools[start:], *pools[:start]]


def deal(pools: Sequence[P], take: Callable[[P], T | None]) -> Iterator[tuple[P, T]]:
    """Yield one item of each pool in turn; a pool that returned None is not polled again."""
    line = deque(pools)
    while line:
        pool = line.popleft()
        given = take(pool)
        if given is not None:
            yield pool, given
            line.append(pool)
