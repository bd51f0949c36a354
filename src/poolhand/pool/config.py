"""The options of a pool: each is checked, and all errors are reported at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from poolhand.misuse import SUBMIT_OPTIONS
from poolhand.pool.scope import SESSION, Scope, take_scope
from poolhand.rules.job import Job
from poolhand.rules.outcome import Retry
from poolhand.rules.plain import PlainView
from poolhand.rules.queue.backpressure import (
    POLICIES,
    Bounded,
    FailFast,
    Policy,
    RingBuffer,
    Unbounded,
)
from poolhand.rules.queue.stored_desk import PoolSpec
from poolhand.rules.queue.strategy import STRATEGIES, FairRoundRobin, Fifo, Lifo, Priority, Strategy
from poolhand.rules.scaling.pool_size import SLOTS, Autoscale
from poolhand.rules.validation import (
    AMOUNT,
    COUNT,
    LONGEST_NAME,
    POOL_NAME,
    SECONDS,
    OptionRule,
    OptionTable,
    Seconds,
    instance_of,
    is_short,
    is_whole,
    no_option,
    one_of,
    raise_faults,
    shown,
    table_faults,
    to_seconds,
)

RUN_IN = ("loop", "thread", "process")
OnDead = Callable[[Job], object]


class PoolOptions(TypedDict, total=False):
    """The options that `Pool(name, …)` takes."""

    max_concurrent: int
    queue: Strategy | str | None
    backpressure: Policy | str | None
    scope: str
    scope_id: str | None
    pipeline_id: str | None
    store: str | None
    dir: str | os.PathLike[str] | None
    timeout: Seconds | None
    soft_timeout: Seconds | None
    retry: Retry | None
    run_in: str | None
    history: int
    max_keys: int
    key_ttl: Seconds
    max_per_key: int | None
    autoscale: Autoscale | None
    stale_after: Seconds
    drain_timeout: Seconds
    cancel_grace: Seconds
    on_dead: OnDead | None


class PoolConfig(PlainView, frozen=True):
    """The options of one pool, checked, with the defaults filled in."""

    name: str
    max_concurrent: int = 1
    queue: Strategy = Priority()
    backpressure: Policy = Unbounded()
    timeout: float | None = None
    soft_timeout: float | None = None
    retry: Retry | None = None
    run_in: str | None = None
    history: int = 1_000
    max_keys: int = 100_000
    key_ttl: float = 86_400.0
    max_per_key: int | None = None
    autoscale: Autoscale | None = None
    stale_after: float = 120.0
    drain_timeout: float = 30.0
    cancel_grace: float = 5.0
    on_dead: OnDead | None = None
    scope: Scope = Scope()

    @property
    def stored_name(self) -> str:
        """The name of the pool in its store."""
        return self.scope.stored_name(self.name)


LARGEST_HISTORY = 100_000_000
HISTORY = OptionRule(
    lambda value: is_whole(value) and value <= LARGEST_HISTORY,
    f"an int of 0 or more and at most {LARGEST_HISTORY:,}",
)
# Options that a submit takes too, with the same values.
ALLOWED_FOR_JOBS: OptionTable = {
    "timeout": AMOUNT.or_none(),
    "soft_timeout": AMOUNT.or_none(),
    "retry": instance_of(Retry, "a Retry(…)").or_none(),
    "run_in": one_of(*RUN_IN, None),
}
ALLOWED: OptionTable = {
    "name": POOL_NAME,
    "max_concurrent": SLOTS,
    "queue": OptionRule(
        lambda value: isinstance(value, Fifo | Lifo | Priority | FairRoundRobin),
        "fifo(), lifo(), priority(), fair_round_robin() or one of these names",
    ),
    "backpressure": OptionRule(
        lambda value: isinstance(value, Unbounded | Bounded | FailFast | RingBuffer),
        "unbounded(), bounded(n), fail_fast(), ring_buffer(n), 'unbounded', 'fail_fast' or None",
    ),
    **ALLOWED_FOR_JOBS,
    "history": HISTORY,
    "max_keys": HISTORY,
    "key_ttl": SECONDS,
    "max_per_key": COUNT.or_none(),
    "autoscale": instance_of(Autoscale, "an Autoscale(…)").or_none(),
    "stale_after": AMOUNT,
    "drain_timeout": SECONDS,
    "cancel_grace": SECONDS,
    "on_dead": OptionRule(callable, "a callable that takes the Job").or_none(),
}

# Submit options that cannot be a fairness key at the same time.
NO_FIELDS = SUBMIT_OPTIONS - {"key", "session", "tenant", "user"} | {"self"}


def draining_text(pool: str) -> str:
    """Return the error for a submit to a pool that drains or has ended."""
    return (
        f"pool {pool!r} is draining or has ended, and accepts no new jobs; submit inside of its "
        "`async with`, or create a new pool"
    )


def configure(name: str | None, options: Mapping[str, Any]) -> PoolConfig:
    """Check the options of a new pool and return them with the defaults filled in."""
    given = dict(options)
    scope, faults = take_scope(given)
    unknown = sorted(given.keys() - ALLOWED.keys())
    known = ("name", *PoolOptions.__annotations__)
    faults += [no_option(key, known, " of a pool") for key in unknown]
    values: dict[str, Any] = {
        key: _named(key, to_seconds(value)) for key, value in given.items() if key not in unknown
    }
    values["name"] = name
    raise_faults(f"Pool {shown(name)}", faults + table_faults(ALLOWED, values))
    scale: Autoscale | None = values.get("autoscale")
    values.setdefault("max_concurrent", 1 if scale is None else scale.min)
    config = PoolConfig(**values, scope=scope)
    raise_faults(f"Pool {shown(name)}", _clashes(config))
    return config


def _clashes(config: PoolConfig) -> list[str]:
    faults = []
    queue, scale, slots = config.queue, config.autoscale, config.max_concurrent
    if isinstance(queue, FairRoundRobin) and queue.field in NO_FIELDS:
        faults.append(
            f"queue={queue} is not allowed; {queue.field!r} is a submit option with another "
            "meaning: name a field of your own, or key, tenant, user or session"
        )
    if scale is not None and not scale.min <= slots <= scale.max:
        faults.append(
            f"max_concurrent={slots} is not allowed; with autoscale it is the size to start with, "
            f"between {scale.min} and {scale.max}"
        )
    if scale is not None and config.scope.kind != SESSION:
        faults.append(
            f"autoscale={scale} works only for a pool in memory; leave it out and call resize"
        )
    if not is_short(config.stored_name):
        faults.append(
            f"name={shown(config.name)} is not allowed; the pool is stored as "
            f"{shown(config.stored_name)}, which may have at most {LONGEST_NAME:,} bytes in UTF-8"
        )
    return faults


_MAKERS: dict[str, Mapping[str, Callable[[], object]]] = {
    "queue": STRATEGIES,
    "backpressure": POLICIES,
}


_DEFAULTS: dict[str, object] = {"queue": Priority(), "backpressure": Unbounded()}


def _named(key: str, value: object) -> object:
    """Return the strategy or policy of that name; None means the default."""
    makers = _MAKERS.get(key)
    if value is None and key in _DEFAULTS:
        return _DEFAULTS[key]
    if makers is None or not isinstance(value, str) or value not in makers:
        return value
    return makers[value]()


def spec_of(config: PoolConfig, id: str) -> PoolSpec:
    """Return the specification of the pool for its store."""
    rules = config.max_concurrent, config.queue, config.backpressure
    keys = config.max_per_key, config.key_ttl, config.max_keys
    return PoolSpec(config.stored_name, id, *rules, *keys)
