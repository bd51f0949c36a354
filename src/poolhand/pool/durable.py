"""Durable pools: which class they have, as told by whoever can make them."""

from __future__ import annotations

from collections.abc import Callable

from poolhand.errors import UsageError

_makers: list[Callable[[], type]] = []


def offer(maker: Callable[[], type]) -> None:
    """Let pools of a durable scope be of the class that `maker` returns when one is wanted."""
    _makers[:] = [maker]


def kind() -> type:
    """Return the class of durable pools."""
    if not _makers:
        raise UsageError("durable pools need the whole package: import poolhand")
    return _makers[0]()
