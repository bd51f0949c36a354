"""Translates errors of PostgreSQL, and of the connection to it, for the caller."""

from __future__ import annotations

import asyncio
import socket
import ssl

import asyncpg
from msgspec import MsgspecError

from poolhand.errors import Corrupt, PoolhandError, ReadOnly, StoreError, Unavailable, UsageError
from poolhand.stores.sql.tables import cannot_be_kept, known_already

KNOWN_ID = "poolhand_jobs_by_id"
UNFIT = ("22", "54")  # invalid values, or values that exceed a limit
AGAIN = frozenset({"40001", "40P01", "55P03"})  # serialization failure, deadlock, lock timeout
FULL = frozenset({"53100", "53200"})  # disk, memory
CONNECTIONS = "53300"
LEAVING = frozenset({"57P01", "57P02", "57P03", "57P05"})  # shutdown, crash, startup, idle too long
READ_ONLY = "25006"
NO_RIGHT = "42501"
# Prepared on one connection and used on another: there is a pooler in between.
NOT_PREPARED = frozenset({"26000", "42P05"})
PROTOCOL = "08P01"
OTHERS = "bind message supplies"  # values for a statement that another client prepared
UNSET = "unsupported startup parameter"  # PgBouncer's refusal of a setting that it cannot keep
CANCELLED = "57014"
NO_DATABASE = "3D000"
TOO_LONG_IDLE = "25P03"
# A setting that does not exist, has no such value, or cannot be set.
NO_SETTING = frozenset({"42704", "22023", "55P02"})
BEHIND_POOLER = (
    "there is a pooler such as PgBouncer before the server, which lends its connections for a"
    " transaction at a time; add pooler=transaction to the URL of the store"
    " (postgresql://user@host/database?pooler=transaction)"
)
OF_DRIVER = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def state_of(error: BaseException | None) -> str:
    """Return the SQLSTATE of an error, empty if it is not the server's."""
    return getattr(error, "sqlstate", None) or ""


def is_denied(error: BaseException) -> bool:
    """Return whether a store error says that the user lacks a right."""
    return state_of(error.__cause__) == NO_RIGHT


def is_passing(error: BaseException) -> bool:
    """Return whether a retry may well succeed: a concurrent transaction conflicted."""
    outdated = asyncpg.InvalidCachedStatementError | asyncpg.OutdatedSchemaCacheError
    return state_of(error) in AGAIN or isinstance(error, outdated)


def is_cut(error: BaseException) -> bool:
    """Return whether the connection is lost, and with it the outcome of its work."""
    if isinstance(error, asyncpg.PostgresError):
        state = state_of(error)
        return state[:2] == "08" or state in LEAVING or state == TOO_LONG_IDLE
    if isinstance(error, ValueError | TimeoutError):
        # The driver's error for an invalid value is an InterfaceError, too.
        return False
    of_way = asyncpg.InterfaceError | asyncpg.InternalClientError | asyncio.IncompleteReadError
    return isinstance(error, OSError | of_way)


def is_crowded(error: BaseException | None) -> bool:
    """Return whether connecting failed because all connections are in use."""
    return state_of(error) == CONNECTIONS


def is_future(error: BaseException) -> bool:
    """Return whether the xid that was asked for is not assigned yet."""
    return state_of(error) == "22023"


def translate(error: Exception, where: str) -> Exception:
    """Translate an error for the caller of a verb."""
    if isinstance(error, PoolhandError):
        return error
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == KNOWN_ID:
        return known_already()
    store_error = as_store_error(error, where)
    if store_error is not None:
        return store_error
    if isinstance(error, MsgspecError | asyncpg.IntegrityConstraintViolationError):
        return Corrupt(
            f"{where}: a row cannot be decoded ({error}); another program wrote to its tables, or"
            " they are damaged"
        )
    if isinstance(error, OverflowError | ValueError) or state_of(error)[:2] in UNFIT:
        return cannot_be_kept(error)
    if isinstance(error, OF_DRIVER):
        return Unavailable(f"{where}: {_words(error)} ({state_of(error) or 'driver'}): try again")
    return error


def as_store_error(error: Exception, where: str) -> StoreError | None:
    """Return the error to raise instead of one of the server or of the connection."""
    what = f"{where}: {_words(error)}"
    state = state_of(error)
    if state in NOT_PREPARED or (state == PROTOCOL and OTHERS in str(error)):
        return Unavailable(f"{what.splitlines()[0]}: {BEHIND_POOLER}")
    if state in FULL:
        return ReadOnly(f"{what}: no new jobs are accepted until there is free space")
    if state == READ_ONLY:
        return ReadOnly(f"{what}: this is a standby, or it was set read-only; name the primary")
    if state == NO_RIGHT:
        return ReadOnly(
            f"{what}: this user lacks a right; `poolhand doctor` prints the GRANT statements, and "
            "only the first start, or `poolhand migrate`, needs the right to create tables"
        )
    if state[:2] in ("42", "3F"):
        # Tables, columns or types are not those that the statements were written for.
        return Corrupt(
            f"{what}: tables of poolhand were dropped or changed; restore a backup, or open the"
            " store again to create what is missing"
        )
    if state in AGAIN or state == CANCELLED or state[:2] in ("53", "57", "58", "08", "XX"):
        return Unavailable(f"{what}: {_advice(error) or 'try again'}")
    if isinstance(error, TimeoutError):
        return Unavailable(f"{where}: no answer in time; the change may or may not have been made")
    if is_cut(error):
        return Unavailable(f"{what}: it cannot be reached; poolhand retries by itself")
    return None


def on_the_way(error: Exception, where: str, seconds: float) -> Exception:
    """Return the error to raise when no connection could be made."""
    if isinstance(error, asyncpg.ClientConfigurationError) or state_of(error) in NO_SETTING:
        return UsageError(f"store: {error}; check the options after the ? of the URL")
    if state_of(error) == PROTOCOL and UNSET in str(error):
        return UsageError(f"store: {where}: {_words(error)}: {BEHIND_POOLER}")
    if isinstance(error, TimeoutError):
        return Unavailable(
            f"{where}: no connection within {seconds:g} s: check host and port in the URL, and"
            " whether the server is overloaded or behind a firewall"
        )
    if isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        return Unavailable(f"{where}: {_words(error)}: {_advice(error)}")
    translated = as_store_error(error, where)
    return translated or Unavailable(f"{where}: {_words(error)}: {_advice(error) or 'try again'}")


def _advice(error: Exception) -> str:
    """Return what to do when no connection is made."""
    state = state_of(error)
    if state == CONNECTIONS:
        return "it has no connection left; raise its max_connections, or use fewer processes"
    if state == NO_DATABASE:
        return "make it with createdb, or name another one"
    if state[:2] == "28":
        return (
            "check the user and the password in the URL of the store, and what the server's"
            " pg_hba.conf allows; where it wants TLS, add sslmode=require"
        )
    if isinstance(error, ssl.SSLError):
        return "check sslmode and sslrootcert in the URL, and the certificate of the server"
    if type(error) is ConnectionError and "SSL" in str(error):
        return "turn TLS on there, or change sslmode in the URL"
    if isinstance(error, socket.gaierror):
        return "no such host is known; check the URL"
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "none of its hosts is what target_session_attrs asks for; check the URL"
    if isinstance(error, OSError):
        return "it cannot be reached; start it, or check host and port in the URL"
    return ""


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
