"""Reports of a process under test in a file outside: events, readiness, descriptors."""

from __future__ import annotations

import os
import sys
import time

from poolhand import App
from poolhand.observe.events import LeaseLost, LoopBlocked, OwnerReaped, StoreTrouble
from poolhand.views import Event
from tests.faults import bodies, outside

READY_EVERY = 0.1


class Telling:
    """Records what the harness wants to know about this process."""

    def __init__(self) -> None:
        self._lines = outside.Lines(bodies.FOLDER / outside.TOLD)

    def event(self, event: Event) -> None:
        """Record problems."""
        if not isinstance(event, StoreTrouble | LeaseLost | OwnerReaped | LoopBlocked):
            return
        job = getattr(event, "job", None)
        self._write(type(event).__name__, job=None if job is None else job.id)
        sys.stderr.write(f"{time.monotonic():.3f} {event}\n")
        sys.stderr.flush()

    async def ready(self, app: App) -> bool:
        """Record whether an app is ready, and how long the check took."""
        began = time.monotonic()
        value = await app.ready()
        self._write("ready", value=value, took=time.monotonic() - began)
        return value

    async def readiness(self, app: App) -> None:
        """Record it repeatedly."""
        while True:
            await self.ready(app)
            await bodies.while_passing(READY_EVERY)

    def descriptors(self) -> None:
        """Record how many files this process has open."""
        self._write("descriptors", count=len(os.listdir("/proc/self/fd")))

    def _write(self, what: str, **about: object) -> None:
        self._lines.write(what, life=bodies.LIFE, **about)
