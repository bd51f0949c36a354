"""The documents port: small values under keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from poolhand.contract.log import LogLine


class Put(Struct, frozen=True, gc=False):
    """A document to write if its version is still `expect` (0: it must not exist; None: any).

    `seen` is the version that the writer read: a document erased since then is not written again.
    """

    key: str
    value: bytes
    expect: int | None = None
    ttl: float | None = None
    seen: int = 0


class Documents(Protocol):
    """Small values under keys, each with a version that grows with every write.

    A version of a key is never reused: a new document may start above 1, after deleted ones.
    """

    async def get_document(self, key: str) -> tuple[bytes, int] | None:
        """Return a document and its version."""

    async def expires_in(self, key: str) -> float | None:
        """Return the seconds until a document expires, by the store's clock.

        None: the document does not exist, or does not expire.
        """

    async def put(
        self, puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
    ) -> tuple[int, ...] | None:
        """Write all documents, and log lines with them, and return the new versions.

        None: a version differs, a document was erased, or the claim is invalid; nothing is written.
        """

    async def delete(self, key: str, expect: int | None = None) -> bool:
        """Delete a document; return whether it existed with that version."""

    async def scan(self, prefix: str, after: str = "", limit: int = 100) -> list[str]:
        """Return the keys with this prefix, sorted, starting after `after`."""
