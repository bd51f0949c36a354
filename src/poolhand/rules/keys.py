"""Idempotency keys: one job per tenant and key."""

from __future__ import annotations

from collections import deque
from typing import Generic

from poolhand.rules.entry import E
from poolhand.rules.job import Job, Status

Owner = tuple[str | None, str]


class Keys(Generic[E]):
    """Remembers which job a key stands for, for `ttl` seconds after its outcome.

    Keys of living jobs are never forgotten; of the finished at most `most` are kept.
    """

    __slots__ = ("_finished", "_most", "_owners", "_ttl")

    def __init__(self, ttl: float, most: int) -> None:
        self._ttl = ttl
        self._most = most
        self._owners: dict[Owner, E] = {}
        self._finished: deque[tuple[float, Owner, E]] = deque()

    def __len__(self) -> int:
        return len(self._owners)

    def find(self, job: Job, now: float) -> E | None:
        """Return the entry that the key of this job already stands for."""
        if job.idempotency_key is None:
            return None
        self._forget(now)
        return self._owners.get((job.tenant, job.idempotency_key))

    def hold(self, entry: E) -> None:
        if entry.job.idempotency_key is not None:
            self._owners[entry.job.tenant, entry.job.idempotency_key] = entry

    def finish(self, entry: E, now: float) -> None:
        """Start the clock of a key whose job is over; a rejected job gives its key free."""
        key = entry.job.idempotency_key
        if entry.job.status is Status.REJECTED or key is None:
            self.free(entry)
            return
        owner = (entry.job.tenant, key)
        if self._owners.get(owner) is entry:
            self._finished.append((now + self._ttl, owner, entry))
            self._forget(now)

    def free(self, entry: E) -> None:
        """Let go of a key whose job never was, or was turned away."""
        key = entry.job.idempotency_key
        if key is not None and self._owners.get((entry.job.tenant, key)) is entry:
            del self._owners[entry.job.tenant, key]

    def _forget(self, now: float) -> None:
        finished = self._finished
        while finished and (finished[0][0] <= now or len(finished) > self._most):
            _, owner, entry = finished.popleft()
            if self._owners.get(owner) is entry:
                del self._owners[owner]
