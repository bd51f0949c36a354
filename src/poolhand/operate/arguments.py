"""Argument checks of the operator, done before any call to the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

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

TEXT = instance_of(str, "a text")
TENANT = instance_of(
    str,
    "the tenant whose sessions are erased; a session without one is erased by "
    "erase_session(id, by)",
)
_MOMENT = OptionRule(
    lambda value: isinstance(value, datetime) and value.tzinfo is not None,
    "a datetime with a time zone",
)
# Arguments of the operator that are not texts.
_ALLOWED: OptionTable = {
    "tenant": TEXT.or_none(),
    "by": OptionRule(NAME.fits, f"the name of the actor, {NAME.text}"),
    "which": instance_of(Filter, "a Filter, such as Filter(pool='research')"),
    "progress": OptionRule(callable, "a function").or_none(),
    "limit": OptionRule(COUNT.fits, "an int from 1 to 10**18"),
    "after": OptionRule(
        lambda value: is_int(value) and 0 <= value <= LAST, f"an int from 0 to {LAST}"
    ),
}


def _are_statuses(value: object) -> bool:
    # A single status is a string: its letters are no statuses, so it is refused, not ignored.
    return isinstance(value, Collection) and all(one in list(Status) for one in value)


_FIELDS: OptionTable = {
    "statuses": OptionRule(_are_statuses, f"a tuple of {', '.join(Status)}"),
    "since": _MOMENT.or_none(),
    "until": _MOMENT.or_none(),
    "dead": OptionRule(lambda value: isinstance(value, bool | None), "True, False or None"),
    **dict.fromkeys(
        ("pool", "name", "key", "session", "tenant", "user", "id_prefix"), TEXT.or_none()
    ),
}


def check(**given: object) -> None:
    """Raise unless each argument is allowed; those without a rule of their own must be texts."""
    for name, value in given.items():
        _ALLOWED.get(name, TEXT).require(name, value)
        if isinstance(value, Filter):
            _check_filter(value)


def _check_filter(which: Filter) -> None:
    check_record(which, _FIELDS)
    if which.since is not None and which.until is not None and which.since >= which.until:
        raise UsageError(
            f"since={which.since.isoformat()} is not before until={which.until.isoformat()}: "
            "no job can match; give an earlier `since`"
        )


def listed_ids(ids: object) -> list[str]:
    """Return ids as a list; refuse a single string, which would be iterated by letters."""
    if isinstance(ids, Iterable) and not isinstance(ids, str):
        listed = list(ids)
        if all(isinstance(id, str) for id in listed):
            return listed
    raise UsageError(not_allowed("ids", ids, "a list of ids"))
