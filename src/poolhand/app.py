"""The composition root: where a URL becomes a store, and the parts meet."""

from __future__ import annotations

from poolhand.contract import Store
from poolhand.errors import Unsupported, UsageError
from poolhand.runtime import Runtime

KINDS = "memory://, sqlite:///file.db (a relative path) or sqlite:////absolute/file.db"


def store_of(url: str, runtime: Runtime) -> Store:
    """Return the store, not yet open, that a URL names."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise UsageError(f"store={url!r} is not allowed; give {KINDS}")
    match scheme:
        case "memory":
            from poolhand.stores.memory import MemoryStore

            return MemoryStore(runtime)
        case "sqlite":
            from poolhand.stores.sqlite import SqliteStore

            return SqliteStore(_path(url, rest), runtime)
        case _:
            raise Unsupported(f"store={url!r} is not supported by this version; use {KINDS}")


def _path(url: str, rest: str) -> str:
    if not rest.startswith("/") or len(rest) < 2:
        raise UsageError(f"store={url!r} names no file; give {KINDS}")
    return rest[1:]
