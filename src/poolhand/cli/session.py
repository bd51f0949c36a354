"""The session of a command: opens the store that the settings name, and reports errors.

An error of ours becomes one line on stderr and an exit code.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from poolhand import config as settings
from poolhand.app_name import load_app
from poolhand.cli import screen
from poolhand.cli.options import Source
from poolhand.contract import Store
from poolhand.errors import PoolhandError, Unavailable, UsageError
from poolhand.operate.actions import Operator
from poolhand.operate.store_findings import InFile, OnServer
from poolhand.operate.views import ControlResult
from poolhand.rules.validation import nearest
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of

if TYPE_CHECKING:
    from poolhand.app import App


class Exit(IntEnum):
    """The exit codes of the commands."""

    FINE = 0
    WRONG = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    STORE = 5


CODES = {
    "PH-000": Exit.WRONG,
    "PH-USE": Exit.USAGE,
    "PH-POL": Exit.REFUSED,
    "PH-JOB": Exit.WRONG,
    "PH-STO": Exit.STORE,
    "PH-STO-002": Exit.REFUSED,  # a conflict with another process
    "PH-STO-003": Exit.USAGE,  # no such kind of store
    "PH-WIR": Exit.WRONG,
    "PH-TOL": Exit.WRONG,
    "PH-DIR": Exit.WRONG,
}


def code_of_error(error: PoolhandError) -> Exit:
    """Return the exit code of an error: by its own code, else by its family."""
    family = error.code.rpartition("-")[0]
    return CODES.get(error.code, CODES.get(family, Exit.WRONG))


def code_of_answers(answers: Sequence[ControlResult]) -> Exit:
    """Return the exit code of an operation on several jobs: partly done counts as wrong."""
    if all(answer.done for answer in answers):
        return Exit.FINE
    if any(answer.done for answer in answers):
        return Exit.WRONG
    return (
        Exit.NOT_FOUND if all(answer.reason == "not_found" for answer in answers) else Exit.REFUSED
    )


T = TypeVar("T")

_WARNED: set[str] = set()  # variables of which this process has warned

NO_STORE = (
    "no store is named, and there is no poolhand.db in this folder; give --store URL (such as "
    "sqlite:///agents.db or postgresql://user@host/database) or --app module:app, "
    "or set POOLHAND_STORE, or `store` in [tool.poolhand] of pyproject.toml"
)


def operate(source: Source, work: Callable[[Operator], Awaitable[T]]) -> T:
    """Open the named store, call `work` with an operator of it, and close it."""
    with reported_errors() as urls:
        url = named(source)
        urls.urls.append(url)
        return asyncio.run(_operate(url, work))
    raise AssertionError("a reported error has ended the command")


async def _operate(url: str, work: Callable[[Operator], Awaitable[T]]) -> T:
    runtime = Runtime()
    store = existing(url, runtime)
    if isinstance(store, InFile | OnServer):
        check_schema(place_of(store), *await store.schema(), url)
    async with opened(store):
        return await work(Operator(store, runtime))


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[None]:
    """Open a store for the length of a block."""
    await store.open()
    try:
        yield
    finally:
        await store.close()


def existing(url: str, runtime: Runtime) -> Store:
    """Return the store of a URL; raise if its file does not exist: reading creates none."""
    store = outside(url, runtime)
    if isinstance(store, InFile) and not store.path.exists():
        raise Unavailable(
            f"there is no file {str(store.path)!r}; check the name, or create a store there with "
            f"`{_migrate(url)}`"
        )
    return store


def place_of(store: InFile | OnServer) -> str:
    """Return the place of a store as text: its path or its address."""
    return str(store.path) if isinstance(store, InFile) else store.place


def check_schema(place: str, has: int, knows: int, url: str) -> None:
    """Raise if opening the store would migrate it: only `poolhand migrate` may do that."""
    if has == 0:
        raise Unavailable(
            f"{place!r} is not a store of poolhand yet; check the name, or make it one with "
            f"`{_migrate(url)}`"
        )
    if has < knows:
        raise Unavailable(
            f"{place!r} has schema number {has}, this poolhand needs {knows}; migrate it "
            f"with `{_migrate(url)}`; the changelog says which older versions can still use it"
        )


def outside(url: str, runtime: Runtime) -> Store:
    """Return the store of a URL; raise if other processes cannot open it."""
    store = store_of(url, runtime)
    if url.lower().startswith("memory:"):
        raise UsageError(
            f"store={url!r} is in the memory of the process that uses it; "
            "ask app.operator() in that process, or keep jobs in a file (sqlite:///agents.db) or "
            "on a server (postgresql://user@host/database)"
        )
    if isinstance(store, InFile):
        _check_place(store.path)
    return store


def _check_place(path: Path) -> None:
    try:
        if path.is_dir():
            raise Unavailable(f"{str(path)!r} is a folder; name a file in it")
    except OSError as error:
        raise Unavailable(f"{str(path)!r} cannot be inspected: {error.strerror}") from error


def _migrate(url: str) -> str:
    """Return the command that migrates a store; a password is not shown."""
    by_url, by_app = settings.load_store(store=None, app=None)
    if by_url.text == url and by_app.text is None:
        return "poolhand migrate"
    shown = settings.masked(url)
    note = "" if shown == url else "  # with the password for ***"
    return f"poolhand migrate --store {shlex.quote(shown)}{note}"


def named(source: Source) -> str:
    """Return the URL of the store: from `store` or `app`, whichever setting takes precedence."""
    _warn_of_variables()
    by_url, by_app = settings.load_store(store=source.store, app=source.app)
    if by_app.text is not None and by_app.rank < by_url.rank:
        return loaded(by_app.text).url
    assert by_url.text is not None
    if by_url.is_default:
        _check_default(by_url.text)
    elif by_url.rank > 0:
        # Not a flag, which is in sight: an error names the setting that has the URL.
        store_of(by_url.text, Runtime(), by_url.origin)
    return by_url.text


def _warn_of_variables() -> None:
    """Warn once of variables that look like ours and are not."""
    for name in settings.unknown_variables():
        if name not in _WARNED:
            _WARNED.add(name)
            screen.warn(settings.unknown_variable(name))


def loaded(app: str) -> App:
    """Import the app of a name; notices of its import go to stderr at once."""
    return load_app(app, screen.warn)


def file_of(url: str) -> Path | None:
    """Return the file that a URL names, None if it names something else."""
    try:
        store = store_of(url, Runtime())
    except PoolhandError:
        return None
    return store.path.absolute() if isinstance(store, InFile) else None


def _check_default(url: str) -> None:
    """Raise unless the default store's file exists."""
    file = file_of(url)
    if file is not None and not file.exists():
        raise UsageError(NO_STORE)


class StoreUrls:
    """The URLs in use, whose secrets are removed from error messages."""

    def __init__(self) -> None:
        self.urls: list[str] = []


@contextmanager
def reported_errors() -> Iterator[StoreUrls]:
    """Turn an error of ours into one line on stderr and the exit code of the command."""
    known = StoreUrls()
    try:
        yield known
    except PoolhandError as error:
        text = settings.without_secrets(error.message, known.urls)
        screen.warn(f"{text} [{error.code}]")
        raise typer.Exit(code_of_error(error)) from None


def fail(text: str, code: int) -> typer.Exit:
    """Report an error on stderr; return the exception that exits with that code."""
    screen.warn(text)
    return typer.Exit(code)


def missing(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the error text for an unknown pool or schedule, with the nearest name."""
    near = nearest(name, known)
    hint = f"see `poolhand {kind}s list`" if near is None else f"did you mean {near!r}?"
    return f"there is no {kind} {name!r}; {hint}"
