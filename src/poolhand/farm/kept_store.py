"""A store as seen from outside its keeper."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from poolhand.contract import Store
from poolhand.farm.ticket import Opened


class _KeptStore:
    """Passes every verb on to the keeper and brings its answer back, to whatever loop asks."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        async def ask(*args: Any, **kwargs: Any) -> Any:
            station = await self._opened.station()
            return await station.keeper.ask(lambda: getattr(station.store, verb)(*args, **kwargs))

        return ask


def kept_store(opened: Opened) -> Store:
    """Return the store of a station, to be asked from any event loop.

    It is opened and closed with its station; signals are not given here.
    """
    return cast(Store, _KeptStore(opened))
