"""Helpers of the tests of durable jobs: apps over a store of the test, machines, store faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from poolhand.app import App
from poolhand.contract import Claim, Stored
from poolhand.durable.connection.connection import store_proxy
from poolhand.errors import Unavailable
from poolhand.observe.events import Events
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.store import MemoryStore
from poolhand.testing import SeededRuntime
from tests.unit.pool.support import Heard, seeded, until

__all__ = ["Heard", "Machine", "SharedStore", "StoreApp", "seeded", "until"]


class StoreApp(App):
    """An app over an existing store; each app is on a machine of its own."""

    def __init__(
        self, store: SharedStore, runtime: Runtime, *, events: Events | None = None, **options: Any
    ) -> None:
        if isinstance(runtime, SeededRuntime):
            store.machines += 1
            runtime = Machine(runtime, f"host-{store.machines}")
        super().__init__("memory://", runtime=runtime, events=events, **options)
        self.store = store
        self.core.make_store = lambda: self.store


class Machine(SeededRuntime):
    """Another machine on the same virtual clock: its processes cannot be inspected from here."""

    def __init__(self, runtime: SeededRuntime, host: str) -> None:
        super().__init__(runtime.loop)
        # One random source for all: two with the same seed would make the same names.
        self.random = runtime.random
        self._origin = runtime
        self._host = host

    def wall(self) -> datetime:
        return self._origin.wall()

    def identity(self) -> tuple[str, str, int, str]:
        return self._host, f"boot of {self._host}", 1, "0"


class SharedStore(MemoryStore):
    """A memory store that outlives its apps, as a file does, and can be unavailable.

    While it is `down` every verb raises; verbs that had begun are done. Each verb may take
    `lag()` seconds before it begins, and again before it returns.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._runtime = runtime
        self.down = False
        self.adds = self.machines = 0
        self.lag: Callable[[], float] | None = None

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Query the tables directly, as a person with a SQL shell does."""
        return self._file.read(lambda connection: connection.execute(text, values).fetchall())

    async def travel(self) -> None:
        if self.lag is not None:
            assert isinstance(self._runtime, SeededRuntime)
            await _take(self._runtime, self.lag())

    def check_up(self) -> None:
        if self.down:
            raise Unavailable("the store is away")

    async def close(self) -> None:
        """Stay open for the other apps."""


async def _take(runtime: SeededRuntime, seconds: float) -> None:
    await asyncio.sleep(seconds)


def _verb(name: str) -> Callable[..., Any]:
    inner = getattr(MemoryStore, name)

    async def verb(self: SharedStore, *args: Any, **kwargs: Any) -> Any:
        await self.travel()
        self.check_up()
        self.adds += name == "add"
        answer = await inner(self, *args, **kwargs)
        await self.travel()
        return answer

    return verb


VERBS = (
    "open", "check", "declare", "pools", "add", "replace", "cancel", "enroll", "extend", "leases",
    "expire_owner", "get", "find", "count", "promote", "prune", "get_document", "put", "scan",
    "append", "read", "trim",
)  # fmt: skip
for _name in VERBS:
    setattr(SharedStore, _name, _verb(_name))


async def until_later(condition: Callable[[], bool], runtime: SeededRuntime) -> None:
    """Advance virtual time until the condition holds."""
    while not condition():  # noqa: ASYNC110 - there is no event for "anything changed"
        await asyncio.sleep(0.1)


async def stored(app: App, id: str) -> Stored:
    """Return the stored record of a job."""
    connection = await app.core.connection()
    found = (await connection.thread.ask(lambda: connection.store.get([id])))[0]
    assert found is not None
    return found


async def bury_all(app: App) -> list[Claim]:
    """Expire all leases in the store of an app, as a reaper does that counts it as dead."""
    connection = await app.core.connection()

    async def expire_owner() -> list[Claim]:
        leases = await connection.store.leases()
        return [
            claim
            for lease in leases
            for claim in await connection.store.expire_owner(lease.owner.id, lease.renewal)
        ]

    return await connection.thread.ask(expire_owner)


class Gate:
    """A job that waits until the test releases it."""

    def __init__(self) -> None:
        self.entered = 0
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        self.entered += 1
        await self.opened.wait()


async def connected(app: App, workers: int) -> None:
    """Wait until the store of an app knows so many workers, with what they publish."""
    store = store_proxy(app.core)
    while workers != sum(one.owner.catalogue is not None for one in await store.leases()):  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0)
