"""Opening a store once for all who need it, on whatever loop or thread they are."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future as PlainFuture
from threading import Lock

from poolhand.farm.station import Station
from poolhand.rules.spec import PoolSpec


class Opening:
    """Makes the station of this process when it is first needed; a failed try is tried again.

    A fork gets a station of its own: threads and connections do not survive a fork.
    """

    def __init__(self, make: Callable[[], Station]) -> None:
        self._make = make
        self._lock = Lock()
        self._process = 0
        self._open: PlainFuture[Station] | None = None
        self._ready: Station | None = None
        self._specs: dict[str, PoolSpec] = {}
        self._declared: dict[str, PoolSpec] = {}

    def declare(self, spec: PoolSpec) -> None:
        """Have a pool declared before the next thing is done."""
        self._specs[spec.name] = spec

    @property
    def is_open(self) -> bool:
        return self._ready is not None and self._process == os.getpid()

    @property
    def current(self) -> Station | None:
        """The station, if it is open."""
        return self._ready

    async def station(self) -> Station:
        ready = self._ready
        if ready is None or self._process != os.getpid():
            ready = await asyncio.shield(asyncio.wrap_future(self._begin()))
        missing = self._missing()
        if missing:
            await ready.keeper.ask(lambda: ready.declare(missing))
        return ready

    def station_sync(self) -> Station:
        ready = self._begin().result()
        missing = self._missing()
        if missing:
            ready.keeper.ask_sync(lambda: ready.declare(missing))
        return ready

    async def close(self) -> None:
        """Close what is open; the next need opens it again."""
        with self._lock:
            station, self._ready, self._open = self._ready, None, None
        if station is not None and self._process == os.getpid():
            await station.keeper.close()

    def abandon(self) -> None:
        """Let go of what is open as the death of the process would: nothing more is written."""
        with self._lock:
            station, self._ready, self._open = self._ready, None, None
        if station is not None and self._process == os.getpid():
            station.forsake()

    def _missing(self) -> list[PoolSpec]:
        """Return what was declared since the store was opened."""
        if self._declared == self._specs:
            return []
        with self._lock:
            news = [one for name, one in self._specs.items() if self._declared.get(name) != one]
            self._declared = dict(self._specs)
        return news

    def _begin(self) -> PlainFuture[Station]:
        with self._lock:
            if self._open is None or self._process != os.getpid():
                self._process = os.getpid()
                self._declared = dict(self._specs)
                self._ready = None
                self._open = self._start(list(self._specs.values()))
            return self._open

    def _start(self, specs: list[PoolSpec]) -> PlainFuture[Station]:
        station = self._make()
        opened: PlainFuture[Station] = PlainFuture()

        async def open_it() -> None:
            try:
                await station.open(specs)
            except BaseException as error:
                self._forget(opened)
                await station.abandon()
                opened.set_exception(error)
            else:
                self._ready = station
                opened.set_result(station)

        station.keeper.do("open", open_it)
        return opened

    def _forget(self, opened: PlainFuture[Station]) -> None:
        with self._lock:
            if self._open is opened or self._open is None:
                self._open = None
