"""What a supervisor and its worker processes say to each other, over a pipe between the two.

A pipe, not the store: who watches over a worker must hear it while the store is away, and when one
end of it dies the other knows at once. The tags are those of older versions: during an upgrade an
older supervisor and a newer worker understand each other.
"""

from __future__ import annotations

from struct import Struct as Layout

import msgspec
from msgspec import Struct

from poolhand.farm.records import FinishedJob, RunningJob, Snapshot
from poolhand.rules.scaling.farm_settings import FarmSettings

_HEAD = Layout(">I")
CHUNK = 65_536  # bytes that are read at once


class SupervisorMessage(Struct, frozen=True, tag=True):
    """The root of what a supervisor says."""


class Start(SupervisorMessage, frozen=True, tag="Employ"):
    """The first word: which app to run, as whom, under which settings."""

    app: str
    farm: str
    worker: str
    settings: FarmSettings
    pools: tuple[str, ...] | None = None
    loglevel: str = "info"
    verbose: bool = False


class Ping(SupervisorMessage, frozen=True, tag="Alive"):
    """The supervisor shows life."""


class Stop(SupervisorMessage, frozen=True, tag="Stop"):
    """Take no more jobs, finish within `grace` seconds (None: however long that takes), and end."""

    farm: str
    grace: float | None
    why: str


class SnapshotRequest(SupervisorMessage, frozen=True, tag="Ask"):
    """Tell what runs and what has lately ended; the answer bears this number."""

    number: int
    after: int
    limit: int


class WorkerMessage(Struct, frozen=True, tag=True):
    """The root of what a worker says."""


class HeartbeatMessage(WorkerMessage, frozen=True, tag="Beat"):
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


class TroubleReport(WorkerMessage, frozen=True, tag="Happened"):
    """Something that the supervisor should know at once."""

    text: str
    job: str | None = None


class CutShort(WorkerMessage, frozen=True):
    """The worker has to end while jobs run: those that are handed back, and what is said of all."""

    handed_back: tuple[str, ...]
    text: str


class StartFailed(WorkerMessage, frozen=True, tag="Failed"):
    """The worker cannot work, and ends."""

    text: str


class SnapshotAnswer(WorkerMessage, frozen=True, tag="Answer"):
    """What was asked for."""

    number: int
    snapshot: Snapshot


class Goodbye(WorkerMessage, frozen=True, tag="Bye"):
    """All is written; the process ends."""

    completed: int
    failed: int
    handed_back: int


SupervisorMessages = Start | Ping | Stop | SnapshotRequest
WorkerMessages = (
    HeartbeatMessage | TroubleReport | CutShort | StartFailed | SnapshotAnswer | Goodbye
)

_encoder = msgspec.msgpack.Encoder()
_supervisor_messages: msgspec.msgpack.Decoder[SupervisorMessages] = msgspec.msgpack.Decoder(
    SupervisorMessages
)
_worker_messages: msgspec.msgpack.Decoder[WorkerMessages] = msgspec.msgpack.Decoder(WorkerMessages)


def packed(message: SupervisorMessages | WorkerMessages) -> bytes:
    """Return a message as it goes through the pipe."""
    body = _encoder.encode(message)
    return _HEAD.pack(len(body)) + body


class MessageBuffer(msgspec.Struct):
    """Makes messages of the bytes that come, however they were cut."""

    _bytes: bytearray = msgspec.field(default_factory=bytearray)

    def from_supervisor(self, data: bytes) -> list[SupervisorMessages]:
        return [_supervisor_messages.decode(body) for body in self._bodies(data)]

    def from_worker(self, data: bytes) -> list[WorkerMessages]:
        return [_worker_messages.decode(body) for body in self._bodies(data)]

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
