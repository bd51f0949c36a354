"""Map over a pool: one job per item, with a bounded window of jobs in the pool at a time."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, Future, Task
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Reversible,
)
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from poolhand.context import running
from poolhand.errors import Deadlock, PoolhandError, UsageError
from poolhand.pool.engine.work import Work
from poolhand.pool.options import name_of, where_to_run
from poolhand.pool.slots.attempt import Attempt
from poolhand.rules.queue.backpressure import capacity
from poolhand.rules.validation import FLAG, not_allowed, raise_faults

if TYPE_CHECKING:
    from poolhand.pool.options import Options
    from poolhand.pool.submitter import Submitter

A = TypeVar("A")
Items = Iterable[A] | AsyncIterable[A]


async def map_items(
    submitter: Submitter, fn: Callable[[Any], Any], items: Items[Any], return_exceptions: bool
) -> list[Any]:
    """Check the arguments of a `map` and run it."""
    submitter._engine().check_here()
    check_map(submitter, fn, items, return_exceptions)
    return await MapWindow(submitter, fn, return_exceptions).run(items)


def check_map(submitter: Submitter, fn: object, items: object, return_exceptions: object) -> None:
    """Raise UsageError if the arguments of a `map` are invalid under the submitter's options."""
    options, config = submitter._terms.options, submitter._config
    faults = map_faults(fn, items, return_exceptions, options.run_in, config.run_in)
    raise_faults(f"Pool {config.name!r}, map", faults + key_faults(options))


def key_faults(options: Options) -> list[str]:
    """Return an error if the options contain an idempotency key: all items would be one job."""
    if options.idempotency_key is None:
        return []
    return [
        f"idempotency_key={options.idempotency_key!r} is not allowed; a key stands for one job "
        "and every item has its own: submit them one by one, each with its key"
    ]


def window(slots: int, depth: int | None) -> int:
    """Return how many jobs of a map may be in a pool with these slots and queue capacity."""
    return slots + min(slots, slots if depth is None else depth)


def map_faults(
    fn: object,
    items: object,
    return_exceptions: object,
    wanted: str | None = None,
    usual: str | None = None,
) -> list[str]:
    """Return the errors in the arguments of a map; `wanted`, `usual` as in where_to_run."""
    faults = call_faults("fn", fn, "a function of one item", wanted, usual)
    if iscoroutine(items):
        items.close()
        faults.append(f"items is the coroutine {name_of(items)}(…); await it and pass its result")
    elif isinstance(items, type) or not (
        isinstance(items, Iterable | AsyncIterable) or hasattr(items, "__getitem__")
    ):
        faults.append(not_allowed("items", items, "an iterable or async iterable"))
    return faults + FLAG.faults("return_exceptions", return_exceptions)


def call_faults(
    option: str, fn: Any, allowed: str, wanted: str | None = None, usual: str | None = None
) -> list[str]:
    """Return the reasons why a callable cannot run as a job."""
    if iscoroutine(fn):
        fn.close()
        name = name_of(fn)
        return [f"{option} is the coroutine {name}(…); give the function itself: {name}"]
    if not callable(fn):
        return [not_allowed(option, fn, allowed)]
    try:
        where_to_run(fn, wanted, usual)
    except UsageError as error:
        return [f"{option}: {error.message}"]
    return []


def ask_to_stop(works: Reversible[Work]) -> None:
    """Cancel jobs; waiting jobs end at once."""
    # Newest first, so that none of them starts in a slot that an earlier one frees.
    for work in reversed(works):
        work.host.cancel(work)


