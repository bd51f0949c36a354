"""The post of a worker: it shows life, hears orders, and ends a process that nobody else ends."""

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
from poolhand.rules.scaling.farm_settings import FarmSettings
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
    """A process with a post, and the other end of its pipe."""

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
        self._words: list[WorkerMessages] = []
        employ = Start("shop:app", FARM, WORKER, settings)
        self.link.sendall(packed(employ) + first)

    def tell(self, order: SupervisorMessages) -> None:
        self.link.sendall(packed(order))

    def word(self) -> WorkerMessages:
        while not self._words:
            data = self.link.recv(65_536)
            assert data, "it has hung up"
            self._words += self._inbox.from_worker(data)
        return self._words.pop(0)

    def until(self, kind: type[W], holds: Callable[[W], bool] = lambda word: True) -> W:
        while True:
            word = self.word()
            if isinstance(word, kind) and holds(word):
                return word

    def line(self) -> str:
        """Return the next thing that its worker was told."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def rest(self) -> list[str]:
        """Return all that its worker was told, once it has ended."""
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
    """Start processes that are ended with the test."""
    made: list[Bearer] = []

    def start(*words: str, **options: FarmSettings | bytes) -> Bearer:
        made.append(Bearer(*words, **options))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for one in made:
        one.close()


def is_leaving(beat: HeartbeatMessage) -> bool:
    return beat.leaving is not None


# Showing life


def test_a_worker_shows_life_before_it_is_ready(bear: Bear) -> None:
    first = bear("starting").until(HeartbeatMessage)
    assert (first.ready, first.leaving, first.active) == (False, None, 0)


def test_a_beat_tells_how_the_worker_is(bear: Bear) -> None:
    beat = bear("busy").until(HeartbeatMessage, lambda beat: beat.ready)
    assert (beat.active, beat.completed, beat.failed, beat.stuck) == (60, 3, 1, 0)
    assert beat.memory > 1_000_000
    assert len(beat.jobs) == MOST_JOBS


def test_what_has_ended_is_told_in_one_beat_and_not_again(bear: Bear) -> None:
    worker = bear()
    beats = [worker.until(HeartbeatMessage) for _ in range(6)]
    told = [job.id for beat in beats for job in beat.finished]
    assert told == [f"done-{number}" for number in range(4)]


def test_a_loop_that_does_not_turn_is_told_with_how_long(bear: Bear) -> None:
    beats = bear("blocked")
    assert beats.until(HeartbeatMessage, lambda beat: beat.blocked > 0.2).ready


def test_a_supervisor_that_shows_life_is_not_left(bear: Bear) -> None:
    worker = bear()
    for _ in range(25):
        assert worker.until(HeartbeatMessage).leaving is None
        worker.tell(Ping())


def test_a_silent_supervisor_is_left_within_the_grace(bear: Bear) -> None:
    worker = bear()
    assert worker.until(HeartbeatMessage, is_leaving).leaving == "the supervisor is silent"
    assert worker.line() == "stop 600.0 the supervisor is silent"


# SupervisorMessages


def test_an_order_to_stop_is_passed_on_and_confirmed_at_once(bear: Bear) -> None:
    worker = bear(settings=CALM)
    worker.until(HeartbeatMessage, lambda beat: beat.ready)
    worker.tell(Stop(FARM, None, "fewer are enough"))
    assert worker.line() == "stop None fewer are enough"
    # Not only at the next beat, which is far away.
    assert worker.until(HeartbeatMessage, is_leaving).leaving == "fewer are enough"


def test_of_several_orders_to_stop_the_soonest_counts(bear: Bear) -> None:
    worker = bear(settings=CALM)
    worker.until(HeartbeatMessage, lambda beat: beat.ready)
    for grace in (None, 100.0, 200.0, None, 50.0):
        worker.tell(Stop(FARM, grace, "so it is"))
    assert [worker.line() for _ in range(3)] == [
        "stop None so it is",
        "stop 100.0 so it is",
        "stop 50.0 so it is",
    ]


def test_orders_of_another_farm_are_not_obeyed(bear: Bear) -> None:
    worker = bear(settings=CALM)
    worker.until(HeartbeatMessage, lambda beat: beat.ready)
    worker.tell(Stop("box-00000b", 0.0, "not yours"))
    worker.tell(Stop(FARM, None, "yours"))
    assert worker.line() == "stop None yours"


def test_a_worker_that_is_not_ready_ends_at_once(bear: Bear) -> None:
    worker = bear("starting", settings=CALM)
    worker.until(HeartbeatMessage)
    worker.tell(Stop(FARM, None, "fewer are enough"))
    assert worker.ended() == 0


def test_orders_that_come_with_the_first_are_obeyed(bear: Bear) -> None:
    worker = bear("starting", settings=CALM, first=packed(Stop(FARM, None, "never mind")))
    assert worker.ended() == 0


def test_a_process_that_is_there_after_its_grace_is_ended(bear: Bear) -> None:
    worker = bear()
    worker.until(HeartbeatMessage, lambda beat: beat.ready)
    worker.tell(Stop(FARM, 0.1, "now"))
    assert worker.ended() == 0
    assert worker.rest() == ["stop 0.1 now", "farewell"]


def test_who_asks_is_told_what_runs_and_what_has_ended(bear: Bear) -> None:
    worker = bear("busy", settings=CALM)
    worker.until(HeartbeatMessage, lambda beat: beat.ready)
    worker.tell(SnapshotRequest(7, 0, 3))
    answer = worker.until(SnapshotAnswer)
    snapshot = answer.snapshot
    assert (answer.number, snapshot.farm, snapshot.worker) == (7, FARM, WORKER)
    assert len(snapshot.running) == 60
    assert [job.id for job in snapshot.finished] == ["done-3", "done-2", "done-1"]
    worker.tell(SnapshotRequest(8, snapshot.after or 0, 3))
    assert [job.id for job in worker.until(SnapshotAnswer).snapshot.finished] == ["done-0"]


# Ends of its own


def test_an_orphan_stops_at_once_and_is_gone_soon(bear: Bear) -> None:
    worker = bear(settings=CALM)
    worker.until(HeartbeatMessage, lambda beat: beat.ready)
    worker.link.shutdown(socket.SHUT_RDWR)
    assert worker.line() == "stop 0.0 the supervisor is gone"
    assert worker.ended() == 0


def test_an_orphan_that_was_not_ready_ends_at_once(bear: Bear) -> None:
    worker = bear("starting", settings=CALM)
    worker.until(HeartbeatMessage)
    worker.link.shutdown(socket.SHUT_RDWR)
    assert worker.ended() == 0


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("wedged", "stop 700.0 a job did not stop at its hard timeout"),
        ("spent", "stop None 8 jobs are done"),
    ],
)
def test_a_worker_that_has_come_to_an_end_leaves(bear: Bear, word: str, said: str) -> None:
    worker = bear(word)
    assert worker.line() == said
    assert worker.until(HeartbeatMessage, is_leaving).leaving == said.split(" ", 2)[2]


def test_a_worker_that_has_too_much_memory_leaves_when_it_is_done(bear: Bear) -> None:
    settings = FarmSettings(heartbeat_interval_s=0.05, max_memory_mb_per_worker=1)
    assert bear(settings=settings).line() == "stop None more than 1 MB of memory"
