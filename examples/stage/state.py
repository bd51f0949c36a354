"""The state of a run, as the views need it."""

from __future__ import annotations

import time
from asyncio import Event
from dataclasses import dataclass, field
from pathlib import Path

from poolhand.operate.actions import Operator
from poolhand.operate.views import PoolView
from stage.crew import Crew
from stage.flags import SCHEME, Flags
from stage.kept import POOL
from stage.ledger import Ledger
from stage.news import Newsroom, jobs
from stage.printable import seconds
from stage.process import Fate, Process


@dataclass(slots=True)
class State:
    """The state that views show, and the progress; `pool` is the pool as the store sees it."""

    flags: Flags
    newsroom: Newsroom
    ledger: Ledger
    here: Process
    crew: Crew
    pool: PoolView | None = None
    drain_until: float | None = None
    stopping_now: bool = False
    file: Path = field(init=False)
    looked: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        self.file = Path(self.flags.store.removeprefix(SCHEME))

    async def look(self, operator: Operator) -> None:
        """Query the store."""
        await self.ledger.catch_up(operator)
        for pool in await operator.pools():
            if pool.name == POOL:
                self.pool = pool
        self.looked.set()

    def begin_drain(self, timeout: float) -> None:
        self.drain_until = time.monotonic() + timeout

    @property
    def draining(self) -> bool:
        return self.drain_until is not None

    @property
    def processes(self) -> list[Process]:
        """This process, and the one beside it."""
        beside = self.crew.process
        return [self.here] if beside is None else [self.here, beside]

    @property
    def busy(self) -> int:
        return sum(process.busy for process in self.processes)

    def progress(self) -> str:
        """Return one line: how much is done, how fast, and what is left."""
        ledger = self.ledger
        if self.drain_until is not None:
            return self._drain_progress(self.drain_until)
        rate = ledger.rate()
        left = ledger.planned - ledger.done
        eta = f"ETA {seconds(left / rate)}" if rate and left else "ETA –"
        of = "" if self.flags.once else f"round {ledger.round}, "
        return f"{of}{ledger.done}/{ledger.planned} turns, {rate:.0f}/s, {eta}"

    def health(self) -> str:
        """Return a few words: how many processes work, and what happened to the jobs of others."""
        at_work = sum(process.fate is Fate.AT_WORK for process in self.processes)
        many = "1 process" if at_work == 1 else f"{at_work} processes"
        return f"{many}, {jobs(self.ledger.recovered)} recovered"

    def size(self) -> str:
        """Return the size of the file, its write-ahead log included."""
        total = 0
        for path in (self.file, self.file.with_name(f"{self.file.name}-wal")):
            total += path.stat().st_size if path.exists() else 0
        return f"{total / (1 << 20):.1f} MiB"

    def _drain_progress(self, until: float) -> str:
        if self.stopping_now:
            return f"stopping now: {self.busy} running"
        left = max(0.0, until - time.monotonic())
        return (
            f"draining: {self.busy} running, deadline in {left:.1f} s; what waits stays in the "
            "file; Ctrl-C again stops now"
        )
