"""A stream that is read repeatedly, by readers and from a worker that are killed."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from tests import warm
from tests.extent import times

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CHUNKS = times(2_000, 10_000)
KILLS = times(10, 50)
LINE = 10
LIMIT = 150.0


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    schema: str = request.getfixturevalue("schema")
    return schema


class Play:
    """The processes of one stream, and the file of the reader."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self._url = url
        self._stack = stack
        self.file = folder / "read"
        self.file.touch()

    def start(self, role: str, what: str) -> warm.Program:
        arguments = [role, self._url, str(self.file), what]
        process = warm.start(["-m", "tests.system.streaming", *arguments])
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def until_read(self, count: int, reader: warm.Program) -> None:
        """Wait until so many events were read."""
        beat = Event()
        while os.stat(self.file).st_size // LINE < count:
            assert reader.poll() is None, "the reader ended by itself"
            beat.wait(0.002)

    def job(self) -> str:
        """Return the id of the job, once it is there."""
        beat, path = Event(), self.file.with_suffix(".id")
        while not path.exists():
            beat.wait(0.01)
        return path.read_text()


def test_a_reader_killed_many_times_misses_no_event_and_gets_none_twice(
    url: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        play = Play(url, tmp_path, stack)
        worker = play.start("work", str(CHUNKS))
        job = play.job()
        for kill in range(1, KILLS + 1):
            reader = play.start("follow", job)
            play.until_read(kill * CHUNKS // KILLS - 100, reader)
            reader.kill()
            reader.wait()
            if kill == KILLS // 2:
                worker.kill()
                worker.wait()
                worker = play.start("work", str(CHUNKS))
        assert play.start("follow", job).wait(LIMIT) == 0
        assert worker.wait(LIMIT) == 0
    lines = play.file.read_text().splitlines()
    numbers = [int(line.split()[0]) for line in lines]
    kinds = [line.split()[1] for line in lines]
    assert numbers == list(range(1, len(lines) + 1))
    assert kinds.count("r") == 1
    again = kinds.index("r")
    assert set(kinds[:again]) == {"c"}
    assert kinds[again:] == ["r", *"c" * CHUNKS, "s"]
