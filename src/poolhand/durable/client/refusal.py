"""Translates refusals of a store into the errors that submitters get."""

from __future__ import annotations

from collections.abc import Callable

from poolhand.contract import Refusal
from poolhand.errors import (
    Conflict,
    NoFreeSlot,
    PoolFull,
    PoolhandError,
    SessionBusy,
    SessionForbidden,
)


def refused(refusal: Refusal) -> PoolhandError:
    """Return the error for the submitter of a refused batch."""
    if refusal.reason == "not_dead":
        return Conflict(
            f"the job to run again in pool {refusal.pool!r} is no dead job: it was run again "
            "before, or did not fail"
        )
    if refusal.reason == "user":
        return forbidden()
    if refusal.reason == "busy":
        return SessionBusy(
            f"the session has a turn already in pool {refusal.pool!r}; submit when it is over, or "
            "choose another on_busy"
        )
    return _full(refusal)


def forbidden() -> SessionForbidden:
    # Without names: the owner of the session must not leak to other users.
    return SessionForbidden(
        "the session belongs to another user than this one, or to none: it belongs to the user of "
        "its first turn; give that one as user=, or use another session"
    )


def waited(pool: str, seconds: float | None, policy: str) -> PoolFull:
    return PoolFull(
        f"pool {pool!r} had no place for {seconds} s ({policy}); try again later, give it more "
        "room, or wait longer (wait_timeout)",
        policy=policy,
    )


def _full(refusal: Refusal) -> PoolhandError:
    kind: Callable[..., PoolhandError] = NoFreeSlot if refusal.reason == "no_slot" else PoolFull
    return kind(
        f"pool {refusal.pool!r} is full ({refusal.running} running, {refusal.waiting} waiting, "
        f"{refusal.policy}); try again later or give it more room",
        policy=refusal.policy,
    )
