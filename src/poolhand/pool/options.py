"""The options of one submit: checks, defaults, derived times, and where its code runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from poolhand.errors import UsageError
from poolhand.pool.config import ALLOWED_FOR_JOBS, PoolConfig
from poolhand.rules.job import Job, Status
from poolhand.rules.outcome import Retry
from poolhand.rules.queue.entry import Window
from poolhand.rules.queue.gates import OnBusy
from poolhand.rules.queue.strategy import FairRoundRobin
from poolhand.rules.validation import (
    FLAG,
    LONGEST_NAME,
    OptionRule,
    OptionTable,
    is_amount,
    is_int,
    is_seconds,
    is_short,
    is_text,
    is_writable,
    no_option,
    one_of,
    raise_faults,
    shown,
    to_seconds,
)


class Origin(Struct, frozen=True):
    """The call that the options were passed to, for error messages, and its other options."""

    text: str
    further: tuple[str, ...] = ()


class Options(Struct, frozen=True):
    """The submit options of a job; shared by all jobs of one view.

    `lane` is the value of the strategy's own field; it takes precedence over `key`.
    """

    priority: int = 0
    key: str | None = None
    lane: str | None = None
    idempotency_key: str | None = None
    rerun_failed: bool = False
    session: str | None = None
    tenant: str | None = None
    user: str | None = None
    timeout: float | None = None
    soft_timeout: float | None = None
    retry: Retry | None = None
    run_in: str | None = None
    delay: float | None = None
    run_at: datetime | None = None
    expires: float | None = None
    cancel_with_caller: bool = False
    on_crash: str = "rerun"
    on_busy: str = "enqueue"

    @property
    def fairness_key(self) -> str:
        return self.lane or self.key or ""


def defaults(config: PoolConfig) -> Options:
    """Return the default submit options of a pool."""
    return Options(
        timeout=config.timeout,
        soft_timeout=config.soft_timeout,
        retry=config.retry,
        run_in=config.run_in,
    )


def with_changes(
    options: Options,
    config: PoolConfig,
    changes: Mapping[str, Any],
    durable: bool = False,
    origin: Origin | None = None,
) -> Options:
    """Check changes to the options and return the new ones; `durable`: jobs are in a store.

    Errors start with the text of `origin`, by default `with_options` of the pool.
    """
    origin = origin or Origin(f"Pool {config.name!r}, with_options")
    values = {
        name: to_seconds(value) if name in DURATIONS else value for name, value in changes.items()
    }
    field = config.queue.field if isinstance(config.queue, FairRoundRobin) else "key"
    table = {**ALLOWED, field: ALLOWED.get(field, ALLOWED["key"])}
    faults = _later_faults(values, durable)
    for name, value in values.items():
        if name in table:
            faults += table[name].faults(name, value)
        else:
            known = (one for one in table if durable or one not in DURABLE_ONLY)
            of = "" if origin.further else " of a submit"
            faults.append(no_option(name, (*origin.further, *known), of))
    raise_faults(origin.text, faults)
    changed = replace(options, **_with_lane(values, field))
    raise_faults(origin.text, _faults_together(changed))
    return changed


def _faults_together(options: Options) -> list[str]:
    """Return errors about options that exclude or require each other."""
    faults = []
    if options.delay is not None and options.run_at is not None:
        faults.append("give delay or run_at, not both")
    if options.delay and options.expires is not None and options.expires <= options.delay:
        faults.append(
            f"expires={options.expires:g} is not allowed; with delay={options.delay:g} the job "
            "would expire before it can start: both count from the submit, so give a longer expires"
        )
    if options.on_busy != "enqueue" and options.session is None:
        faults.append(f"on_busy={options.on_busy!r} goes with a session; give session=")
    return faults


def _with_lane(values: dict[str, Any], field: str) -> dict[str, Any]:
    """Set the lane from the strategy's own field."""
    if field == "key" or field not in values:
        return values
    lane = values[field] if field in ALLOWED else values.pop(field)
    # A tenant given for fairness also scopes idempotency keys and sessions.
    tenant = {"tenant": lane or None} if field == "tenant_id" else {}
    return {**tenant, **values, "lane": lane}


class SubmitTerms(Struct, frozen=True):
    """Submit options and a draft of the job without id and times; built once per view.

    `soft` and `hard` are the seconds after which a job is asked and forced to stop, `deadline` the
    earlier of them. If a stored pool blocks submitters, a submit that `waits` is parked; otherwise
    it is refused.
    """

    options: Options
    draft: Job
    is_timed: bool
    soft: float | None
    hard: float | None
    deadline: float | None
    waits: bool = True

    def timed(self, job: Job, now: float, at: datetime) -> tuple[Job, Window]:
        """Return the job with its times, and the same times on the monotonic clock."""
        options = self.options
        run_at = options.run_at
        if options.delay is not None:
            run_at = at + timedelta(seconds=options.delay)
        opens = None if run_at is None else now + max(0.0, (run_at - at).total_seconds())
        closes = None if options.expires is None else now + options.expires
        return replace(
            job,
            run_at=None if run_at is None else run_at.astimezone(UTC),
            expires_at=None if options.expires is None else at + timedelta(seconds=options.expires),
        ), Window(opens, closes)

    def rerun(self) -> SubmitTerms:
        """Return the terms for an immediate rerun of a failed job."""
        again = replace(self.options, rerun_failed=True, delay=None, run_at=None)
        return replace(self, options=again, is_timed=again.expires is not None)


