"""What an error of PostgreSQL, or on the way to it, means to a caller."""

from __future__ import annotations

import asyncio

import asyncpg
from msgspec import MsgspecError

from poolhand.errors import Corrupt, PoolhandError, ReadOnly, StoreError, Unavailable
from poolhand.stores import bounds

KNOWN_ID = "poolhand_jobs_by_id"
AGAIN = frozenset(
    {"40001", "40P01", "55P03"}
)  # serialization, deadlock, a lock that was waited for
FULL = frozenset({"53100", "53200"})  # disk, memory
CONNECTIONS = "53300"
LEAVING = frozenset(
    {"57P01", "57P02", "57P03", "57P05"}
)  # shutdown, crash, start, idle for too long
READ_ONLY = "25006"
NO_RIGHT = "42501"
CANCELLED = "57014"
NO_DATABASE = "3D000"
TOO_LONG_IDLE = "25P03"


def state_of(error: BaseException) -> str:
    """Return the code that the server gave an error, empty where it came from elsewhere."""
    return getattr(error, "sqlstate", None) or ""


def is_passing(error: BaseException) -> bool:
    """Tell whether the same again may well succeed: somebody else was in the way."""
    return state_of(error) in AGAIN


def is_cut(error: BaseException) -> bool:
    """Tell whether the connection is gone, and with it the word about what was under way."""
    if isinstance(error, asyncpg.PostgresError):
        state = state_of(error)
        return state[:2] == "08" or state in LEAVING or state == TOO_LONG_IDLE
    return isinstance(error, OSError | asyncpg.InterfaceError | asyncio.IncompleteReadError)


def at_the_wall(error: Exception, where: str) -> Exception:
    """Return what the caller of a verb is given for an error met in it."""
    if isinstance(error, PoolhandError):
        return error
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == KNOWN_ID:
        return bounds.known_already()
    store_error = as_store_error(error, where)
    if store_error is not None:
        return store_error
    if isinstance(error, MsgspecError | asyncpg.IntegrityConstraintViolationError):
        return Corrupt(
            f"{where}: a row holds no record that could be read ({error}); somebody else wrote to"
            " its tables, or they are damaged"
        )
    if isinstance(error, OverflowError | ValueError) or state_of(error)[:2] == "22":
        return bounds.cannot_be_kept(error)
    return error


def as_store_error(error: Exception, where: str) -> StoreError | None:
    """Return what is raised instead of an error of the server or of the way to it."""
    what = f"{where}: {_words(error)}"
    state = state_of(error)
    if state == CONNECTIONS:
        return Unavailable(
            f"{what}: it has no connection left; raise its max_connections, or use fewer processes"
        )
    if state in FULL:
        return ReadOnly(f"{what}: nothing new is taken until there is space again")
    if state == READ_ONLY:
        return ReadOnly(f"{what}: this is a standby, or it was set read-only; name the primary")
    if state == NO_RIGHT:
        return ReadOnly(f"{what}: give this user the right to use and make the tables of poolhand")
    if state == NO_DATABASE:
        return Unavailable(f"{what}: make it with createdb, or name another one")
    if state[:2] == "28":
        return Unavailable(f"{what}: check the user and the password in the URL of the store")
    if state in AGAIN or state == CANCELLED or state[:2] in ("53", "57", "58", "08", "XX"):
        return Unavailable(f"{what}: try again")
    if isinstance(error, TimeoutError):
        return Unavailable(f"{where}: no answer in time; whether it was done is not known")
    if is_cut(error):
        return Unavailable(f"{what}: it cannot be reached; it is tried again by itself")
    return None


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
