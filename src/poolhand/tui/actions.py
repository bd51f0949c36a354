"""Acts: what keys do to jobs, pools and farms, each with a sentence on what came of it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from poolhand.farm.records import ControlAnswer, FarmRecord, Snapshot
from poolhand.operate.actions import Operator

MOST_PAGES = 10
PAGE = 100
ANSWERED_WITHIN = 12.0  # seconds that a farm may take to answer a wish
WRITTEN_WITHIN = 2.0  # and then to write what it has become


class KeyActions:
    """Does what a person wants, in that person's name."""

    def __init__(self, operator: Operator, by: str, clock: Callable[[], float]) -> None:
        self._operator = operator
        self._by = by
        self._clock = clock
        self._wished: dict[str, tuple[tuple[int, int], float]] = {}

    async def retry(self, job: str) -> str:
        """Run a dead job again."""
        (answer,) = await self._operator.retry([job], self._by)
        return f"{job}: {answer.text}"

    async def cancel(self, job: str) -> str:
        """End a job that waits, ask one that runs to stop."""
        (answer,) = await self._operator.cancel([job], self._by)
        return f"{job}: {answer.text}"

    async def switch_pool(self, name: str) -> str:
        """Pause a pool, or let a paused one go on."""
        paused = {pool.name: pool.paused for pool in await self._operator.pools()}
        if name not in paused:
            return f"there is no pool {name!r}"
        if paused[name]:
            await self._operator.resume(name, self._by)
            return f"pool {name!r}: jobs start again"
        await self._operator.pause(name, self._by)
        return f"pool {name!r} is paused: what runs goes on, nothing starts"

    async def move_bounds(self, farm: FarmRecord, minimum: int, maximum: int) -> str:
        """Move the least and the greatest number of workers of a farm by so many."""
        least, most = self._bounds(farm)
        wanted = (least + minimum, most + maximum)
        self._wish(farm.id, wanted, ANSWERED_WITHIN)
        try:
            changed = (wanted[0] if minimum else None, wanted[1] if maximum else None)
            answer = await self._operator.set_bounds(farm.id, *changed, self._by)
        except BaseException:
            self._wished.pop(farm.id, None)
            raise
        if answer is None or not answer.done:
            self._wished.pop(farm.id, None)
        else:
            self._wish(farm.id, self._wished.get(farm.id, (wanted, 0.0))[0], WRITTEN_WITHIN)
        return _said(farm.id, answer)

    def _bounds(self, farm: FarmRecord) -> tuple[int, int]:
        """Return the bounds that a farm has, or will have: keys come faster than records."""
        wished, until = self._wished.get(farm.id, ((0, 0), 0.0))
        return wished if self._clock() < until else (farm.minimum, farm.maximum)

    def _wish(self, farm: str, bounds: tuple[int, int], seconds: float) -> None:
        self._wished[farm] = (bounds, self._clock() + seconds)

    async def drain(self, farm: str) -> str:
        """Let a farm finish what it runs, then end."""
        return _said(farm, await self._operator.drain_farm(farm, self._by))

    async def snapshot(self, id: str) -> Snapshot | str:
        """Return what a farm or a worker runs and has lately finished, or why not."""
        whole: Snapshot | None = None
        after: int | None = 0
        for _ in range(MOST_PAGES):
            answer = await self._operator.snapshot(id, after or 0, PAGE)
            if answer is None or answer.snapshot is None:
                return _said(id, answer)
            page = answer.snapshot
            seen = () if whole is None else whole.finished
            whole = replace(page, finished=(*seen, *page.finished))
            after = page.after
            if after is None:
                break
        assert whole is not None
        return whole


def _said(id: str, answer: ControlAnswer | None) -> str:
    if answer is None:
        return f"{id} is not there any more"
    return f"{id}: {answer.text}"
