"""The state of a run, as the views need it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from poolhand import Pool
from stage.flags import Flags
from stage.ledger import Ledger
from stage.printable import seconds


@dataclass(slots=True)
class State:
    """What there is to look at, and how far it is."""

    pool: Pool
    ledger: Ledger
    flags: Flags
    drain_until: float | None = None
    stopping_now: bool = False

    def begin_drain(self, timeout: float) -> None:
        self.drain_until = time.monotonic() + timeout

    @property
    def draining(self) -> bool:
        return self.drain_until is not None

    def progress(self) -> str:
        """Return one line: how much is done, how fast it goes, what will come."""
        ledger = self.ledger
        if self.drain_until is not None:
            return self._drain_progress(self.drain_until)
        rate = ledger.rate()
        left = ledger.planned - ledger.ended
        eta = f"ETA {seconds(left / rate)}" if rate and left else "ETA –"
        of = "" if self.flags.once else f"round {ledger.round}, "
        return f"{of}{ledger.ended}/{ledger.planned} turns, {rate:.0f}/s, {eta}"

    def health(self) -> str:
        """Return a few words: how many slots there are, how busy, and whether any seems dead."""
        health = self.pool.health()
        stale = len(health.stale_workers)
        return f"{health.pool_size} slots {health.utilization:.0%} busy, {stale} stale"

    def _drain_progress(self, until: float) -> str:
        stats = self.pool.stats()
        if self.stopping_now:
            return f"stopping now: {stats.queue_depth} waiting, {stats.in_flight} running"
        left = max(0.0, until - time.monotonic())
        return (
            f"draining: {stats.queue_depth} waiting, {stats.in_flight} running, "
            f"deadline in {left:.1f} s; Ctrl-C again stops now"
        )
