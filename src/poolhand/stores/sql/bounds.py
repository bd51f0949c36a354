"""Limits that all stores share: values they cannot hold, and how much they do at once."""

from __future__ import annotations

from poolhand.errors import Conflict, UsageError

MOST = 2**63 - 1  # the largest number that every store can hold
EXPIRED_AT_ONCE = 100  # overdue jobs that one claim expires at most


def cannot_be_kept(error: Exception) -> UsageError:
    """Return the error for a value that no store can hold."""
    return UsageError(f"a value is none that could be kept: {error}")


def known_already(id: str = "") -> Conflict:
    """Return the error for a new job whose id is taken."""
    which = f"id={id!r} is" if id else "an id is"
    return Conflict(f"{which} that of another job; every job has an id of its own")


def check_page(after: int | None, limit: int) -> None:
    """Raise UsageError for an invalid cursor or limit of a page."""
    if after is not None and not 0 <= after <= MOST:
        raise UsageError(f"after={after} is not allowed; give the cursor that a page came with")
    if not 0 <= limit < MOST:
        raise UsageError(f"limit={limit} is not allowed; it must be from 0 to {MOST - 1:,}")
