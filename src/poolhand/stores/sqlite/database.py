"""The interface to the tables of a SQLite store, in a file or in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Protocol, TypeVar

from poolhand.contract import Hint

T = TypeVar("T")
Op = Callable[[sqlite3.Connection], T]


class Database(Protocol):
    """The operations that a SQLite store needs of its file or memory."""

    @property
    def path(self) -> str: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def check(self) -> None: ...

    async def write(self, op: Op[T]) -> T: ...

    def read(self, op: Op[T]) -> T: ...

    async def begin(self) -> sqlite3.Connection: ...

    def end(self, connection: sqlite3.Connection) -> None: ...

    def now(self) -> float: ...

    def tick(self, connection: sqlite3.Connection) -> None:
        """Store the current time in the transaction that is being committed."""

    async def shorten(self) -> None:
        """Remove all remains of erased data."""

    def signal(self, topic: str) -> None: ...

    def subscribe(self, hint: Hint) -> Callable[[], None]: ...

    def publish(self, topic: str) -> None: ...

    def failure(self, error: BaseException) -> Exception: ...

    def expect_own(self) -> None: ...
