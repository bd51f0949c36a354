"""The messages of PostgreSQL in both streams: split, classified, counted.

Knows enough of the protocol to match answers with requests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

_LENGTH = struct.Struct("!I")
_OPENING = struct.Struct("!II")
CANCEL, SSL, GSS = 80877102, 80877103, 80877104
ENDS_REQUEST = frozenset("QSF")  # Query, Sync, FunctionCall: one ReadyForQuery comes for each


class Way(StrEnum):
    """The direction of bytes: up to the server, or down to the client."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True)
class Message:
    """One message: `kind` is its letter, empty for those without one; `data` is all of it."""

    kind: str
    data: bytes

    @property
    def texts(self) -> list[str]:
        """The texts it begins with, each terminated by a zero byte."""
        return [part.decode(errors="replace") for part in self.data[5:].split(b"\0")]


class Exchange:
    """One connection: its requests, its answers, and its prepared statements.

    `asked` counts requests, the opening of the connection included; `answered` counts the
    ReadyForQuery of each.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.answered = 0
        self.in_transaction = False
        self._rest = {Way.UP: b"", Way.DOWN: b""}
        self._begun = False
        self._single = 0
        self._prepared: dict[str, str] = {}

    @property
    def idle_in_transaction(self) -> bool:
        """Whether the server waits for the next statement of a transaction."""
        return self.in_transaction and self.asked == self.answered

    def cut_out(self, way: Way, data: bytes) -> Iterator[Message]:
        """Yield the complete messages, in order."""
        self._rest[way] += data
        while message := self._next(way):
            self._rest[way] = self._rest[way][len(message.data) :]
            self._count(way, message)
            yield message

    def statement(self, message: Message) -> str:
        """Return the statement that a message executes, empty if none."""
        match message.kind:
            case "Q":
                return message.texts[0]
            case "B":
                return self._prepared.get(message.texts[1], "")
            case _:
                return ""

    def _next(self, way: Way) -> Message | None:
        rest = self._rest[way]
        if way is Way.DOWN and self._single and rest:
            # The answer to the request for encryption: one letter.
            self._single -= 1
            return Message("", rest[:1])
        is_opening = way is Way.UP and not self._begun
        start = 0 if is_opening else 1
        if len(rest) < start + _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(rest, start)
        whole = start + length
        if len(rest) < whole:
            return None
        return Message("" if is_opening else chr(rest[0]), rest[:whole])

    def _count(self, way: Way, message: Message) -> None:
        if way is Way.DOWN:
            if message.kind == "Z":
                self.answered += 1
                self.in_transaction = message.data[5:6] in (b"T", b"E")
        elif message.kind in ENDS_REQUEST:
            self.asked += 1
        elif message.kind == "P":
            name, query, *_ = message.texts
            self._prepared[name] = query
        elif not message.kind:
            self._open(message)

    def _open(self, message: Message) -> None:
        _, code = _OPENING.unpack_from(message.data)
        if code in (SSL, GSS):
            self._single += 1
        elif code != CANCEL:
            self._begun = True
            self.asked += 1
