"""Which store a URL names."""

from __future__ import annotations

from poolhand.config import masked
from poolhand.contract import Store
from poolhand.errors import Unsupported, UsageError
from poolhand.pool.scope import is_path
from poolhand.rules.checks import shown
from poolhand.runtime import Runtime

KINDS = (
    "memory://, sqlite:///file.db (a relative path), sqlite:////absolute/file.db or "
    "postgresql://user:password@host:5432/database"
)
POSTGRES_NEEDS = ("asyncpg", "greenlet")


def store_of(url: str, runtime: Runtime) -> Store:
    """Return the store, not yet open, that a URL names."""
    scheme, separator, rest = str(url).partition("://")
    given = _given(url)
    if not separator:
        raise UsageError(f"store={given} is not allowed; give {KINDS}")
    match scheme.lower():
        case "memory":
            from poolhand.stores.sqlite_memory import MemoryStore

            return MemoryStore(runtime)
        case "sqlite":
            from poolhand.stores.sqlite import SqliteStore

            return SqliteStore(_path(url, rest), runtime)
        case "postgresql" | "postgres":
            try:
                from poolhand.stores.postgres import PostgresStore
            except ImportError as error:
                if (error.name or "").partition(".")[0] not in POSTGRES_NEEDS:
                    raise
                raise Unsupported(
                    f"store={given} needs {error.name}; install poolhand[postgres]"
                ) from error

            return PostgresStore(str(url), runtime)
        case _:
            raise Unsupported(f"store={given} is not supported by this version; use {KINDS}")


def _given(url: object) -> str:
    """Return what was given for a URL as an error may show it."""
    return shown(masked(url) if isinstance(url, str) else url)


def _path(url: str, rest: str) -> str:
    path = rest[1:]
    if not rest.startswith("/") or not path:
        raise UsageError(f"store={shown(url)} names no file; give {KINDS}")
    if path == ":memory:":
        raise UsageError(f"store={shown(url)} is not allowed; use memory://, or name a file")
    if not is_path(path):
        raise UsageError(f"store={shown(url)} is not allowed; no file can have that name")
    return path
