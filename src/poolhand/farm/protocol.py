"""What a supervisor and its worker processes say to each other, over a pipe between the two.

A pipe, not the store: who watches over a worker must hear it while the store is away, and when one
end of it dies the other knows at once.
"""

from __future__ import annotations

from struct import Struct as Layout

import msgspec
from msgspec import Struct

from poolhand.farm.records import FinishedJob, RunningJob, Snapshot
from poolhand.rules.scaling.farm_settings import FarmSettings

_HEAD = Layout(">I")
CHUNK = 65_536  # bytes that are read at once


class Order(Struct, frozen=True, tag=True):
    """The root of what a supervisor says."""


class Employ(Order, frozen=True):
    """The first word: which app to run, as whom, under which settings."""

    app: str
    farm: str
    worker: str
    settings: FarmSettings
    pools: tuple[str, ...] | None = None
    loglevel: str = "info"
    verbose: bool = False


class Alive(Order, frozen=True):
    """The supervisor shows life."""


class Stop(Order, frozen=True):
    """Take no more jobs, finish within `grace` seconds (None: however long that takes), and end."""

    farm: str
    grace: float | None
    why: str


class Ask(Order, frozen=True):
    """Tell what runs and what has lately ended; the answer bears this number."""

    number: int
    after: int
    limit: int


class Word(Struct, frozen=True, tag=True):
    """The root of what a worker says."""


class Beat(Word, frozen=True):
    """A worker shows life, and tells how it is; `finished` are the newest since the last beat."""

    ready: bool
    leaving: str | None
    active: int
    stuck: int
    completed: int
    failed: int
    memory: int
    blocked: float
    jobs: tuple[RunningJob, ...] = ()
    finished: tuple[FinishedJob, ...] = ()


class Happened(Word, frozen=True):
    """Something that the supervisor should know at once."""

    text: str
    job: str | None = None


class CutShort(Word, frozen=True):
    """The worker has to end while jobs run: those that are handed back, and what is said of all."""

    handed_back: tuple[str, ...]
    text: str


class Failed(Word, frozen=True):
    """The worker cannot work, and ends."""

    text: str


class Answer(Word, frozen=True):
    """What was asked for."""

    number: int
    snapshot: Snapshot


class Bye(Word, frozen=True):
    """All is written; the process ends."""

    completed: int
    failed: int
    handed_back: int


Orders = Employ | Alive | Stop | Ask
Words = Beat | Happened | CutShort | Failed | Answer | Bye

_encoder = msgspec.msgpack.Encoder()
_orders: msgspec.msgpack.Decoder[Orders] = msgspec.msgpack.Decoder(Orders)
_words: msgspec.msgpack.Decoder[Words] = msgspec.msgpack.Decoder(Words)


def packed(message: Orders | Words) -> bytes:
    """Return a message as it goes through the pipe."""
    body = _encoder.encode(message)
    return _HEAD.pack(len(body)) + body


class Inbox(msgspec.Struct):
    """Makes messages of the bytes that come, however they were cut."""

    _bytes: bytearray = msgspec.field(default_factory=bytearray)

    def orders(self, data: bytes) -> list[Orders]:
        return [_orders.decode(body) for body in self._bodies(data)]

    def words(self, data: bytes) -> list[Words]:
        return [_words.decode(body) for body in self._bodies(data)]

    def _bodies(self, data: bytes) -> list[bytes]:
        self._bytes += data
        bodies = []
        while len(self._bytes) >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._bytes)
            end = _HEAD.size + size
            if len(self._bytes) < end:
                break
            bodies.append(bytes(self._bytes[_HEAD.size : end]))
            del self._bytes[:end]
        return bodies
