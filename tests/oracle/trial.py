"""Whether a desk would refuse new jobs, found without changing it."""

from __future__ import annotations

from typing import Generic

from poolhand.rules.queue.backpressure import QueueFacts, Ruling, rule
from poolhand.rules.queue.entry import E
from poolhand.rules.queue.stored_desk import StoredDesk


class Trial(Generic[E]):
    """Checks for new jobs, one after the other, whether a desk would refuse them; changes nothing.

    Only for pools that may refuse: they evict nothing, so each accepted job only adds to the
    waiting ones. Once one job could start at once, no later one can: that job is before them.
    """

    def __init__(self, desk: StoredDesk[E], now: float) -> None:
        self.waiting = desk.waiting
        self._desk = desk
        self._now = now
        self._scheduled = 0
        self._queued = False
        self._keys: set[tuple[str | None, str]] = set()

    def refuses(self, entry: E, rerun: bool) -> bool:
        """Return whether a new job would be refused, given that those before it were accepted."""
        job = entry.job
        key = None if job.idempotency_key is None else (job.tenant, job.idempotency_key)
        if key in self._keys or self._desk.joined(job, rerun, self._now) is not None:
            return False
        facts = self._desk._facts(entry, self._now)
        at_once = facts.at_once and not self._queued
        scheduled = facts.scheduled + self._scheduled
        facts = QueueFacts(facts.running, self.waiting, facts.slots, at_once, scheduled)
        if rule(self._desk.policy, facts) is not Ruling.TAKE:
            return True
        self._queued = self._queued or at_once
        self.waiting += 1
        opens_at = None if entry.window is None else entry.window.opens_at
        self._scheduled += opens_at is not None and opens_at > self._now
        if key is not None:
            self._keys.add(key)
        return False
