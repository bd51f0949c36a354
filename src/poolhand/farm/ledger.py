"""The ledger: what running jobs may ask of the store, each for itself and under its lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from poolhand.contract import Line, Put
from poolhand.errors import Conflict
from poolhand.farm.keeper import Keeper
from poolhand.rules.job import Status
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
            "document": self._document,
            "put": self._put,
            "runs": self._runs,
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

    async def _document(self, id: str, token: int, key: str) -> tuple[bytes, int] | None:
        return await self._keeper.store.get_document(key)

    async def _put(
        self, id: str, token: int, key: str, value: bytes, expect: int, ttl: float | None
    ) -> bool:
        """Write a document, if it is of that version and the lease is good."""
        return await self._keeper.store.put([Put(key, value, expect, ttl)], token)

    async def _runs(self, id: str, token: int, other: str) -> bool:
        """Tell whether another job runs."""
        found = (await self._keeper.store.get([other]))[0]
        return found is not None and found.job.status is Status.RUNNING
