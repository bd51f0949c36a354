"""The summary line after a live view has closed: duration, jobs done and jobs left."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from poolhand.errors import PoolhandError
from poolhand.farm.records import FarmRecord
from poolhand.operate.actions import Operator
from poolhand.tui.format import lasting

WITHIN = 2.0  # seconds for reading the jobs left: an unavailable store must not delay the exit
UNKNOWN = "what is left could not be read from the store"
LEFT = {
    "queued": "still queued",
    "blocked": "blocked",
    "scheduled": "scheduled",
    "parked": "waiting to be accepted",
    "running": "running",
}


async def after_farm(
    operator: Operator, farm: FarmRecord, pools: Collection[str] | None = None
) -> str:
    """Return the summary of a stopped farm, with the jobs left in these pools, or in all."""
    ran = (farm.written_at - farm.started_at).total_seconds()
    done = _done(farm.completed, farm.failed)
    return f"farm {farm.id} ran {lasting(ran)}: {done}; {await _left(operator, pools)}"


class ViewSummary:
    """Counts the work of farms while a view is open; a farm that ends meanwhile is left out."""

    def __init__(self, operator: Operator, now: float) -> None:
        self._operator = operator
        self._since = now
        self._before: dict[str, FarmRecord] = {}

    async def begin(self) -> None:
        """Record the counts of all farms."""
        self._before = {farm.id: farm for farm in await _farms(self._operator)}

    async def end(self, now: float) -> str:
        """Return the summary since `begin`, with the jobs left."""
        completed = failed = 0
        after = await _farms(self._operator)
        for farm in after:
            before = self._before.get(farm.id)
            completed += farm.completed - (0 if before is None else before.completed)
            failed += farm.failed - (0 if before is None else before.failed)
        gone = len(self._before.keys() - {farm.id for farm in after})
        ended = "" if not gone else f", {_many(gone, 'farm')} ended"
        done = f"{_done(completed, failed)} in {_many(len(after), 'farm')}{ended}"
        if not after and not gone:
            done = "no farm was running"
        return f"watched {lasting(now - self._since)}: {done}; {await _left(self._operator, None)}"


async def _farms(operator: Operator) -> Sequence[FarmRecord]:
    try:
        async with asyncio.timeout(WITHIN):
            return await operator.farms()
    except (PoolhandError, TimeoutError):
        return ()


async def _left(operator: Operator, pools: Collection[str] | None) -> str:
    try:
        async with asyncio.timeout(WITHIN):
            found = await operator.pools()
    except (PoolhandError, TimeoutError):
        return UNKNOWN
    ours = [pool for pool in found if pools is None or pool.name in pools]
    counts = {word: sum(getattr(pool, name) for pool in ours) for name, word in LEFT.items()}
    left = [f"{count:,} {word}" for word, count in counts.items() if count]
    return ", ".join(left) if left else "nothing is left"


def _done(completed: int, failed: int) -> str:
    return f"{_many(completed, 'job')} completed, {_many(failed, 'attempt')} failed"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
