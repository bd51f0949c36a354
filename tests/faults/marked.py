"""Marks the verbs of a store while they run, and the lock of its file while it is held."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from poolhand.stores.sqlite.lock import FileLock
from tests.faults.marks import Marks

Verb = Callable[..., Awaitable[Any]]


def mark_store(store: type, marks: Marks) -> None:
    """Mark adds, claims and settles; what is claimed with a settle is both."""
    wrapped = {
        "add": _during(marks, store, "add"),
        "replace": _replace(marks, store),
    }
    for name, verb in wrapped.items():
        setattr(store, name, verb)


def _during(marks: Marks, store: type, name: str) -> Verb:
    verb: Verb = getattr(store, name)

    @wraps(verb)
    async def marked(*args: Any, **kwargs: Any) -> Any:
        with marks.during(name):
            return await verb(*args, **kwargs)

    return marked


def _replace(marks: Marks, store: Any) -> Verb:
    verb: Verb = store.replace

    @wraps(verb)
    async def marked(self: Any, changes: Any = (), wanted: Any = None, released: Any = ()) -> Any:
        phases = (("settle", changes), ("claim", wanted))
        with marks.during(*(phase for phase, what in phases if what)):
            return await verb(self, changes, wanted, released)

    return marked


def mark_lock(marks: Marks) -> None:
    """Mark that the lock between processes is held; a marked lock is certainly held."""
    take, release = FileLock.take, FileLock.release

    def marked_take(self: FileLock, *args: Any) -> bool:
        taken = take(self, *args)
        if taken:
            marks.enter("lock")
        return taken

    def marked_release(self: FileLock) -> None:
        if "lock" in marks.now():
            marks.leave("lock")
        release(self)

    for name, method in (("take", marked_take), ("release", marked_release)):
        setattr(FileLock, name, method)
