"""Argument checks of the operator, done before any call to the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from poolhand.contract import Filter
from poolhand.errors import UsageError
from poolhand.rules.job import Status
from poolhand.rules.validation import (
    COUNT,
    NAME,
    OptionRule,
    OptionTable,
    check_record,
    instance_of,
    is_int,
    not_allowed,
)

LAST = 2**63 - 1
OPTIONAL = ("tenant",)

_TEXT = instance_of(str, "a text")
_MOMENT = OptionRule(
    lambda value: isinstance(value, datetime) and value.tzinfo is not None,
    "a datetime with a time zone",
)
_PROGRESS = OptionRule(callable, "a function").or_none()
_TENANT = instance_of(
    str,
    "the tenant whose sessions are erased; a session without one is erased by "
    "erase_session(id, by)",
)
_ACTOR = OptionRule(NAME.fits, f"the name of the actor, {NAME.text}")
_FILTER = instance_of(Filter, "a Filter, such as Filter(pool='research')")
_LIMIT = OptionRule(COUNT.fits, "an int from 1 to 10**18")
_AFTER = OptionRule(lambda value: is_int(value) and 0 <= value <= LAST, f"an int from 0 to {LAST}")


def _are_statuses(value: object) -> bool:
    # A single status is a string: its letters are no statuses, so it is refused, not ignored.
    return isinstance(value, Collection) and all(one in list(Status) for one in value)


_FIELDS: OptionTable = {
    "statuses": OptionRule(_are_statuses, f"a tuple of {', '.join(Status)}"),
    "since": _MOMENT.or_none(),
    "until": _MOMENT.or_none(),
    "dead": OptionRule(lambda value: isinstance(value, bool | None), "True, False or None"),
    **dict.fromkeys(
        ("pool", "name", "key", "session", "tenant", "user", "id_prefix"), _TEXT.or_none()
    ),
}


def check_texts(**given: object) -> None:
    """Raise unless ids and names are strings; a tenant may also be None."""
    for name, value in given.items():
        (_TEXT.or_none() if name in OPTIONAL else _TEXT).require(name, value)


def check_progress(progress: object) -> None:
    """Raise unless `progress` is callable or None: before anything is done, not after a batch."""
    _PROGRESS.require("progress", progress)


def check_tenant(tenant: object) -> None:
    """Raise unless one tenant is named: None would select the sessions of all tenants."""
    _TENANT.require("tenant", tenant)


def check_actor(by: object) -> None:
    _ACTOR.require("by", by)


def check_filter(which: Filter) -> None:
    _FILTER.require("which", which)
    check_record(which, _FIELDS)
    if which.since is not None and which.until is not None and which.since >= which.until:
        raise UsageError(
            f"since={which.since.isoformat()} is not before until={which.until.isoformat()}: "
            "no job can match; give an earlier `since`"
        )


def check_page(after: Any, limit: Any) -> None:
    _LIMIT.require("limit", limit)
    _AFTER.require("after", after)


def listed_ids(ids: object) -> list[str]:
    """Return ids as a list; refuse a single string, which would be iterated by letters."""
    if isinstance(ids, Iterable) and not isinstance(ids, str):
        listed = list(ids)
        if all(isinstance(id, str) for id in listed):
            return listed
    raise UsageError(not_allowed("ids", ids, "a list of ids"))
