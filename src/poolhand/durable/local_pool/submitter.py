"""Submits to a durable pool: the methods of a pool, with a store behind them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterable, Callable, Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace

from poolhand.durable.client.stored_map import map_stored, map_window
from poolhand.durable.client.task import Task
from poolhand.errors import UsageError
from poolhand.pool.mapping import check_map
from poolhand.pool.options import Options, SubmitTerms, terms
from poolhand.pool.submitter import Submitter
from poolhand.pool.ticket import Ticket
from poolhand.rules.validation import shown


class DurableSubmitter(Submitter):
    """Submits work with one set of options, as stored jobs."""

    _durable = True

    @abstractmethod
    async def hand_in(
        self,
        options: SubmitTerms,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Ticket[Any]:
        """Store a call and return its ticket."""

    async def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Ticket[Any]:
        """Submit a call and return its ticket; from then on the job survives crashes."""
        return await self.hand_in(self._terms, fn, args, kwargs)

    def submit_nowait(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Ticket[Any]:
        raise UsageError(
            f"pool {self._config.name!r} is durable, and a store cannot answer without waiting; "
            "use await pool.submit(…)"
        )

    async def submit_or_refuse(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Ticket[Any]:
        return await self.hand_in(replace(self._terms, waits=False), fn, args, kwargs)

    async def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Submit and wait; return the value, or raise the exception of the job."""
        return await (await self.submit(fn, *args, **kwargs))

    async def map(
        self,
        fn: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Run `fn(item)` for every item, each as a stored job; return values in the order of items.

        The first failure ends it as in a pool in memory: no further item is taken, its jobs that
        wait or run are cancelled and over, then the error is raised.
        """
        check_map(self, fn.code.fn if isinstance(fn, Task) else fn, items, return_exceptions)
        return await map_stored(
            partial(self.submit, fn),
            items,
            limit=map_window(self._config.max_concurrent, self._config.backpressure),
            return_exceptions=return_exceptions,
        )

    def _view(self, options: Options) -> DurableSubmitter:
        tenant = self._config.scope.tenant
        if tenant is not None and options.tenant not in (None, tenant):
            raise UsageError(
                f"Pool {self._config.name!r}, with_options: tenant={shown(options.tenant)} is not "
                f"allowed; the pool is that of tenant {shown(tenant)}, and so are its jobs: leave "
                "it out"
            )
        return DurablePoolView(self, options if tenant is None else replace(options, tenant=tenant))


class DurablePoolView(DurableSubmitter):
    """A durable pool with other submit options."""

    def __init__(self, origin: DurableSubmitter, options: Options) -> None:
        self._config = origin._config
        self._terms = terms(options, origin._terms.draft.pool, origin._terms.draft.pool_id)
        self._origin = origin

    async def hand_in(
        self,
        options: SubmitTerms,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Ticket[Any]:
        return await self._origin.hand_in(options, fn, args, kwargs)
