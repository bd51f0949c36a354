"""The documents of the memory store."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from msgspec import Struct

from poolhand.contract import Document, Put
from poolhand.rules.streams import ERASED_FOR, erasure_of, streams_of_document


class _Document(Struct, frozen=True):
    value: bytes
    version: int
    until: float | None


class MemoryDocuments:
    """Values under keys; an expired document counts as deleted.

    `_gone` is the highest version of any deleted document: new ones begin after it, so that no
    version of a key is used twice.
    """

    def __init__(self) -> None:
        self._all: dict[str, _Document] = {}
        self._gone = 0
        self._sorted: list[str] | None = []

    def get(self, key: str, now: float) -> Document | None:
        document = self._living(key, now)
        if document is None:
            return None
        left = None if document.until is None else document.until - now
        return Document(document.value, document.version, left)

    def put(self, puts: Sequence[Put], now: float) -> tuple[int, ...] | None:
        """Write or delete all documents and return their versions, or none and return None."""
        versions: dict[str, int] = {}
        highest: dict[str, int] = {}
        written: dict[str, _Document] = {}
        numbers: list[int] = []
        for put in puts:
            if put.expect not in (None, versions.get(put.key, self._version(put.key, now))):
                return None
            if self.is_erased(put, now):
                return None
            written.pop(put.key, None)
            version, last = 0, highest.get(put.key, self._last(put.key))
            if put.value is not None:
                version = last + 1
                until = None if put.ttl is None else now + put.ttl
                written[put.key] = _Document(put.value, version, until)
            versions[put.key], highest[put.key] = version, max(version, last)
            numbers.append(version)
        self._forget([key for key in versions if key in self._all and key not in written])
        if not written.keys() <= self._all.keys():
            self._sorted = None
        self._all |= written
        return tuple(numbers)

    def is_erased(self, put: Put, now: float) -> bool:
        """Return whether the base of a document was erased."""
        found = self.get(erasure_of(put.key), now) if put.seen else None
        return found is not None and put.seen <= int(found[0])

    def erase(self, keys: Sequence[str], now: float) -> None:
        """Delete documents; for sessions the last deleted version is kept."""
        for key in keys:
            last = self._last(key)
            self._forget([key] if key in self._all else [])
            if streams_of_document(key):
                self.put([Put(erasure_of(key), b"%d" % last, ttl=ERASED_FOR)], now)

    def forget_all(self, prefix: str) -> None:
        """Delete documents with this prefix."""
        self._forget([key for key in self._all if key.startswith(prefix)])

    def scan(self, prefix: str, after: str, limit: int, now: float) -> list[str]:
        if self._sorted is None:
            self._sorted = sorted(self._all)
        keys = self._sorted
        found: list[str] = []
        for index in range(max(bisect_left(keys, prefix), bisect_right(keys, after)), len(keys)):
            if len(found) >= limit or not keys[index].startswith(prefix):
                break
            if self._version(keys[index], now):
                found.append(keys[index])
        return found

    def sweep(self, now: float) -> list[str]:
        """Delete expired documents; return their keys."""
        gone = [key for key in self._all if not self._version(key, now)]
        self._forget(gone)
        return gone

    def _forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._gone = max(self._gone, self._all.pop(key).version)
            self._sorted = None

    def _last(self, key: str) -> int:
        """Return a version that no later one of a key may have."""
        document = self._all.get(key)
        return self._gone if document is None else document.version

    def _version(self, key: str, now: float) -> int:
        document = self._living(key, now)
        return 0 if document is None else document.version

    def _living(self, key: str, now: float) -> _Document | None:
        document = self._all.get(key)
        if document is None or (document.until is not None and document.until <= now):
            return None
        return document
