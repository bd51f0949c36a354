"""What is declared of a pool, as every process that shares it must know it."""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct

from poolhand.rules.backpressure import Policy, Unbounded
from poolhand.rules.rank import Priority, Strategy


class PoolSpec(Struct, frozen=True):
    """The rules of one stored pool; without `slots` it has no cap of its own."""

    name: str
    id: str
    slots: int | None = None
    queue: Strategy = Priority()
    backpressure: Policy = Unbounded()
    max_per_key: int | None = None
    key_ttl: float = 86_400.0
    max_keys: int = 100_000


def pool_id(scope: str, scope_id: str, name: str) -> str:
    """Return the id of a stored pool: the same for everybody who names it so."""
    digest = sha256("\0".join((scope, scope_id, name)).encode()).hexdigest()
    return f"pool-{digest[:12]}"


def undeclared(name: str) -> PoolSpec:
    """Return the rules of a pool that nobody has declared: no cap, nothing refused."""
    return PoolSpec(name, pool_id("app", "", name))
