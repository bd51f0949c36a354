"""Idempotency keys: one job per tenant and key."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic

from poolhand.rules.job import Job, Status
from poolhand.rules.queue.entry import E

Owner = tuple[str | None, str]


class IdempotencyKeys(Generic[E]):
    """Remembers which job a key stands for, for `ttl` seconds after its outcome.

    Keys of living jobs are never forgotten; of the finished at most `most` are kept. Newcomers that
    wait for a place stand apart: if they are turned away, what their key stood for still counts.
    """

    __slots__ = ("_finished", "_most", "_newcomers", "_owners", "_ttl")

    def __init__(self, ttl: float, most: int) -> None:
        self._ttl = ttl
        self._most = most
        self._owners: dict[Owner, E] = {}
        self._newcomers: dict[Owner, E] = {}
        self._finished: OrderedDict[Owner, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def find(self, job: Job, now: float) -> E | None:
        """Return the entry that the key of this job already stands for."""
        owner = _owner(job)
        if owner is None:
            return None
        self._forget(now)
        return self._newcomers.get(owner) or self._owners.get(owner)

    def reserve(self, entry: E) -> None:
        """Let the key stand for a newcomer that waits for a place."""
        owner = _owner(entry.job)
        if owner is not None:
            self._newcomers[owner] = entry

    def release(self, entry: E) -> None:
        """Let go of a newcomer that has got its place or been turned away."""
        owner = _owner(entry.job)
        if owner is not None:
            self._newcomers.pop(owner, None)

    def hold(self, entry: E) -> None:
        """Let the key stand for an accepted job."""
        owner = _owner(entry.job)
        if owner is not None:
            self._owners[owner] = entry
            self._finished.pop(owner, None)

    def finish(self, entry: E, now: float) -> None:
        """Start the clock of a key whose job is over; a rejected job gives its key free."""
        owner = _owner(entry.job)
        if owner is None or self._owners.get(owner) is not entry:
            return
        if entry.job.status is Status.REJECTED:
            del self._owners[owner]
        else:
            self._finished[owner] = now + self._ttl
            self._forget(now)

    def drop(self, entry: E) -> None:
        """Let go of the key of a job that is over, before its time."""
        owner = _owner(entry.job)
        if owner is not None and owner in self._finished and self._owners[owner] is entry:
            del self._finished[owner]
            del self._owners[owner]

    def limit(self, ttl: float, most: int, now: float) -> None:
        """Keep keys as long, and as many, as this says from now on."""
        self._ttl, self._most = ttl, most
        self._forget(now)

    def stands_for(self, entry: E, now: float) -> bool:
        """Tell whether the key of an entry is still held by it."""
        owner = _owner(entry.job)
        self._forget(now)
        return owner is not None and self._owners.get(owner) is entry

    def _forget(self, now: float) -> None:
        finished = self._finished
        while finished:
            owner, expires_at = next(iter(finished.items()))
            if expires_at > now and len(finished) <= self._most:
                return
            del finished[owner]
            del self._owners[owner]


def _owner(job: Job) -> Owner | None:
    return None if job.idempotency_key is None else (job.tenant, job.idempotency_key)
