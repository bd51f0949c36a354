"""A process under test: it submits its share of the plan and works, as a user's program does.

python -c "from tests.faults.runner import run; run()" '{"lanes": [0, 1, 2, 3], "slots": 10}'

It continues after a kill of an earlier life: unacknowledged items are submitted again. It ends by
itself when the file `finish` exists and no work is left, or drains on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from poolhand import App, PoolhandError, Retry, Task, Ticket, fair_round_robin, subscribe
from poolhand.contract import Filter
from poolhand.runtime import Runtime
from poolhand.settings import Limits, Wire
from poolhand.stores.open import store_of
from poolhand.wire.limits import LIMITS
from tests.faults import bodies, outside
from tests.faults.load import Item, Plan, read_plan
from tests.faults.marked import mark_lock, mark_store
from tests.faults.marks import Marks
from tests.faults.telling import Telling

LOOK = 0.05
RETRY_FIRST = 0.1


def _together(item: Item) -> object:
    """Return what the items of one batch have in common."""
    return item.number if item.batch is None else ("batch", item.batch)


@dataclass(frozen=True)
class Role:
    """The role of a process: submits the items of its lanes, with pauses, and has slots to work.

    A `patient` one waits at its start for its store, and reports all the time whether it is
    ready. Amounts of 0 mean the default.
    """

    lanes: tuple[int, ...] = ()
    pause: float = 0.0
    slots: int = 10
    grace: float = 30.0
    persists: bool = True  # submits refused items again
    patient: bool = False
    payload: int = 0  # bytes that a payload may have
    descriptors: int = 0  # descriptors that it may have; all are taken for a moment at its start


class ShiftedRuntime(Runtime):
    """A runtime whose wall clock is moved by a file outside, in seconds."""

    def wall(self) -> datetime:
        return super().wall() + timedelta(seconds=shift())


def shift() -> float:
    try:
        return float((bodies.FOLDER / "wall").read_text())
    except (OSError, ValueError):
        return 0.0


def make_app(plan: Plan, payload: int) -> tuple[App, dict[tuple[str, str], Task[..., Any, Any]]]:
    """Return an app with the pools of a plan, and its tasks by pool and name."""
    limits = Limits(payload=payload) if payload else LIMITS
    made = App(os.environ["FAULTS_URL"], wire=Wire(limits=limits), runtime=ShiftedRuntime())
    for pool, cap in plan.caps.items():
        if pool in plan.fair:
            most = plan.key_caps.get(pool)
            made.pool(pool, max_concurrent=cap, queue=fair_round_robin(), max_per_key=most)
        else:
            made.pool(pool, max_concurrent=cap)
    pools = {item.pool for item in plan.items}
    tasks = {
        (pool, code.__name__): made.task(pool=pool, name=f"{pool}.{code.__name__}")(code)
        for pool in sorted(pools)
        for code in bodies.CODE
    }
    return made, tasks


class Submitters:
    """Submits the items of the lanes of this process, each lane in order."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._acks = outside.Lines(bodies.FOLDER / outside.ACKS)
        plan = read_plan(bodies.FOLDER / outside.PLAN)
        self.app, self._tasks = make_app(plan, role.payload)
        known = outside.read(bodies.FOLDER / outside.ACKS)
        acked = {line["number"] for line in known if line["what"] == "ack"}
        self.numbers = [item.number for item in plan.items]
        self._tries = sum(line["what"] == "asked" for line in known)
        self._items = [item for item in plan.items if item.number not in acked]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lane in self._role.lanes:
                group.create_task(self._lane([item for item in self._items if item.lane == lane]))

    async def _lane(self, items: Iterable[Item]) -> None:
        for _, some in groupby(items, _together):
            together = list(some)
            while not await self._hand_in(together) and self._role.persists:
                await bodies.while_passing(RETRY_FIRST)
            await bodies.while_passing(self._role.pause)

    async def _hand_in(self, items: list[Item]) -> bool:
        """Submit, and record the result; that of a killed submit stays unknown."""
        self._tries += 1
        # Stored with the job, so that each job can be traced to its try.
        mark = f"{bodies.LIFE}/{self._tries}"
        numbers = [item.number for item in items]
        began = time.monotonic()
        for number in numbers:
            self._acks.write("asked", number=number, mark=mark, life=bodies.LIFE)
        try:
            tickets = await self._submit(items, mark)
        except PoolhandError as error:
            took = time.monotonic() - began
            about = {"error": type(error).__name__, "took": took, "last": not self._role.persists}
            for number in numbers:
                self._acks.write("refused", number=number, mark=mark, **about)
            return False
        for number, ticket in zip(numbers, tickets, strict=True):
            self._acks.write("ack", number=number, mark=mark, job=ticket.id)
        return True

    async def _submit(self, items: list[Item], mark: str) -> list[Ticket[Any]]:
        first = items[0]
        task = self._tasks[first.pool, first.task].with_options(
            # A session has one user for all its turns: there the mark is the key.
            key=mark if first.session is not None else first.key or None,
            user=mark if first.session is None else None,
            session=first.session,
            idempotency_key=first.idempotency_key,
            delay=first.delay,
            run_at=self._moment(first.run_at),
            retry=Retry(attempts=first.attempts, first=RETRY_FIRST),
        )
        if first.batch is None:
            luggage = (bodies.blob(first.call, first.size),) if first.size else ()
            return [await task.submit(first.call, first.seconds, *luggage)]
        return await task.submit_many([(item.number, item.seconds) for item in items])

    def _moment(self, seconds: float | None) -> Any:
        return (
            None if seconds is None else self.app.core.runtime.wall() + timedelta(seconds=seconds)
        )


