"""A transaction on the memory store: without tables, but jobs can wait for its commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from poolhand.contract import Added, Admission, JobBatch, JobRequest, Refusal, Store
from poolhand.errors import Conflict, Unavailable, Unsupported
from tests.oracle.intake import Intake


class MemoryTransaction:
    """Keeps job requests until it commits; its verdicts hold unless others are added before."""

    def __init__(self, jobs: Store, intake: Intake) -> None:
        self._jobs = jobs
        self._intake = intake
        self._orders: list[JobRequest] = []
        self._is_over = False

    async def execute(self, sql: str, parameters: Sequence[Any]) -> NoReturn:
        raise Unsupported("memory:// has no tables to write to; use sqlite:///file.db")

    async def add(self, batch: JobBatch) -> tuple[Added, ...] | Refusal:
        self._check()
        answer = self._intake.foresee([*self._orders, *batch.requests])
        if isinstance(answer, Refusal):
            return answer
        added = answer[len(self._orders) :]
        own = (Admission.ACCEPTED, Admission.REJECTED)
        self._orders += [
            order for order, one in zip(batch.requests, added, strict=True) if one.entry in own
        ]
        return added

    async def commit(self) -> None:
        self._check()
        self._is_over = True
        (answer,) = await self._jobs.add([JobBatch(tuple(self._orders))])
        if isinstance(answer, Refusal):
            raise Conflict(
                f"pool {answer.pool!r} ({answer.policy}) has no place any more for what this"
                " transaction adds: others came first; nothing was taken, try again"
            )

    async def roll_back(self) -> None:
        self._is_over = True

    def _check(self) -> None:
        if self._is_over:
            raise Unavailable("this transaction is over; begin another one")
