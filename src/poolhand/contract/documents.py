"""The port of documents: small values under keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from poolhand.contract.log import LogLine


class Put(Struct, frozen=True, gc=False):
    """A document to write if its version is still `expect` (0: there is none; None: whatever).

    `seen` is the version that its writer goes on from: one that was erased is not written again.
    """

    key: str
    value: bytes
    expect: int | None = None
    ttl: float | None = None
    seen: int = 0


class Documents(Protocol):
    """Small values under keys, each with a version that grows with every write.

    No version of a key comes twice: a new document may start above 1, behind deleted ones.
    """

    async def get_document(self, key: str) -> tuple[bytes, int] | None:
        """Return a document and its version."""

    async def expires_in(self, key: str) -> float | None:
        """Return for how many more seconds a document is kept, by the store's clock.

        None: there is none, or it has no end.
        """

    async def put(
        self, puts: Sequence[Put], token: int | None = None, log: Sequence[LogLine] = ()
    ) -> tuple[int, ...] | None:
        """Write all documents, and lines with them, and return their versions.

        None: a version differs, one was erased, or the claim is invalid; nothing is written.
        """

    async def delete(self, key: str, expect: int | None = None) -> bool:
        """Delete a document; tell whether it was there, of that version."""

    async def scan(self, prefix: str, after: str = "", limit: int = 100) -> list[str]:
        """Return keys that begin so, sorted, from behind `after` on."""
