"""The pools that live in this process."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from poolhand.errors import UsageError

if TYPE_CHECKING:
    from poolhand.pool.pool import Pool

_live: dict[str, Pool] = {}
_serials = count(1)


def get_pool(name_or_id: str) -> Pool | None:
    """Return the live pool of that name or id, None when there is none."""
    return next((one for one in list_pools() if name_or_id in (one.name, one.id)), None)


def list_pools() -> list[Pool]:
    """Return the live pools in the order they were created."""
    live = (pool for pool in _live.values() if not pool.is_orphan)
    return sorted(live, key=lambda pool: pool.serial)


def next_serial() -> int:
    """Return the number of the next pool of this process."""
    return next(_serials)


def check_free(name: str) -> None:
    other = _live.get(name)
    if other is not None and other.is_orphan:
        del _live[name]
    elif other is not None:
        raise UsageError(
            f"a pool named {name!r} is already live (id {other.id}); use get_pool({name!r}), "
            "drain it first, or choose another name"
        )


def register(pool: Pool) -> None:
    check_free(pool.name)
    _live[pool.name] = pool


def unregister(pool: Pool) -> None:
    if _live.get(pool.name) is pool:
        del _live[pool.name]
