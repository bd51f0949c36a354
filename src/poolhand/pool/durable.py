"""The class of durable pools, registered by the package that implements them."""

from __future__ import annotations

from collections.abc import Callable

from poolhand.errors import UsageError

_makers: list[Callable[[], type]] = []


def offer(maker: Callable[[], type]) -> None:
    """Register `maker`; it returns the class of durable pools when one is created."""
    _makers[:] = [maker]


def kind() -> type:
    """Return the class of durable pools."""
    if not _makers:
        raise UsageError("durable pools need the whole package: import poolhand")
    return _makers[0]()
