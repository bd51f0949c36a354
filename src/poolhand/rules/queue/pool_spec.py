"""Pool declarations: the rules of a stored pool that all processes share."""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct

from poolhand.rules.queue.backpressure import Policy, Unbounded
from poolhand.rules.queue.strategy import Priority, Strategy
from poolhand.rules.validation import shown


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


SETTINGS = {
    "max_concurrent": "slots",
    "queue": "queue",
    "backpressure": "backpressure",
    "max_per_key": "max_per_key",
    "key_ttl": "key_ttl",
    "max_keys": "max_keys",
}
"""What is declared of a pool, as users name it, and the field that holds it."""


def differences(old: PoolSpec, new: PoolSpec) -> dict[str, tuple[str, str]]:
    """Return the settings in which two declarations differ, with both values as text."""
    found = {}
    for name, field in SETTINGS.items():
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            found[name] = told_apart(before, after)
    return found


def told_apart(one: object, other: object) -> tuple[str, str]:
    """Return two different values as two different texts."""
    short = str(one), str(other)
    return short if short[0] != short[1] else (shown(one), shown(other))


def pool_id(scope: str, scope_id: str, name: str) -> str:
    """Return the id of a stored pool: the same in every process that uses this name."""
    digest = sha256("\0".join((scope, scope_id, name)).encode()).hexdigest()
    return f"pool-{digest[:12]}"


def undeclared(name: str) -> PoolSpec:
    """Return the rules of a pool that is not declared: no cap, nothing refused."""
    return PoolSpec(name, pool_id("app", "", name))
