"""Mapping over many items with stored jobs: a window of them at a time, values in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from poolhand.context import running
from poolhand.observe.events import Events
from poolhand.pool.mapping import Items, window
from poolhand.pool.pool import Pool
from poolhand.pool.ticket import Ticket
from poolhand.rules.queue.backpressure import Bounded, OnFull, Policy, capacity

UNCAPPED_WINDOW = 1_000  # the most jobs of one map at a time in a pool without a cap


class _JobEnded(Exception):
    """The error of a stored job, wrapped.

    The map runs in a private pool, which would act on a RetryLater or a Snooze that the job ended
    with, and so submit the item again.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


async def map_stored(
    submit: Callable[[Any], Awaitable[Ticket[Any]]],
    items: Items[Any],
    *,
    limit: int,
    return_exceptions: bool,
) -> list[Any]:
    """Submit a job per item, at most `limit` at a time; return their values in input order.

    The first failure ends the map: no further item is taken, jobs that wait or run are cancelled,
    then the error is raised.
    """
    inside = running.get()

    async def one(item: Any) -> Any:
        # The submitter of the stored job is the caller of the map, not the job of the private pool.
        running.set(inside)
        ticket = await submit(item)
        try:
            return await ticket
        except asyncio.CancelledError:
            await ticket.cancel()
            raise
        except BaseException as error:
            raise _JobEnded(error) from None

    # With its own events: otherwise subscribers would see each job twice.
    async with Pool(max_concurrent=limit, events=Events()) as pool:
        try:
            values = await pool.map(one, items, return_exceptions=return_exceptions)
        except _JobEnded as ended:
            failure = ended.error
        else:
            return [one.error if isinstance(one, _JobEnded) else one for one in values]
    raise failure


def map_window(slots: int | None, policy: Policy) -> int:
    """Return how many jobs of a map may be in a pool at a time; `slots` None: it has no cap."""
    depth = capacity(policy)
    most = UNCAPPED_WINDOW if slots is None else window(slots, depth)
    if not depth or (isinstance(policy, Bounded) and policy.on_full is OnFull.BLOCK_SUBMITTER):
        return most
    # Until a worker claims it, a job waits, even if a slot is free.
    return min(most, depth)
