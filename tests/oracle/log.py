"""The log of the memory store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from poolhand.contract import LogEntry, LogLine
from poolhand.rules.audit import STREAM, Audit, kind_of


class _Stream:
    """Lines, in columns, and the number of the first one kept."""

    __slots__ = ("ats", "bodies", "first", "kinds")

    def __init__(self) -> None:
        self.first = 1
        self.ats: list[datetime] = []
        self.kinds: list[str] = []
        self.bodies: list[bytes | Audit] = []

    def append(self, at: datetime, kind: str, body: bytes | Audit) -> None:
        self.ats.append(at)
        self.kinds.append(kind)
        self.bodies.append(body)


class MemoryLog:
    """Streams of lines; audit records are stored as objects and encoded when they are read."""

    def __init__(self) -> None:
        self._audit = _Stream()
        self._streams: dict[str, _Stream] = {STREAM: self._audit}

    def append(self, lines: Sequence[LogLine], at: datetime) -> None:
        for line in lines:
            stream = self._streams.get(line.stream)
            if stream is None:
                stream = self._streams[line.stream] = _Stream()
            stream.append(at, line.kind, line.body)

    def audit(self, record: Audit, at: datetime) -> None:
        self._audit.append(at, "", record)

    def read(self, name: str, after: int, limit: int, kind: str) -> list[LogEntry]:
        stream = self._streams.get(name)
        if stream is None:
            return []
        found: list[LogEntry] = []
        for index in range(max(0, after - stream.first + 1), len(stream.ats)):
            if len(found) >= limit:
                break
            its_kind, body = stream.kinds[index], stream.bodies[index]
            if not isinstance(body, bytes):
                its_kind, body = kind_of(body), msgspec.json.encode(body)
            if its_kind.startswith(kind):
                found.append(LogEntry(stream.first + index, stream.ats[index], its_kind, body))
        return found

    def forget(self, names: Iterable[str]) -> None:
        """Delete whole streams."""
        for name in names:
            self._streams.pop(name, None)

    def trim(self, name: str, before: int) -> int:
        """Delete the lines below a number; the last one stays, so that numbers continue."""
        stream = self._streams.get(name)
        if stream is None:
            return 0
        count = max(0, min(before - stream.first, len(stream.ats) - 1))
        del stream.ats[:count], stream.kinds[:count], stream.bodies[:count]
        stream.first += count
        return count
