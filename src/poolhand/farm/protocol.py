"""The messages between a supervisor and its worker processes, over a pipe.

A pipe, not the store: heartbeats must arrive while the store is unavailable, and when one end
dies the other notices at once. The tags are those of older versions: during an upgrade an older
supervisor and a newer worker can decode each other's messages.
"""

from __future__ import annotations

from struct import Struct as Layout

import msgspec
from msgspec import Struct

from poolhand.farm.records import FinishedJob, RunningJob, Snapshot
from poolhand.rules.scaling.worker_count import FarmSettings

_HEAD = Layout(">I")
CHUNK = 65_536  # bytes per read


class SupervisorMessage(Struct, frozen=True, tag=True):
    """The base class of a supervisor's messages."""


class Start(SupervisorMessage, frozen=True, tag="Employ"):
    """The first message: the app to run, the ids of farm and worker, and the settings."""

    app: str
    farm: str
    worker: str
    settings: FarmSettings
    pools: tuple[str, ...] | None = None
    loglevel: str = "info"
    verbose: bool = False


class Ping(SupervisorMessage, frozen=True, tag="Alive"):
    """The supervisor is alive."""


class Stop(SupervisorMessage, frozen=True, tag="Stop"):
    """Claim no more jobs, finish within `grace` seconds (None: without a limit), and exit."""

    farm: str
    grace: float | None
    why: str


class SnapshotRequest(SupervisorMessage, frozen=True, tag="Ask"):
    """Send the running and recently finished jobs; the answer carries this number."""

    number: int
    after: int
    limit: int


class WorkerMessage(Struct, frozen=True, tag=True):
    """The base class of a worker's messages."""


class HeartbeatMessage(WorkerMessage, frozen=True, tag="Beat"):
    """A worker's state; `finished` are the newest jobs that ended since the last heartbeat."""

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
    """A trouble that the supervisor reports at once."""

    text: str
    job: str | None = None


class CutShort(WorkerMessage, frozen=True):
    """The worker ends while jobs run: the ids of those handed back, and a text about all."""

    handed_back: tuple[str, ...]
    text: str


class StartFailed(WorkerMessage, frozen=True, tag="Failed"):
    """The worker cannot start, and exits."""

    text: str


class SnapshotAnswer(WorkerMessage, frozen=True, tag="Answer"):
    """The answer to a SnapshotRequest."""

    number: int
    snapshot: Snapshot


class Goodbye(WorkerMessage, frozen=True, tag="Bye"):
    """All jobs are settled; the process exits."""

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
    """Return a message as bytes for the pipe: its length, then its body."""
    body = _encoder.encode(message)
    return _HEAD.pack(len(body)) + body


class MessageBuffer(msgspec.Struct):
    """Splits received bytes into messages, wherever the reads were cut."""

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
