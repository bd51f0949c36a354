"""Opens a store once per process for all callers, on any loop or thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future as PlainFuture
from contextlib import suppress
from functools import partial

from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.connection.store_thread import CallResult
from poolhand.errors import Unavailable
from poolhand.rules.queue.pool_spec import PoolSpec
from poolhand.runtime import check_script

OPEN_WITHIN = 10.5  # how many seconds a thread waits for a store to open


class ConnectionSlot:
    """Creates the store connection of this process on first use; retries after a failed attempt.

    A fork gets a store connection of its own: threads and connections do not survive a fork. For
    the same reason there is no lock here: a fork may happen while another thread holds it.
    """

    def __init__(self, make: Callable[[], StoreConnection]) -> None:
        self._make = make
        self._tries: dict[int, PlainFuture[StoreConnection]] = {}
        self._ready: tuple[PlainFuture[StoreConnection], StoreConnection] | None = None
        self._specs: dict[str, PoolSpec] = {}

    def declare(self, spec: PoolSpec) -> None:
        """Declare a pool before the next call to the store."""
        # Replace the dictionary: another thread may be iterating over the old one, and `station`
        # detects new declarations by identity.
        self._specs = {**self._specs, spec.name: spec}

    async def redeclare(self, spec: PoolSpec) -> None:
        """Put other settings of a pool in force at once, or keep the current ones on failure."""
        before = self._specs
        self.declare(spec)
        tried = self._specs
        try:
            await self.station()
        except BaseException:
            if self._specs is tried:
                self._specs = before
            raise

    @property
    def is_open(self) -> bool:
        return self.current is not None

    @property
    def current(self) -> StoreConnection | None:
        """The store connection, if it is open."""
        ready = self._ready
        if ready is None or self._tries.get(os.getpid()) is not ready[0]:
            return None
        return ready[1]

    async def station(self) -> StoreConnection:
        station = self.current
        if station is None:
            station = await _result(self._begin())
        specs = self._specs
        if station.declared is not specs:
            await station.keeper.ask(lambda: station.declare(specs))
        return station

    def station_sync(self) -> StoreConnection:
        try:
            station = self._begin().result(OPEN_WITHIN)
        except TimeoutError:
            raise Unavailable("the store could not be opened in time; try again later") from None
        specs = self._specs
        if station.declared is not specs:
            station.keeper.ask_sync(lambda: station.declare(specs))
        return station

    async def close(self) -> None:
        """Close the store connection, if open; the next use opens it again."""
        opened = self._tries.pop(os.getpid(), None)
        if opened is not None:
            try:
                station = await _result(opened)
            except Exception:
                return  # It did not open; the callers that wanted it got the error.
            await station.close()

    def abandon(self) -> None:
        """Drop the open connection as the death of the process would: nothing more is written."""
        opened = self._tries.pop(os.getpid(), None)
        if opened is not None:
            opened.add_done_callback(_forsake)

    def _begin(self) -> PlainFuture[StoreConnection]:
        check_script("a store is opened")
        mine: PlainFuture[StoreConnection] = PlainFuture()
        found = self._tries.setdefault(os.getpid(), mine)
        if found is mine:
            try:
                self._start(mine)
            except (OSError, RuntimeError) as error:
                text = f"no thread or event loop is to be had for the store: {error}"
                self._fail(mine, Unavailable(text))
            except BaseException as error:
                self._fail(mine, error)
                raise
        return found

    def _start(self, opened: PlainFuture[StoreConnection]) -> None:
        station = self._make()
        specs = self._specs

        async def open_it() -> None:
            try:
                await station.open(specs)
            except BaseException as error:
                await station.abandon()
                self._fail(opened, error)
            else:
                self._ready = opened, station
                opened.set_result(station)

        station.keeper.do("open", open_it)

    def _fail(self, opened: PlainFuture[StoreConnection], error: BaseException) -> None:
        # Delete first: a caller that gets the error may try again at once.
        if self._tries.get(os.getpid()) is opened:
            del self._tries[os.getpid()]
        opened.set_exception(error)


async def _result(opened: PlainFuture[StoreConnection]) -> StoreConnection:
    """Wait for a shared future; cancelling this wait does not cancel the future."""
    reply = CallResult(asyncio.get_running_loop())
    opened.add_done_callback(partial(_pass_on, reply))
    assert isinstance(reply.future, asyncio.Future)
    station: StoreConnection = await reply.future
    return station


def _pass_on(reply: CallResult, opened: PlainFuture[StoreConnection]) -> None:
    error = opened.exception()
    station = None if error is not None else opened.result()
    assert reply.loop is not None
    with suppress(RuntimeError):
        # RuntimeError: that loop is closed, so nothing waits there.
        reply.loop.call_soon_threadsafe(reply.give, station, error)


def _forsake(opened: PlainFuture[StoreConnection]) -> None:
    if opened.exception() is None:
        opened.result().forsake()
