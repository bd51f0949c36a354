"""Opens the store that a URL names."""

from __future__ import annotations

import os

from poolhand.config import masked, parted
from poolhand.contract import Store
from poolhand.errors import Unsupported, UsageError
from poolhand.pool.scope import is_path
from poolhand.rules.validation import nearest, shown
from poolhand.runtime import Runtime
from poolhand.spawning import absolute_path

KINDS = (
    "memory://, sqlite:///file.db (a relative path), sqlite:////absolute/file.db or "
    "postgresql://user:password@host:5432/database"
)
MEANT = {"sqlite": "sqlite:///file.db", "memory": "memory://"}
NEAR = 0.75  # least similarity at which a misspelt scheme is recognised
SQLITE, POSTGRES = ("sqlite",), ("postgresql", "postgres", "psql", "pgsql", "postgre", "pg")
NAMED = (*SQLITE, *POSTGRES)
OWNER, GROUP = 0o600, 0o660
_PERMISSIONS = {"600": OWNER, "660": GROUP}
POSTGRES_NEEDS = ("asyncpg", "greenlet")


def store_of(url: str, runtime: Runtime, origin: str = "") -> Store:
    """Return the store, not yet open, that a URL names; `origin` is the setting that has the URL.

    An error names that setting.
    """
    try:
        return _store_of(url, runtime)
    except (UsageError, Unsupported) as error:
        if not origin:
            raise
        raise type(error)(f"{origin}: {error.message}") from error


def absolute(url: str) -> str:
    """Return the URL of a store with the full path of its file: the current folder may change."""
    scheme, separator, rest = url.partition(":///")
    if scheme.lower() != "sqlite" or not separator:
        return url
    path, query = parted(rest)
    return f"{scheme}:///{absolute_path(path)}" + ("" if query is None else f"?{query}")


def _store_of(url: str, runtime: Runtime) -> Store:
    scheme, separator, rest = str(url).partition("://")
    given = _given(url)
    _check_ends(str(url), given)
    if not separator:
        raise UsageError(f"store={given} is not allowed; give {KINDS}")
    match scheme.lower():
        case "memory":
            from poolhand.stores.sqlite.store import MemoryStore

            return MemoryStore(runtime)
        case "sqlite":
            from poolhand.stores.sqlite.store import SqliteStore

            path, query = parted(rest)
            place, rights = _path(url, path), _permissions(query)
            _check_folder(url, place)
            return SqliteStore(place, runtime, rights)
        case "postgresql" | "postgres":
            try:
                from poolhand.stores.postgres.store import PostgresStore
            except ImportError as error:
                if (error.name or "").partition(".")[0] not in POSTGRES_NEEDS:
                    raise
                raise Unsupported(
                    f"store={given} needs {error.name}; install poolhand[postgres]"
                ) from error

            return PostgresStore(str(url), runtime)
        case _:
            hint = _other_scheme(scheme.lower())
            raise Unsupported(f"store={given} is not supported by this version; {hint}")


def _check_ends(url: str, given: str) -> None:
    """Raise for blanks and control characters at the ends of a URL: it would name another file."""
    if url.strip() and (url.strip() != url or not (url[0] + url[-1]).isprintable()):
        raise UsageError(
            f"store={given} is not allowed; it begins or ends with a blank or a control character: "
            "remove it (a \\r comes from a file with Windows line ends, such as .env)"
        )


def _other_scheme(scheme: str) -> str:
    """Return how to write a scheme that is misspelt or names a driver."""
    kind = scheme.partition("+")[0]
    near = nearest(kind, (*SQLITE, *POSTGRES, "memory"), NEAR) if kind not in NAMED else None
    if near is not None:
        return f"did you mean {MEANT.get(near, 'postgresql://user@host/database')}?"
    driver = ", without a driver: poolhand has its own" if "+" in scheme else ""
    if kind in SQLITE:
        return f"write sqlite:///file.db{driver}"
    if kind in POSTGRES:
        return f"write postgresql://…{driver}"
    return f"use {KINDS}"


def _given(url: object) -> str:
    """Return a URL as an error message may show it, its password masked."""
    return shown(masked(url) if isinstance(url, str) else url)


def _permissions(query: str | None) -> int:
    """Return the permissions for the files that a store creates."""
    if query is None:
        return OWNER
    found = _PERMISSIONS.get(query.removeprefix("permissions="))
    if found is None or not query.startswith("permissions="):
        raise UsageError(
            f"store: the text after the ? of sqlite:///file.db ({shown(query)}) is not allowed;"
            f"{_hint(query)} leave it out, or write permissions=660 to let a group use the files"
            " (permissions=600, one user, is the default)"
        )
    return found


def _hint(query: str) -> str:
    """Return what is wrong with options that belong to SQLite itself or to another library."""
    names = [word.partition("=")[0] for word in query.split("&")]
    if "mode" in names or "immutable" in names:
        return (
            " a store is always opened to read and to write (to only look at one, use the "
            "`poolhand` commands);"
        )
    strange = [name for name in names if name and name != "permissions"]
    return f" there is no option {shown(strange[0])};" if strange else ""


def _path(url: str, rest: str) -> str:
    path = rest[1:]
    if not rest.startswith("/") or not path:
        raise UsageError(f"store={shown(url)} names no file; give {KINDS}")
    if path == ":memory:":
        raise UsageError(f"store={shown(url)} is not allowed; use memory://, or name a file")
    if not is_path(path):
        raise UsageError(f"store={shown(url)} is not allowed; no file can have that name")
    return path


def _check_folder(url: str, path: str) -> None:
    """Raise for a relative path if the current folder was deleted or cannot be read."""
    if os.path.isabs(path):
        return
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(
            f"store={shown(url)} is relative to the current folder of this process, which cannot "
            f"be used ({error.strerror}: it was probably deleted); start the process in a folder "
            "that exists, or name the file by its full path: sqlite:////data/jobs.db"
        ) from None
