"""Submitting to a durable pool: the same verbs, with a store behind them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

from poolhand.errors import UsageError
from poolhand.pool.fanout import bounded_map
from poolhand.pool.options import Options, Terms, terms
from poolhand.pool.submitter import Submitter
from poolhand.pool.ticket import Ticket


class DurableSubmitter(Submitter):
    """Takes work under one set of options and keeps it."""

    _durable = True

    @abstractmethod
    async def hand_in(
        self, options: Terms, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Ticket[Any]:
        """Keep a call and return its ticket."""

    async def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Ticket[Any]:
        """Hand in a call and return its ticket: from then on it is kept."""
        return await self.hand_in(self._terms, fn, args, kwargs)

    def submit_nowait(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Ticket[Any]:
        raise UsageError(
            f"pool {self._config.name!r} is durable, and a store cannot answer without waiting; "
            "use await pool.submit(…)"
        )

    async def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Submit and wait: the value, or the exception the job raised."""
        return await (await self.submit(fn, *args, **kwargs))

    async def map(
        self,
        fn: Callable[[Any], Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Run `fn(item)` for every item, each as a kept job; values in the order of items."""

        async def one(item: Any) -> Any:
            return await self.run(fn, item)

        limit = 2 * self._config.max_concurrent
        values: list[Any] = await bounded_map(
            one, items, limit=limit, return_exceptions=return_exceptions
        )
        return values

    def _view(self, options: Options) -> DurableSubmitter:
        return DurableView(self, options)


class DurableView(DurableSubmitter):
    """A durable pool seen through options of its own."""

    def __init__(self, origin: DurableSubmitter, options: Options) -> None:
        self._config = origin._config
        self._terms = terms(options, origin._terms.draft.pool, origin._terms.draft.pool_id)
        self._origin = origin

    async def hand_in(
        self, options: Terms, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Ticket[Any]:
        return await self._origin.hand_in(options, fn, args, kwargs)
