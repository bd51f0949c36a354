"""The control thread of a worker: sends heartbeats, receives orders, and ends its process."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from poolhand.farm.protocol import (
    HeartbeatMessage,
    MessageBuffer,
    Ping,
    SnapshotAnswer,
    SnapshotRequest,
    Start,
    Stop,
    SupervisorMessages,
    WorkerMessages,
    packed,
)
from poolhand.farm.records import MOST_JOBS
from poolhand.rules.scaling.worker_count import FarmSettings
from tests.architecture.source import REPOSITORY

W = TypeVar("W", bound=WorkerMessages)

LIMIT = 30.0
FARM, WORKER = "box-00000a", "box-00000a.1"
SETTINGS = FarmSettings(
    heartbeat_interval_s=0.05,
    worker_shutdown_grace_s=600.0,
    hard_exit_after_s=700.0,
    max_jobs_per_worker=8,
)
CALM = FarmSettings(heartbeat_interval_s=100.0)

pytestmark = pytest.mark.slow


class Bearer:
    """A process with a control thread, and the other end of its pipe."""

    def __init__(self, *words: str, settings: FarmSettings = SETTINGS, first: bytes = b"") -> None:
        self.link, theirs = socket.socketpair()
        self.link.settimeout(LIMIT)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.farm.control_process", str(theirs.fileno()), *words],
            pass_fds=[theirs.fileno()],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        self._inbox = MessageBuffer()
        self._messages: list[WorkerMessages] = []
        start_message = Start("shop:app", FARM, WORKER, settings)
        self.link.sendall(packed(start_message) + first)

    def send(self, message: SupervisorMessages) -> None:
        self.link.sendall(packed(message))

    def message(self) -> WorkerMessages:
        while not self._messages:
            data = self.link.recv(65_536)
            assert data, "it has hung up"
            self._messages += self._inbox.from_worker(data)
        return self._messages.pop(0)

    def until(self, kind: type[W], holds: Callable[[W], bool] = lambda message: True) -> W:
        while True:
            message = self.message()
            if isinstance(message, kind) and holds(message):
                return message

    def line(self) -> str:
        """Return the next order that its worker received."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def rest(self) -> list[str]:
        """Return all orders that its worker received, once it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.read().splitlines()

    def ended(self) -> int:
        return self.process.wait(LIMIT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.link.close()
        assert self.process.stdout is not None
        self.process.stdout.close()


Bear = Callable[..., Bearer]


@pytest.fixture
def bear() -> Iterator[Bear]:
    """Start processes that end with the test."""
    made: list[Bearer] = []

    def start(*words: str, **options: FarmSettings | bytes) -> Bearer:
        made.append(Bearer(*words, **options))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for one in made:
        one.close()


def is_leaving(heartbeat: HeartbeatMessage) -> bool:
    return heartbeat.leaving is not None


# Heartbeats


def test_a_worker_sends_heartbeats_before_it_is_ready(bear: Bear) -> None:
    first = bear("starting").until(HeartbeatMessage)
    assert (first.ready, first.leaving, first.active) == (False, None, 0)


def test_a_heartbeat_reports_the_state_of_the_worker(bear: Bear) -> None:
    heartbeat = bear("busy").until(HeartbeatMessage, lambda heartbeat: heartbeat.ready)
    assert (heartbeat.active, heartbeat.completed, heartbeat.failed, heartbeat.stuck) == (
        60,
        3,
        1,
        0,
    )
    assert heartbeat.memory > 1_000_000
    assert len(heartbeat.jobs) == MOST_JOBS


def test_each_finished_job_is_reported_in_one_heartbeat(bear: Bear) -> None:
    worker = bear()
    beats = [worker.until(HeartbeatMessage) for _ in range(6)]
    told = [job.id for heartbeat in beats for job in heartbeat.finished]
    assert told == [f"done-{number}" for number in range(4)]


def test_a_blocked_loop_is_reported_with_its_duration(bear: Bear) -> None:
    beats = bear("blocked")
    assert beats.until(HeartbeatMessage, lambda heartbeat: heartbeat.blocked > 0.2).ready


def test_a_worker_stays_while_its_supervisor_sends_pings(bear: Bear) -> None:
    worker = bear()
    for _ in range(25):
        assert worker.until(HeartbeatMessage).leaving is None
        worker.send(Ping())


def test_a_worker_stops_when_its_supervisor_is_silent(bear: Bear) -> None:
    worker = bear()
    assert worker.until(HeartbeatMessage, is_leaving).leaving == "the supervisor is silent"
    assert worker.line() == "stop 600.0 the supervisor is silent"


# SupervisorMessages


def test_a_stop_message_is_passed_on_and_confirmed_at_once(bear: Bear) -> None:
    worker = bear(settings=CALM)
    worker.until(HeartbeatMessage, lambda heartbeat: heartbeat.ready)
    worker.send(Stop(FARM, None, "fewer are enough"))
    assert worker.line() == "stop None fewer are enough"
    # At once, not with the next heartbeat, which is far away.
    assert worker.until(HeartbeatMessage, is_leaving).leaving == "fewer are enough"


def test_the_shortest_grace_period_of_several_stop_messages_applies(bear: Bear) -> None:
    worker = bear(settings=CALM)
    worker.until(HeartbeatMessage, lambda heartbeat: heartbeat.ready)
    for grace in (None, 100.0, 200.0, None, 50.0):
        worker.send(Stop(FARM, grace, "so it is"))
    assert [worker.line() for _ in range(3)] == [
        "stop None so it is",
        "stop 100.0 so it is",
        "stop 50.0 so it is",
    ]


def test_messages_of_another_farm_are_ignored(bear: Bear) -> None:
    worker = bear(settings=CALM)
    worker.until(HeartbeatMessage, lambda heartbeat: heartbeat.ready)
    worker.send(Stop("box-00000b", 0.0, "not yours"))
    worker.send(Stop(FARM, None, "yours"))
    assert worker.line() == "stop None yours"


def test_a_worker_that_is_not_ready_ends_at_once(bear: Bear) -> None:
    worker = bear("starting", settings=CALM)
    worker.until(HeartbeatMessage)
    worker.send(Stop(FARM, None, "fewer are enough"))
    assert worker.ended() == 0


def test_messages_sent_with_the_start_message_are_handled(bear: Bear) -> None:
    worker = bear("starting", settings=CALM, first=packed(Stop(FARM, None, "never mind")))
    assert worker.ended() == 0


def test_a_process_that_is_there_after_its_grace_is_ended(bear: Bear) -> None:
    worker = bear()
    worker.until(HeartbeatMessage, lambda heartbeat: heartbeat.ready)
    worker.send(Stop(FARM, 0.1, "now"))
    assert worker.ended() == 0
    assert worker.rest() == ["stop 0.1 now", "clean exit"]


def test_a_snapshot_request_returns_running_and_finished_jobs(bear: Bear) -> None:
    worker = bear("busy", settings=CALM)
    worker.until(HeartbeatMessage, lambda heartbeat: heartbeat.ready)
    worker.send(SnapshotRequest(7, 0, 3))
    answer = worker.until(SnapshotAnswer)
    snapshot = answer.snapshot
    assert (answer.number, snapshot.farm, snapshot.worker) == (7, FARM, WORKER)
    assert len(snapshot.running) == 60
    assert [job.id for job in snapshot.finished] == ["done-3", "done-2", "done-1"]
    worker.send(SnapshotRequest(8, snapshot.after or 0, 3))
    assert [job.id for job in worker.until(SnapshotAnswer).snapshot.finished] == ["done-0"]


# Ending by itself


def test_a_worker_whose_supervisor_died_stops_at_once_and_exits_soon(bear: Bear) -> None:
    worker = bear(settings=CALM)
    worker.until(HeartbeatMessage, lambda heartbeat: heartbeat.ready)
    worker.link.shutdown(socket.SHUT_RDWR)
    assert worker.line() == "stop 0.0 the supervisor has died"
    assert worker.ended() == 0


def test_a_worker_that_was_not_ready_exits_at_once_when_its_supervisor_dies(bear: Bear) -> None:
    worker = bear("starting", settings=CALM)
    worker.until(HeartbeatMessage)
    worker.link.shutdown(socket.SHUT_RDWR)
    assert worker.ended() == 0


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("wedged", "stop 700.0 a job did not stop at its hard timeout"),
        ("spent", "stop None 8 jobs are done"),
    ],
)
def test_a_worker_with_a_stuck_job_or_a_used_up_quota_leaves(
    bear: Bear, message: str, said: str
) -> None:
    worker = bear(message)
    assert worker.line() == said
    assert worker.until(HeartbeatMessage, is_leaving).leaving == said.split(" ", 2)[2]


def test_a_worker_that_has_too_much_memory_leaves_when_it_is_done(bear: Bear) -> None:
    settings = FarmSettings(heartbeat_interval_s=0.05, max_memory_mb_per_worker=1)
    assert bear(settings=settings).line() == "stop None more than 1 MB of memory"
