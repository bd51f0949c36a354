"""The registry of the live pools of this process, and the class of durable pools."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse
from poolhand.rules.validation import instance_of

if TYPE_CHECKING:
    from poolhand.pool.pool import Pool

_live: dict[str, Pool] = {}
_serials = count(1)


@explain_misuse
def get_pool(name_or_id: str) -> Pool | None:
    """Return the live pool of that name or id, or None.

    Pools of several tenants can share a name here; each has a distinct name in its store.
    """
    instance_of(str, "a name or an id").require("get_pool: name_or_id", name_or_id)
    pools = list_pools()
    found = [one for one in pools if name_or_id in (one.known_as, one.id)]
    found = found or [one for one in pools if one.name == name_or_id]
    if len(found) > 1:
        names = ", ".join(repr(one.known_as) for one in found)
        raise UsageError(f"several live pools are named {name_or_id!r}; ask for one of {names}")
    return found[0] if found else None


def list_pools() -> list[Pool]:
    """Return the live pools in order of creation."""
    _let_orphans_go()
    return sorted(_live.values(), key=lambda pool: pool.serial)


def next_serial() -> int:
    """Return the serial number of the next pool of this process."""
    return next(_serials)


def check_free(name: str) -> None:
    _let_orphans_go()
    other = _live.get(name)
    if other is not None:
        raise UsageError(
            f"a pool named {name!r} is already live (id {other.id}); use get_pool({name!r}), "
            "drain it first, or choose another name"
        )


def register(pool: Pool) -> None:
    check_free(pool.known_as)
    _live[pool.known_as] = pool


def unregister(pool: Pool) -> None:
    if _live.get(pool.known_as) is pool:
        del _live[pool.known_as]


def _let_orphans_go() -> None:
    """Remove the pools that can never be drained, and release their resources."""
    for name, pool in list(_live.items()):
        if pool.is_orphan and _live.pop(name, None) is not None:
            pool.abandon()


_durable_makers: list[Callable[[], type]] = []


def offer_durable(maker: Callable[[], type]) -> None:
    """Register `maker`; it returns the class of durable pools when one is created."""
    _durable_makers[:] = [maker]


def durable_kind() -> type:
    """Return the class of durable pools."""
    if not _durable_makers:
        raise UsageError("durable pools need the whole package: import poolhand")
    return _durable_makers[0]()
