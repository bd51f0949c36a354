"""Idempotency keys: one job per tenant and key."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic

from poolhand.rules.job import Job, Status
from poolhand.rules.queue.entry import E

Owner = tuple[str | None, str]


class IdempotencyKeys(Generic[E]):
    """Maps each key to its job, until `ttl` seconds after the job's outcome.

    Keys of unfinished jobs are never dropped; of finished jobs at most `most` keys remain. Jobs of
    blocked submitters are tracked apart: if one is refused, the key still maps to its earlier job.
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
        """Return the entry that already owns the key of this job."""
        owner = _owner(job)
        if owner is None:
            return None
        self._forget(now)
        return self._newcomers.get(owner) or self._owners.get(owner)

    def reserve(self, entry: E) -> None:
        """Reserve the key for the entry of a blocked submitter."""
        owner = _owner(entry.job)
        if owner is not None:
            self._newcomers[owner] = entry

    def release(self, entry: E) -> None:
        """End the reservation of an entry that was admitted or refused."""
        owner = _owner(entry.job)
        if owner is not None:
            self._newcomers.pop(owner, None)

    def hold(self, entry: E) -> None:
        """Map the key to an accepted job."""
        owner = _owner(entry.job)
        if owner is not None:
            self._owners[owner] = entry
            self._finished.pop(owner, None)

    def finish(self, entry: E, now: float) -> None:
        """Start the TTL of a key whose job is final; a rejected job frees its key at once."""
        owner = _owner(entry.job)
        if owner is None or self._owners.get(owner) is not entry:
            return
        if entry.job.status is Status.REJECTED:
            del self._owners[owner]
        else:
            self._finished[owner] = now + self._ttl
            self._forget(now)

    def drop(self, entry: E) -> None:
        """Free the key of a finished job before its TTL has passed."""
        owner = _owner(entry.job)
        if owner is not None and owner in self._finished and self._owners[owner] is entry:
            del self._finished[owner]
            del self._owners[owner]

    def limit(self, ttl: float, most: int, now: float) -> None:
        """Change the TTL and the number of keys."""
        self._ttl, self._most = ttl, most
        self._forget(now)

    def stands_for(self, entry: E, now: float) -> bool:
        """Return whether an entry still owns its key."""
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
