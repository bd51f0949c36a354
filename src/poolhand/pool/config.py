"""The options of a pool: each is checked, and all errors are reported at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from poolhand.errors import UsageError
from poolhand.pool.scope import SESSION, Scope, take_scope
from poolhand.rules.job import Job
from poolhand.rules.queue.backpressure import (
    POLICIES,
    Bounded,
    FailFast,
    Policy,
    RingBuffer,
    Unbounded,
)
from poolhand.rules.queue.pool_spec import PoolSpec
from poolhand.rules.queue.strategy import STRATEGIES, FairRoundRobin, Fifo, Lifo, Priority, Strategy
from poolhand.rules.retry import Retry
from poolhand.rules.scaling.pool_size import SLOTS_ALLOWED, Autoscale, are_slots
from poolhand.rules.validation import (
    AMOUNT_ALLOWED,
    COUNT_ALLOWED,
    LONGEST_NAME,
    NAME_ALLOWED,
    SECONDS_ALLOWED,
    Seconds,
    is_amount,
    is_count,
    is_name,
    is_seconds,
    is_short,
    is_whole,
    no_option,
    optional,
    shown,
    to_seconds,
)
from poolhand.rules.values.plain import PlainView

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
    def kept_as(self) -> str:
        """The name of the pool in its store."""
        return self.scope.kept_as(self.name)


MOST_KEPT = 100_000_000


def is_kept(value: Any) -> bool:
    return is_whole(value) and value <= MOST_KEPT


Check = tuple[Callable[[Any], bool], str]

CHECKS: dict[str, Check] = {
    "name": (is_name, NAME_ALLOWED),
    "max_concurrent": (are_slots, SLOTS_ALLOWED),
    "queue": (
        lambda value: isinstance(value, Fifo | Lifo | Priority | FairRoundRobin),
        "fifo(), lifo(), priority(), fair_round_robin() or one of these names",
    ),
    "backpressure": (
        lambda value: isinstance(value, Unbounded | Bounded | FailFast | RingBuffer),
        "unbounded(), bounded(n), fail_fast(), ring_buffer(n), 'unbounded', 'fail_fast' or None",
    ),
    "timeout": (optional(is_amount), f"{AMOUNT_ALLOWED}, or None"),
    "soft_timeout": (optional(is_amount), f"{AMOUNT_ALLOWED}, or None"),
    "retry": (optional(lambda value: isinstance(value, Retry)), "a Retry(…), or None"),
    "run_in": (optional(lambda value: value in RUN_IN), "'loop', 'thread', 'process' or None"),
    "history": (is_kept, "an int of 0 or more and at most 100,000,000"),
    "max_keys": (is_kept, "an int of 0 or more and at most 100,000,000"),
    "key_ttl": (is_seconds, SECONDS_ALLOWED),
    "max_per_key": (optional(is_count), f"{COUNT_ALLOWED}, or None"),
    "autoscale": (
        optional(lambda value: isinstance(value, Autoscale)),
        "an Autoscale(…), or None",
    ),
    "stale_after": (is_amount, AMOUNT_ALLOWED),
    "drain_timeout": (is_seconds, SECONDS_ALLOWED),
    "cancel_grace": (is_seconds, SECONDS_ALLOWED),
    "on_dead": (optional(callable), "a callable that takes the Job, or None"),
}

# Submit options that cannot be a fairness key at the same time.
NO_FIELDS = frozenset(
    {
        "cancel_with_caller",
        "delay",
        "expires",
        "idempotency_key",
        "on_busy",
        "on_crash",
        "priority",
        "rerun_failed",
        "retry",
        "run_at",
        "run_in",
        "self",
        "soft_timeout",
        "timeout",
    }
)


def configure(name: str | None, options: Mapping[str, Any]) -> PoolConfig:
    """Check the options of a new pool and return them with the defaults filled in."""
    given = dict(options)
    scope, faults = take_scope(given)
    unknown = sorted(given.keys() - CHECKS.keys())
    faults += [no_option(key, _known(), " of a pool") for key in unknown]
    values: dict[str, Any] = {
        key: _named(key, to_seconds(value)) for key, value in given.items() if key not in unknown
    }
    values["name"] = name
    faults += [
        f"{key}={shown(value)} is not allowed; it must be {CHECKS[key][1]}"
        for key, value in values.items()
        if not CHECKS[key][0](value)
    ]
    if not faults:
        values.setdefault("max_concurrent", _first_size(values.get("autoscale")))
        config = PoolConfig(**values, scope=scope)
        faults = _clashes(config)
        if not faults:
            return config
    raise UsageError(f"Pool {shown(name)}: " + "; ".join(faults))


def _first_size(autoscale: Autoscale | None) -> int:
    return 1 if autoscale is None else autoscale.min


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
        faults.append(f"autoscale={scale} goes with a pool in memory; leave it out, and resize it")
    if not is_short(config.kept_as):
        faults.append(
            f"name={shown(config.name)} is not allowed; the pool is kept as "
            f"{shown(config.kept_as)}, and that has at most {LONGEST_NAME:,} bytes in UTF-8"
        )
    return faults


_MAKERS: dict[str, Mapping[str, Callable[[], object]]] = {
    "queue": STRATEGIES,
    "backpressure": POLICIES,
}


_DEFAULTS: dict[str, object] = {"queue": Priority(), "backpressure": Unbounded()}


def _known() -> Iterable[str]:
    return ("name", *PoolOptions.__annotations__)


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
    return PoolSpec(
        config.kept_as,
        id,
        config.max_concurrent,
        config.queue,
        config.backpressure,
        config.max_per_key,
        config.key_ttl,
        config.max_keys,
    )