class MapWindow:
    """The jobs of one map: an item is consumed when the window has room for its job.

    A separate task feeds the pool, so that the first failure can end it wherever it waits: for an
    item, for admission or for a job.
    """

    def __init__(
        self, submitter: Submitter, fn: Callable[[Any], Any], return_exceptions: bool
    ) -> None:
        self._submit = submitter.submit
        self._engine = submitter._engine()
        self._fn = fn
        self._keeps_errors = return_exceptions
        self._results: list[Any] = []
        self._open: dict[Work, int] = {}
        self._failure: BaseException | None = None
        self._stopping = False
        self._progress: Future[None] | None = None
        self._feeder: Task[None] | None = None

    async def run(self, items: Items[Any]) -> list[Any]:
        """Return the outcomes in the order of the items, or raise the first failure."""
        name = f"{self._engine.config.name}-map"
        feeder = self._feeder = self._engine.loop.create_task(self._feed(items), name=name)
        cancelled: CancelledError | None = None
        while not feeder.done():
            try:
                await asyncio.wait([feeder])
            except CancelledError as error:
                # On a second cancellation the feeder stops waiting for jobs that are slow to stop.
                cancelled = error
                self._stop(feeder)
        of_items = CancelledError() if feeder.cancelled() else feeder.exception()
        for failure in (cancelled, self._failure, of_items):
            if failure is not None:
                raise failure
        return self._results

    def _stop(self, feeder: Task[None]) -> None:
        # Cancel now, not when the feeder next runs: more of its jobs could start until then.
        self._stopping = True
        ask_to_stop(self._open)
        feeder.cancel()

    async def _feed(self, items: Items[Any]) -> None:
        source = aiter(items) if isinstance(items, AsyncIterable) else _each(items)
        try:
            await self._submit_all(source)
        finally:
            self._stopping = True
            left = list(self._open)
            ask_to_stop(left)
            try:
                if isinstance(source, AsyncGenerator):
                    await source.aclose()
            finally:
                for work in left:
                    await work._settled(limited=True)

    async def _submit_all(self, source: AsyncIterator[Any]) -> None:
        async for item in source:
            # Check again: while the source was awaited, a retry may have taken the room.
            await self._room()
            # A source may swallow the cancellation that should end it.
            if not self._stopping:
                await self._submit_item(item)
            await self._room()
            if self._stopping:
                return
        while self._open and not self._stopping:
            await self._next_end()

    async def _room(self) -> None:
        while not self._stopping and not self._has_room():
            await self._next_end()

    async def _submit_item(self, item: object) -> None:
        index = len(self._results)
        self._results.append(None)
        try:
            work = cast(Work, await self._submit(self._fn, item))
        except PoolhandError as error:
            self._failed(index, error)
        else:
            if not work.over:
                self._open[work] = index
                work.add_waiter().add_done_callback(partial(self._over, work))
                return
            self._note(index, work)
        if not self._stopping:
            # No await happened here; without a pause an endless source would block the loop.
            await asyncio.sleep(0)

    def _has_room(self) -> bool:
        """Return whether the window has room and the queue is not full of this map's own jobs.

        Jobs blocked by a session, a cap per key or a pause can fill the queue before the window.
        """
        desk = self._engine.desk
        slots = max(1, (desk.slots or 1) - self._engine.slots.stuck)
        depth = capacity(desk.policy)
        own = len(self._open)
        if own >= window(slots, depth):
            return False
        if not depth or desk.waiting < depth or own < depth:
            return True
        return sum(not isinstance(work.place, Attempt) for work in self._open) < depth

    async def _next_end(self) -> None:
        """Wait until a job ends; for deadlock detection, register the oldest as awaited."""
        progress = self._progress = self._engine.loop.create_future()
        if running.get() is None:
            await progress
            return
        oldest = next(iter(self._open))
        try:
            with self._engine.awaiting(oldest, progress):
                await progress
        except Deadlock as error:
            if oldest in self._open:
                await self._give_up(oldest, error)

    async def _give_up(self, work: Work, error: Deadlock) -> None:
        self._failed(self._open[work], error)
        if self._keeps_errors:
            # Its outcome is recorded: it must not run, nor be recorded again.
            del self._open[work]
            await work.cancel()

    def _over(self, work: Work, _: Future[None]) -> None:
        was_stopping = self._stopping
        index = self._open.pop(work, None)
        if index is not None:
            self._note(index, work)
        if self._stopping and not was_stopping and self._feeder is not None:
            self._stop(self._feeder)
        elif self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    def _note(self, index: int, work: Work) -> None:
        if work.failure is not None:
            work.failure.asked()
            self._failed(index, work.failure.error)
        else:
            self._results[index] = work.value

    def _failed(self, index: int, error: BaseException) -> None:
        if self._keeps_errors:
            self._results[index] = error
        elif not self._stopping:
            self._failure = error
            self._stopping = True


async def _each(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item