def terms(options: Options, pool: str, pool_id: str) -> SubmitTerms:
    """Build the submit terms for jobs of a pool."""
    draft = Job(
        id="",
        pool=pool,
        pool_id=pool_id,
        status=Status.QUEUED,
        submitted_at=datetime.min.replace(tzinfo=UTC),
        key=options.fairness_key,
        priority=options.priority,
        session=options.session,
        tenant=options.tenant,
        user=options.user,
        idempotency_key=options.idempotency_key,
    )
    timed = any(one is not None for one in (options.delay, options.run_at, options.expires))
    return SubmitTerms(options, draft, timed, *deadlines(options.soft_timeout, options.timeout))


def deadlines(
    soft: float | None, hard: float | None
) -> tuple[float | None, float | None, float | None]:
    """Return the effective soft and hard timeout, and the earlier of them."""
    if soft is not None and hard is not None and soft >= hard:
        soft = None  # The hard timeout comes first.
    return soft, hard, hard if soft is None else soft


DURATIONS = ("timeout", "soft_timeout", "delay", "expires")
DURABLE_ONLY = ("on_crash", "on_busy")
ON_CRASH = ("rerun", "fail")
LONGEST = 3.15e9  # a hundred years: added to today's date it is still a valid date


_LABEL = OptionRule(
    lambda value: is_text(value) and is_short(value),
    f"a non-blank text of at most {LONGEST_NAME:,} bytes in UTF-8",
).or_none()

ALLOWED: OptionTable = {
    "priority": OptionRule(
        lambda value: is_int(value) and abs(value) < 2**53, "an int between -2**53 and 2**53"
    ),
    "key": OptionRule(is_short, f"a text of at most {LONGEST_NAME:,} bytes in UTF-8").or_none(),
    "idempotency_key": _LABEL,
    "rerun_failed": FLAG,
    "session": _LABEL,
    "tenant": _LABEL,
    "user": _LABEL,
    **ALLOWED_FOR_JOBS,
    "delay": OptionRule(
        lambda value: is_seconds(value) and value <= LONGEST,
        f"seconds, 0 or more and at most {LONGEST:,.0f} (a hundred years)",
    ).or_none(),
    "run_at": OptionRule(
        lambda value: isinstance(value, datetime) and _is_moment(value),
        "a datetime with a time zone between the years 1970 and 9000",
    ).or_none(),
    "expires": OptionRule(
        lambda value: is_amount(value) and value <= LONGEST,
        f"seconds above 0 and at most {LONGEST:,.0f} (a hundred years)",
    ).or_none(),
    "cancel_with_caller": FLAG,
    "on_crash": one_of(*ON_CRASH),
    "on_busy": one_of(*map(str, OnBusy)),
}


def _is_moment(value: datetime) -> bool:
    return value.tzinfo is not None and 1970 <= value.year < 9000


def _later_faults(values: dict[str, Any], durable: bool) -> list[str]:
    faults = []
    if not durable and values.pop("on_busy", "enqueue") != "enqueue":
        faults.append("on_busy needs a store; in memory the turns of a session wait")
    if not durable and values.pop("on_crash", None) is not None:
        faults.append("on_crash needs a store: a pool in memory does not survive a crash")
    if durable:
        faults += [
            f"{name}={shown(value)} is not allowed; no store can keep it: it holds NUL, or half "
            "of a surrogate pair"
            for name, value in values.items()
            if isinstance(value, str) and not is_writable(value)
        ]
    return faults


_COROUTINE = inspect.CO_COROUTINE
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_KINDS = _COROUTINE | _GENERATORS
_NO_JOBS = (
    (inspect.isasyncgenfunction, "an async generator"),
    (inspect.isgeneratorfunction, "a generator"),
)


# Where a plain function runs, by the requested `run_in`.
_PLAIN = {None: "thread", "loop": "sync", "thread": "thread", "process": "process"}


def where_to_run(fn: Callable[..., Any], wanted: str | None, usual: str | None) -> str:
    """Return where a callable runs: "async" or "sync" on the loop, in a "thread" or a "process".

    `wanted` is what this submit requests, `usual` the default of the pool. Async functions always
    run on the loop; only a submit that itself requests something else is an error.
    """
    code = getattr(fn, "__code__", None)
    kind = code.co_flags & _KINDS if code is not None else None
    is_async = kind == _COROUTINE
    if kind is None or kind & _GENERATORS:
        is_async = _is_async(fn)
    if not is_async:
        return _PLAIN[wanted]
    if wanted != usual and wanted in ("thread", "process"):
        raise UsageError(
            f"{name_of(fn)} is async and runs on the loop; run_in={wanted!r} is for plain functions"
        )
    return "async"


def _is_async(fn: object) -> bool:
    """Return whether a callable other than a plain function is async; raise if it is unusable."""
    if inspect.iscoroutine(fn):
        fn.close()
        raise UsageError(
            f"submit takes a function and its arguments, not a coroutine: write "
            f"submit({name_of(fn)}, …), not submit({name_of(fn)}(…))"
        )
    if not callable(fn):
        raise UsageError(f"submit takes a function and its arguments; {fn!r} cannot be called")
    inner: Any = fn
    while isinstance(inner, partial):
        inner = inner.func
    for is_one, kind in _NO_JOBS:
        if is_one(inner):
            raise UsageError(f"{name_of(fn)} is {kind}; submit what returns one value")
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def name_of(fn: object) -> str:
    """Return the name of a callable for people."""
    while isinstance(fn, partial):
        fn = fn.func
    return getattr(fn, "__qualname__", None) or type(fn).__name__


def module_of(fn: object) -> str:
    """Return the module of a callable, empty if it has none."""
    while isinstance(fn, partial):
        fn = fn.func
    return getattr(fn, "__module__", None) or ""
