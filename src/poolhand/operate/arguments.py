"""Argument checks of the operator, done before any call to the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from poolhand.contract import Filter
from poolhand.errors import UsageError
from poolhand.rules.job import Status
from poolhand.rules.validation import NAME_ALLOWED, is_count, is_int, is_name, shown

LAST = 2**63 - 1
OPTIONAL = ("tenant",)


def check_texts(**given: object) -> None:
    """Raise unless ids and names are strings; a tenant may also be None."""
    for name, value in given.items():
        if isinstance(value, str) or (value is None and name in OPTIONAL):
            continue
        allowed = "a text, or None" if name in OPTIONAL else "a text"
        raise UsageError(f"{name}={shown(value)} is not allowed; give {allowed}")


def check_progress(tell: object) -> None:
    """Raise unless `tell` is callable or None: before anything is done, not after a batch."""
    if tell is not None and not callable(tell):
        raise UsageError(f"tell={shown(tell)} is not allowed; give a function, or None")


def check_tenant(tenant: object) -> None:
    """Raise unless one tenant is named: None would select the sessions of all tenants."""
    if not isinstance(tenant, str):
        raise UsageError(
            f"tenant={shown(tenant)} is not allowed; name the tenant whose sessions are erased; "
            "a session without one is erased by erase_session(id, by)"
        )


def check_actor(by: object) -> None:
    if not is_name(by):
        raise UsageError(f"by={shown(by)} is not allowed; say who does it, as {NAME_ALLOWED}")


def check_filter(which: object) -> None:
    if not isinstance(which, Filter):
        raise UsageError(
            f"which={shown(which)} is not allowed; give a Filter, as Filter(pool='research')"
        )
    if not _are_statuses(which.statuses):
        raise UsageError(
            f"statuses={shown(which.statuses)} is not allowed; give a tuple of {', '.join(Status)}"
        )
    for name in ("since", "until"):
        moment = getattr(which, name)
        if moment is not None and not (isinstance(moment, datetime) and moment.tzinfo):
            raise UsageError(
                f"{name}={shown(moment)} is not allowed; give a datetime with a time zone"
            )
    if which.since is not None and which.until is not None and which.since >= which.until:
        raise UsageError(
            f"since={which.since.isoformat()} is not before until={which.until.isoformat()}: "
            "no job is meant; give an earlier `since`"
        )
    if not isinstance(which.dead, bool | None):
        raise UsageError(f"dead={shown(which.dead)} is not allowed; give True, False or None")
    for name in ("pool", "name", "key", "session", "tenant", "user", "id_prefix"):
        text = getattr(which, name)
        if text is not None and not isinstance(text, str):
            raise UsageError(f"{name}={shown(text)} is not allowed; give a text")


def _are_statuses(value: object) -> bool:
    # A single status is a string: its letters are no statuses, so it is refused, not ignored.
    return isinstance(value, Collection) and all(one in list(Status) for one in value)


def check_page(after: Any, limit: Any) -> None:
    if not is_count(limit):
        raise UsageError(f"limit={shown(limit)} is not allowed; it must be an int from 1 to 10**18")
    if not is_int(after) or not 0 <= after <= LAST:
        raise UsageError(f"after={shown(after)} is not allowed; it must be an int from 0 to {LAST}")


def listed_ids(ids: object) -> list[str]:
    """Return ids as a list; refuse a single string, which would be iterated by letters."""
    if isinstance(ids, Iterable) and not isinstance(ids, str):
        listed = list(ids)
        if all(isinstance(id, str) for id in listed):
            return listed
    raise UsageError(f"ids={shown(ids)} is not allowed; give a list of ids")
