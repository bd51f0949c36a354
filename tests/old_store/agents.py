"""The app of the old store: the same tasks when it was written and when it is read.

It uses only what both versions of poolhand have. Code that runs writes a line to a ledger first, so
that a reader with its own ledger sees what ran again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from poolhand import (
    App,
    Retry,
    Session,
    Snooze,
    bounded,
    current_job,
    emit,
    ring_buffer,
    step,
    tool,
)
from poolhand.runtime import Runtime
from poolhand.settings import KeyRing, Wire

SECRET = {"k1": b"the secret of the old store, 32 b"}
LONG = 100.0  # how long scheduled jobs wait


class Somewhere(Runtime):
    """A process of a named machine; `at` is its wall clock at the start."""

    def __init__(self, host: str, boot: str = "first", at: datetime | None = None) -> None:
        super().__init__()
        self._host = host
        self._boot = f"{boot} boot of {host}"
        self._ahead = timedelta() if at is None else at - datetime.now(UTC)

    def wall(self) -> datetime:
        return super().wall() + self._ahead

    def identity(self) -> tuple[str, str, int, str]:
        # Above the largest pid of Linux: no live process has it.
        return self._host, self._boot, 4_194_305, "1"


class World:
    """The code of jobs: each line of the ledger is one action; some hang at theirs."""

    def __init__(self, ledger: Path, hangs: Collection[str] = (), mended: bool = True) -> None:
        self.ledger = ledger
        self.hangs = hangs
        self.mended = mended

    async def reach(self, what: str) -> None:
        with self.ledger.open("a") as file:
            file.write(f"{what}\n")
        if what in self.hangs:
            await asyncio.Event().wait()

    def lines(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []


Tasks = dict[str, Any]  # by name, which is that of their function or of the pool


def plain(app: App, world: World) -> Tasks:
    """Declare tasks that end, fail, are retried and wait."""

    @app.task(pool="plain", name="work")
    async def work(word: str) -> str:
        await world.reach(f"work {word}")
        return word

    @app.task(pool="plain", name="fails", retry=None)
    async def fails(word: str) -> str:
        await world.reach(f"fails {word}")
        if not world.mended:
            raise ValueError(f"{word} is broken")
        return word

    @app.task(pool="plain", name="flaky", retry=Retry(attempts=3, first=LONG, jitter=0.0))
    async def flaky(word: str) -> str:
        await world.reach(f"flaky {word}")
        if not world.mended:
            raise ConnectionError("not yet")
        return word

    @app.task(pool="plain", name="snoozes")
    async def snoozes(word: str) -> str:
        await world.reach(f"snoozes {word}")
        if not world.mended:
            raise Snooze(LONG)
        return word

    @app.task(pool="plain", name="tells")
    async def tells(word: str) -> str:
        await emit(f"{word} begins")
        await world.reach(f"tells {word}")
        await emit(f"{word} ends")
        return word

    return {task.name: task for task in (work, fails, flaky, snoozes, tells)}


def special(app: App, world: World) -> Tasks:
    """Declare tasks of pools with rules: a cap per key, a bound, a ring; and a scheduled one."""
    app.pool("keyed", max_concurrent=4, max_per_key=1)
    app.pool("full", max_concurrent=1, backpressure=bounded(1))
    app.pool("ring", max_concurrent=1, backpressure=ring_buffer(1))
    tasks: Tasks = {}

    for pool in ("keyed", "full", "ring"):

        @app.task(pool=pool, name=f"work_{pool}")
        async def work(word: str) -> str:
            job: Any = current_job()
            await world.reach(f"{job.name} {word}")
            return word

        tasks[work.name] = work

    @app.every(3600.0)
    @app.task(pool="plain", name="tick")
    async def tick() -> None:
        await world.reach("tick")

    return tasks


def careful(app: App, world: World) -> Tasks:
    """Declare tasks with steps and tools, which must not repeat finished work."""

    async def first(word: str) -> str:
        await world.reach(f"first {word}")
        return f"first of {word}"

    async def second(word: str) -> str:
        await world.reach(f"second {word}")
        return f"second of {word}"

    @tool(effect="once", name="pay")
    async def pay(order: str, cents: int) -> str:
        await world.reach(f"pay {order}")
        return f"paid {cents} for {order}"

    @app.task(pool="careful", name="crawl")
    async def crawl(word: str) -> list[str]:
        return [await step("first", first, word), await step("second", second, word)]

    @app.task(pool="careful", name="buys")
    async def buys(order: str) -> str:
        said = await pay(order, 500)
        await world.reach(f"bought {order}")
        return said

    @app.task(pool="careful", name="buys_later")
    async def buys_later(order: str) -> str:
        said = await pay(order, 700)
        if not world.mended:
            raise Snooze(LONG)
        return said

    @app.agent(pool="chat", name="chat")
    async def chat(session: Session, message: str) -> str:
        session.state["messages"].append(message)
        await session.save()
        await world.reach(f"chat {message}")
        return f"{len(session.state['messages'])} said"

    return {"crawl": crawl, "buys": buys, "buys_later": buys_later, "chat": chat}


def elsewhere(app: App, world: World) -> Tasks:
    """Declare a task that not every process has."""

    @app.task(pool="plain", name="elsewhere")
    async def task(word: str) -> str:
        await world.reach(f"elsewhere {word}")
        return word

    return {"elsewhere": task}


def make_app(url: str, world: World, runtime: Runtime) -> tuple[App, Tasks]:
    """Return the app on a store, without the task that not every process has."""
    app = App(url, runtime=runtime)
    return app, {**plain(app, world), **special(app, world), **careful(app, world)}


def make_signed_app(url: str, world: World, runtime: Runtime, ring: KeyRing) -> tuple[App, Tasks]:
    """Return another app on the store, which signs its payloads."""
    app = App(url, runtime=runtime, wire=Wire(ring=ring))

    @app.task(pool="signed", name="signs")
    async def signs(word: str) -> str:
        await world.reach(f"signs {word}")
        return word

    return app, {"signs": signs}
