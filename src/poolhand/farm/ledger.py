"""The ledger: what running jobs may ask of the store, each for itself and under its lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from poolhand.contract import Line
from poolhand.errors import Conflict
from poolhand.farm.keeper import Keeper
from poolhand.rules.streams import journal_of

AT_ONCE = 1000
RECORD = "record"


class Ledger:
    """Answers on the keeper; asked from any loop or thread."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._verbs: dict[str, Callable[..., Awaitable[Any]]] = {
            "journal": self._journal,
            "record": self._record,
        }

    def ask(self, id: str, token: int, verb: str, details: tuple[Any, ...]) -> Awaitable[Any]:
        """Have something done for a job."""
        return self._keeper.ask(partial(self._verbs[verb], id, token, *details))

    def ask_sync(self, id: str, token: int, verb: str, details: tuple[Any, ...]) -> Any:
        return self._keeper.ask_sync(partial(self._verbs[verb], id, token, *details))

    async def _journal(self, id: str, token: int) -> list[bytes]:
        """Return all that was recorded for a job."""
        stream, last, bodies = journal_of(id), 0, []
        while lines := await self._keeper.store.read(stream, last, AT_ONCE):
            last = lines[-1].number
            bodies += [line.body for line in lines]
        return bodies

    async def _record(self, id: str, token: int, body: bytes) -> None:
        """Record something for a job, for all its attempts to come."""
        if await self._keeper.store.append([Line(journal_of(id), RECORD, body, token)]):
            raise Conflict(f"job {id} is not this attempt's any more; what it did is not recorded")