class Watch:
    """Knows when a process has no more work: all is submitted, and the store says it is over.

    It ends the process at once when the harness is gone.
    """

    def __init__(self, app: App, numbers: Iterable[int]) -> None:
        self._app = app
        self._missing = set(numbers)
        self._acks = outside.Tail(bodies.FOLDER / outside.ACKS)

    async def finished(self) -> None:
        harness = int(os.environ["FAULTS_HARNESS"])
        while not await self._is_over():
            await bodies.while_passing(LOOK)
            if os.getppid() != harness:
                os._exit(1)

    async def _is_over(self) -> bool:
        if not (bodies.FOLDER / "finish").exists():
            return False
        self._missing -= {one["number"] for one in self._acks.news() if _is_answer(one)}
        if self._missing:
            return False
        try:
            connection = await self._app.core.connection()
            counts = await connection.thread.ask(lambda: connection.store.count(Filter()))
        except PoolhandError:
            return False
        return all(status.terminal for status in counts)


def _is_answer(line: outside.Line) -> bool:
    """Return whether an item is accepted, or given up."""
    return line["what"] == "ack" or bool(line.get("last"))


async def main(role: Role) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    submitters = Submitters(role)
    telling = Telling()
    subscribe(telling.event)
    if role.descriptors:
        with bodies.no_descriptors():
            await telling.ready(submitters.app)
    while role.patient and not await telling.ready(submitters.app):
        await bodies.while_passing(LOOK)
    async with submitters.app as app, AsyncExitStack() as stack:
        if role.slots:
            await stack.enter_async_context(app.worker(role.slots, drain_timeout=role.grace))
        works = [stop.wait(), Watch(app, submitters.numbers).finished(), submitters.run()]
        telling.descriptors()
        await enough(*works, *([telling.readiness(app)] if role.patient else []))
        telling.descriptors()


async def enough(*works: Coroutine[Any, Any, object]) -> None:
    """Run all of these until one of the first two has ended, or one has failed."""
    todo = [asyncio.create_task(work) for work in works]
    pending = set(todo)
    try:
        while pending.issuperset(todo[:2]):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in pending:
            task.cancel()


def mark_life() -> None:
    """Have this process mark its phases."""
    bodies.marks = Marks(bodies.FOLDER / f"marks-{bodies.LIFE}")
    if os.environ.get("FAULTS_PLANT"):
        from tests.faults.planted import plant

        plant()
    mark_store(type(store_of(os.environ["FAULTS_URL"], Runtime())), bodies.marks)
    mark_lock(bodies.marks)


def run() -> None:
    """Run a process under test, as the first argument says."""
    given = json.loads(sys.argv[1])
    role = Role(**{**given, "lanes": tuple(given.get("lanes", ()))})
    mark_life()
    if role.descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (role.descriptors, role.descriptors))
    asyncio.run(main(role))
