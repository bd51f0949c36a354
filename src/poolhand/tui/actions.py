"""The actions behind the keys, on jobs, pools and farms; each returns a sentence on its result."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from poolhand.farm.records import ControlAnswer, FarmRecord, Snapshot
from poolhand.operate.actions import Operator

MOST_PAGES = 10
PAGE = 100
ANSWERED_WITHIN = 12.0  # seconds a farm may take to answer a control request
WRITTEN_WITHIN = 2.0  # seconds it may then take to write its record


class KeyActions:
    """Runs actions through the operator, with `by` as the actor."""

    def __init__(self, operator: Operator, by: str, clock: Callable[[], float]) -> None:
        self._operator = operator
        self._by = by
        self._clock = clock
        self._wished: dict[str, tuple[tuple[int, int], float]] = {}

    async def retry(self, job: str) -> str:
        """Retry a dead job."""
        (answer,) = await self._operator.retry([job], self._by)
        return f"{job}: {answer.text}"

    async def cancel(self, job: str) -> str:
        """Cancel a waiting job, or request a running one to stop."""
        (answer,) = await self._operator.cancel([job], self._by)
        return f"{job}: {answer.text}"

    async def switch_pool(self, name: str) -> str:
        """Pause a pool, or resume a paused one."""
        paused = {pool.name: pool.paused for pool in await self._operator.pools()}
        if name not in paused:
            return f"there is no pool {name!r}"
        if paused[name]:
            await self._operator.resume(name, self._by)
            return f"pool {name!r}: jobs start again"
        await self._operator.pause(name, self._by)
        return f"pool {name!r} is paused: what runs goes on, nothing starts"

    async def move_bounds(self, farm: FarmRecord, minimum: int, maximum: int) -> str:
        """Change the minimum and maximum number of workers of a farm by these amounts."""
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
        """Return the bounds last requested, or else recorded: keys are faster than records."""
        wished, until = self._wished.get(farm.id, ((0, 0), 0.0))
        return wished if self._clock() < until else (farm.minimum, farm.maximum)

    def _wish(self, farm: str, bounds: tuple[int, int], seconds: float) -> None:
        self._wished[farm] = (bounds, self._clock() + seconds)

    async def drain(self, farm: str) -> str:
        """Stop a farm after its running jobs have finished."""
        return _said(farm, await self._operator.drain_farm(farm, self._by))

    async def snapshot(self, id: str) -> Snapshot | str:
        """Return the running and recently finished jobs of a farm or worker, or why not."""
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
