"""A process under test: it submits its share of the plan and works, as the program of a user does.

    python -m tests.faults.runner '{"lanes": [0, 1, 2, 3], "slots": 10}'

It goes on where an earlier life of it was killed: what was not acknowledged is submitted again. It
ends by itself when the file `finish` is there and nothing is left to do, or in good order on
SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from itertools import groupby
from typing import Any

from poolhand import App, PoolhandError, Retry, Ticket
from poolhand.contract import Filter
from poolhand.stores.lock import FileLock
from poolhand.stores.sqlite import SqliteStore
from tests.faults import outside, tasks
from tests.faults.load import Item, read_plan
from tests.faults.marks import Marks

LOOK = 0.05
RETRY_FIRST = 0.1


@dataclass(frozen=True)
class Role:
    """What a process does: hands in the items of its lanes, with pauses; has slots to work."""

    lanes: tuple[int, ...] = ()
    pause: float = 0.0
    slots: int = 10
    grace: float = 30.0
    persists: bool = True  # submits again what was refused
    finishes: bool = True  # ends when the work is done


def install(marks: Marks) -> None:
    """Have the process mark what it is in the middle of."""

    def during(verb: Callable[..., Awaitable[Any]], *phases: str) -> Callable[..., Any]:
        @wraps(verb)
        async def marked(*args: Any, **kwargs: Any) -> Any:
            with marks.during(*phases):
                return await verb(*args, **kwargs)

        return marked

    replace = SqliteStore.replace

    @wraps(replace)
    async def marked_replace(store: Any, changes: Any, wanted: Any = None) -> Any:
        phases = [name for name, what in (("settle", changes), ("claim", wanted)) if what]
        with marks.during(*phases):
            return await replace(store, changes, wanted)

    setattr(SqliteStore, "add", during(SqliteStore.add, "add"))
    setattr(SqliteStore, "claim", during(SqliteStore.claim, "claim"))
    setattr(SqliteStore, "replace", marked_replace)
    _install_lock(marks)


def _install_lock(marks: Marks) -> None:
    take, release = FileLock.take, FileLock.release

    def marked_take(self: FileLock, *args: Any) -> bool:
        taken = take(self, *args)
        if taken:
            marks.enter("lock")
        return taken

    def marked_release(self: FileLock) -> None:
        # Before: what is marked is held.
        if "lock" in marks.now():
            marks.leave("lock")
        release(self)

    setattr(FileLock, "take", marked_take)
    setattr(FileLock, "release", marked_release)


class Submitters:
    """Hands in what the plan gives to the lanes of this process, each lane one after the other."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._acks = outside.Lines(tasks.FOLDER / outside.ACKS)
        plan = read_plan(tasks.FOLDER / outside.PLAN)
        self.app, self._tasks = tasks.make_app(plan)
        known = outside.read(tasks.FOLDER / outside.ACKS)
        acked = {line["number"] for line in known if line["what"] == "ack"}
        self._tries = sum(line["what"] == "asked" for line in known)
        self._items = [item for item in plan.items if item.number not in acked]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lane in self._role.lanes:
                group.create_task(self._lane(item for item in self._items if item.lane == lane))

    async def _lane(self, items: Iterable[Item]) -> None:
        for _, some in groupby(items, lambda item: item.batch or -item.number):
            together = list(some)
            while not await self._hand_in(together) and self._role.persists:
                await tasks.while_passing(RETRY_FIRST)
            await tasks.while_passing(self._role.pause)

    async def _hand_in(self, items: list[Item]) -> bool:
        """Submit, and write down what came of it; what comes of a killed one stays unknown."""
        self._tries += 1
        # The store keeps it with the job, so that each can be traced to the try it came from.
        mark = f"{tasks.LIFE}/{self._tries}"
        numbers = [item.number for item in items]
        began = time.monotonic()
        for number in numbers:
            self._acks.write("asked", number=number, mark=mark, life=tasks.LIFE)
        try:
            tickets = await self._submit(items, mark)
        except PoolhandError as error:
            took = time.monotonic() - began
            for number in numbers:
                self._acks.write(
                    "refused", number=number, mark=mark, error=type(error).__name__, took=took
                )
            return False
        for number, ticket in zip(numbers, tickets, strict=True):
            self._acks.write("ack", number=number, mark=mark, job=ticket.id)
        return True

    async def _submit(self, items: list[Item], mark: str) -> list[Ticket[Any]]:
        first = items[0]
        task = self._tasks[first.pool, first.task].with_options(
            key=first.key or None,
            session=first.session,
            idempotency_key=first.idempotency_key,
            delay=first.delay,
            run_at=self._moment(first.run_at),
            retry=Retry(attempts=first.attempts, first=RETRY_FIRST),
            user=mark,
        )
        if first.batch is None:
            return [await task.submit(first.number, first.seconds)]
        return await task.submit_many([(item.number, item.seconds) for item in items])

    def _moment(self, seconds: float | None) -> Any:
        return None if seconds is None else self.app.runtime.wall() + timedelta(seconds=seconds)


async def finished(app: App) -> None:
    """Wait until the harness wants the end and no job is left to be done."""
    while True:
        await tasks.while_passing(LOOK)
        if (tasks.FOLDER / "finish").exists():
            station = await app.station()
            counts = await station.keeper.ask(lambda: station.store.count(Filter()))
            if all(status.terminal for status in counts):
                return


async def main(role: Role) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    submitters = Submitters(role)
    async with submitters.app as app, AsyncExitStack() as stack:
        if role.slots:
            await stack.enter_async_context(app.worker(role.slots, drain_timeout=role.grace))
        waits = [asyncio.create_task(stop.wait())]
        if role.finishes:
            waits.append(asyncio.create_task(finished(app)))
        handing_in = asyncio.create_task(submitters.run())
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in (*waits, handing_in):
            if not task.cancel() and not task.cancelled():
                task.result()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    tasks.marks = Marks(tasks.FOLDER / f"marks-{tasks.LIFE}")
    install(tasks.marks)
    asyncio.run(main(Role(**{**given, "lanes": tuple(given.get("lanes", ()))})))
