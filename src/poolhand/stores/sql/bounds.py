"""What bounds every store, in the same words: what it cannot keep, how much it does at once."""

from __future__ import annotations

from poolhand.errors import Conflict, UsageError

MOST = 2**63 - 1  # the largest number that every store can keep
EXPIRED_AT_ONCE = 100  # jobs that one claim ends because they waited too long


def cannot_be_kept(error: Exception) -> UsageError:
    """Say that a value is out of all bounds."""
    return UsageError(f"a value is none that could be kept: {error}")


def known_already(id: str = "") -> Conflict:
    """Say that there is a job with the id of a new one."""
    which = f"id={id!r} is" if id else "an id is"
    return Conflict(f"{which} that of another job; every job has an id of its own")


def check_page(after: int | None, limit: int) -> None:
    """Raise UsageError unless there can be such a page."""
    if after is not None and not 0 <= after <= MOST:
        raise UsageError(f"after={after} is not allowed; give the cursor that a page came with")
    if not 0 <= limit < MOST:
        raise UsageError(f"limit={limit} is not allowed; it must be from 0 to {MOST - 1:,}")
