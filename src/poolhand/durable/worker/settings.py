"""The settings of a worker: how much it runs, from which pools, and how it stops."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from poolhand.durable.worker.executor import StoredAttempt
from poolhand.errors import UsageError
from poolhand.pool.engine.drain import STOP_GRACE
from poolhand.rules.scaling.pool_size import SLOTS_ALLOWED, are_slots
from poolhand.rules.validation import (
    SECONDS_ALLOWED,
    Seconds,
    is_name,
    is_seconds,
    shown,
    to_seconds,
)

DRAIN_TIMEOUT = 30.0


class WorkerSettings(Struct, frozen=True):
    """The settings of a worker.

    After `quota` attempts it claims no more. `soft_timeout` and `hard_timeout` apply to jobs
    without timeouts of their own. Jobs stopped at the end have `stop_grace` seconds to stop. If it
    `captures`, output and log lines of jobs go into their events. One that `rests` has an event
    loop for jobs alone, which is not watched while there are none. `before` is the packed call that
    each child makes before its first job.
    """

    slots: int
    pools: tuple[str, ...] | None = None
    drain_timeout: float = DRAIN_TIMEOUT
    captures: bool = False
    quota: int | None = None
    soft_timeout: float | None = None
    hard_timeout: float | None = None
    stop_grace: float = STOP_GRACE
    rests: bool = False
    before: bytes | None = None

    def timed(self, errand: StoredAttempt) -> StoredAttempt:
        """Give a job without timeouts those of this worker."""
        brief, soft, hard = errand.brief, self.soft_timeout, self.hard_timeout
        has_own = brief.timeout is not None or brief.soft_timeout is not None
        if has_own or soft is hard is None:
            return errand
        return replace(errand, brief=replace(brief, timeout=hard, soft_timeout=soft))


def checked_terms(
    slots: int, pools: Iterable[str] | None, drain_timeout: Seconds, captures: bool
) -> WorkerSettings:
    """Return the settings for these arguments, or raise one error that lists every fault."""
    faults, within = [], to_seconds(drain_timeout)
    if not are_slots(slots):
        faults.append(f"slots={shown(slots)} is not allowed; it must be {SLOTS_ALLOWED}")
    if not is_seconds(within):
        faults.append(f"drain_timeout={shown(within)} is not allowed; give {SECONDS_ALLOWED}")
    if not isinstance(captures, bool):
        faults.append(f"capture={shown(captures)} is not allowed; give True or False")
    names = _names(pools)
    if names is not None and not (names and all(map(is_name, names))):
        faults.append(_not_names(pools))
    if faults:
        raise UsageError("worker: " + "; ".join(faults))
    return WorkerSettings(slots, names, within, captures)


def checked_pools(pools: Iterable[str] | None, what: str) -> tuple[str, ...] | None:
    """Return pool names, None for all; raise if they are not valid names."""
    names = _names(pools)
    if names is not None and not (names and all(map(is_name, names))):
        raise UsageError(f"{what}: {_not_names(pools)}")
    return names


def _names(pools: object) -> tuple[Any, ...] | None:
    """Return the items of `pools`; a str counts as one invalid value, not as letters."""
    if pools is None:
        return None
    if isinstance(pools, str) or not isinstance(pools, Iterable):
        return (None,)
    return tuple(pools)


def _not_names(pools: object) -> str:
    if isinstance(pools, Collection) and not pools:
        return (
            f"pools={shown(pools)} names no pool; leave it out to serve the pools of the app's "
            "tasks, or give a list of names of pools"
        )
    cure = f": pools=[{shown(pools)}]" if is_name(pools) else ""
    return (
        f"pools={shown(pools)} is not allowed; give a list of names of pools{cure}, or None for all"
    )
