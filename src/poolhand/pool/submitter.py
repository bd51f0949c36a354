"""Submitting: the methods that add work to a pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, ParamSpec, TypeVar, overload

from poolhand.misuse import explain_misuse
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.engine import Engine
from poolhand.pool.engine.work import Work
from poolhand.pool.mapping import map_items
from poolhand.pool.options import Options, SubmitTerms, terms, with_changes
from poolhand.pool.ticket import Ticket
from poolhand.rules.outcome import Retry
from poolhand.rules.queue.backpressure import Bounded
from poolhand.rules.validation import Seconds

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class _Unset:
    def __repr__(self) -> str:
        return "…"


UNSET: Any = _Unset()


def chosen(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the caller passed to `with_options`, out of all its parameters."""
    named = {**given, **given["fairness"]}
    return {
        name: value
        for name, value in named.items()
        if value is not UNSET and name not in ("self", "fairness")
    }


@explain_misuse
class Submitter:
    """Submits work under one set of options: a pool, or the view `with_options` returns."""

    _config: PoolConfig
    _terms: SubmitTerms
    _durable = False

    def _engine(self) -> Engine:
        raise NotImplementedError

    @overload
    async def submit(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Ticket[T]: ...

    @overload
    async def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Ticket[T]: ...

    async def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Ticket[Any]:
        """Submit a call and return its ticket; waits only if the backpressure policy blocks."""
        engine = self._engine()
        work = engine.intake.offer(fn, args, kwargs, self._terms, True)
        if work.place is engine.desk.blocked_submitters:
            await has_place(engine, work)
        return work

    @overload
    def submit_nowait(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Ticket[T]: ...

    @overload
    def submit_nowait(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Ticket[T]: ...

    def submit_nowait(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Ticket[Any]:
        """Submit a call without waiting; raise PoolFull where `submit` would wait."""
        return self._engine().intake.offer(fn, args, kwargs, self._terms, False)

    async def submit_or_refuse(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Ticket[Any]:
        """Submit a call, to a store as well; raise PoolFull where `submit` would wait."""
        return self.submit_nowait(fn, *args, **kwargs)

    @overload
    async def run(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...

    @overload
    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Submit and wait; return the value, or raise the exception of the job."""
        engine = self._engine()
        work = engine.intake.offer(fn, args, kwargs, self._terms, True)
        if work.place is engine.desk.blocked_submitters:
            await has_place(engine, work)
        return await work

    @overload
    async def map(
        self,
        fn: Callable[[A], Awaitable[T]],
        items: Iterable[A] | AsyncIterable[A],
        *,
        return_exceptions: Literal[False] = False,
    ) -> list[T]: ...

    @overload
    async def map(
        self,
        fn: Callable[[A], T],
        items: Iterable[A] | AsyncIterable[A],
        *,
        return_exceptions: Literal[False] = False,
    ) -> list[T]: ...

    @overload
    async def map(
        self,
        fn: Callable[[A], Awaitable[T]],
        items: Iterable[A] | AsyncIterable[A],
        *,
        return_exceptions: bool,
    ) -> list[T | BaseException]: ...

    @overload
    async def map(
        self,
        fn: Callable[[A], T],
        items: Iterable[A] | AsyncIterable[A],
        *,
        return_exceptions: bool,
    ) -> list[T | BaseException]: ...

    async def map(
        self,
        fn: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Run `fn(item)` for every item, each as a job; return the values in the order of items.

        Items are consumed as there is room: at most twice as many jobs as the pool has slots are in
        it at a time, and never more than its queue can hold, so `items` may be huge or endless.
        The first failure ends the map: no further item is consumed, its waiting and running jobs
        are cancelled and awaited, an async generator is closed, then the error is raised. The same
        happens when the caller is cancelled or `items` raises. With `return_exceptions`, errors
        take the place of values, including those of refused submits. `map` does not accept an
        idempotency key.
        """
        return await map_items(self, fn, items, return_exceptions)

    def with_options(
        self,
        *,
        priority: int = UNSET,
        key: str | None = UNSET,
        idempotency_key: str | None = UNSET,
        rerun_failed: bool = UNSET,
        session: str | None = UNSET,
        tenant: str | None = UNSET,
        user: str | None = UNSET,
        timeout: Seconds | None = UNSET,
        soft_timeout: Seconds | None = UNSET,
        retry: Retry | None = UNSET,
        run_in: str | None = UNSET,
        delay: Seconds | None = UNSET,
        run_at: datetime | None = UNSET,
        expires: Seconds | None = UNSET,
        cancel_with_caller: bool = UNSET,
        on_crash: str = UNSET,
        **fairness: str | None,
    ) -> Submitter:
        """Return a view of this pool that submits with these options.

        `fairness` is the fairness field of the pool's strategy, such as `tenant_id="acme"`.
        """
        changes = chosen(locals())
        options = with_changes(self._terms.options, self._config, changes, self._durable)
        return self._view(options)

    def _view(self, options: Options) -> Submitter:
        return SubmitterView(self, options)


class SubmitterView(Submitter):
    """A pool with submit options of its own; cheap to create, safe to keep."""

    __slots__ = ("_config", "_engine", "_terms")

    def __init__(self, origin: Submitter, options: Options) -> None:
        self._config = origin._config
        self._terms = terms(options, origin._terms.draft.pool, origin._terms.draft.pool_id)
        self._engine = origin._engine  # type: ignore[method-assign]


async def has_place(engine: Engine, work: Work) -> Work:
    """Wait until the work is admitted and return it; raise if the pool refuses it."""
    if work.place is not engine.desk.blocked_submitters:
        return work
    policy = engine.config.backpressure
    limit = policy.wait_timeout if isinstance(policy, Bounded) else None
    future = engine.intake.park(work)
    try:
        if limit is None:
            with engine.awaiting(work, future):
                await future
        else:
            async with asyncio.timeout(limit):
                await future
    except TimeoutError:
        if work.place is engine.desk.blocked_submitters:
            raise engine.intake.full() from None
    except BaseException:
        engine.intake.withdraw(work)
        raise
    finally:
        engine.intake.leave(work, future)
    if not work.accepted:
        raise engine.intake.drained()
    return work
