"""Durable pools: which class they have, as told by whoever can make them."""

from __future__ import annotations

from poolhand.errors import UsageError

_kinds: list[type] = []


def offer(kind: type) -> None:
    """Let pools of a durable scope be of this class."""
    _kinds[:] = [kind]


def kind() -> type:
    if not _kinds:
        raise UsageError("durable pools need the whole package: import poolhand")
    return _kinds[0]
