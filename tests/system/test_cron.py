"""Schedules over real processes: each moment has one job, despite kills and clock changes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest

from tests import warm
from tests.extent import ALSO_POSTGRES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

LIMIT = 40.0  # seconds after which a wait gives up
SECOND = timedelta(seconds=1)
HALF_PAST_TWO = "30 2 * * *"


@pytest.fixture(params=["sqlite", ALSO_POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    schema: str = request.getfixturevalue("schema")
    return schema


@pytest.fixture
def farm(url: str, tmp_path: Path) -> Iterator[Farm]:
    with ExitStack() as stack:
        yield Farm(url, tmp_path, stack)


class Farm:
    """Processes on one store and one clock, and the reports of their jobs."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self._url = url
        self._folder = folder
        self._stack = stack
        self._lines = folder / "lines"
        self._lines.touch()
        self._offset = folder / "offset"
        self._offset.write_text("0")

    def start(self, missed: str = "all", fate: str = "sound") -> warm.Program:
        arguments = [self._url, str(self._folder), HALF_PAST_TWO, missed, fate]
        process = warm.start(["-m", "tests.system.cron_crew", *arguments])
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def set_clock(self, to: datetime) -> None:
        new = self._folder / "offset.new"
        new.write_text(str((to - datetime.now(UTC)).total_seconds()))
        new.replace(self._offset)

    def told(self, name: str) -> dict[datetime, set[str]]:
        """Return the jobs that ran for each moment; a killed one may have run twice."""
        found: dict[datetime, set[str]] = defaultdict(set)
        for line in self._lines.read_text().splitlines():
            task, moment, job = line.split()
            if task == name:
                found[datetime.fromisoformat(moment)].add(job)
        return found

    def beats(self) -> list[datetime]:
        return sorted(self.told("beat"))

    def until(self, condition: Callable[[], bool]) -> None:
        beat, over = Event(), time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < over, self._lines.read_text()
            beat.wait(0.02)

    def until_more(self, count: int) -> None:
        """Wait until so many more moments have run."""
        wanted = len(self.beats()) + count
        self.until(lambda: len(self.beats()) >= wanted)

    def until_behind(self, moment: datetime) -> None:
        """Wait until the clock of every process is past a moment."""
        self.until(lambda: bool(self.beats()) and self.beats()[-1] > moment + SECOND)


def expect_each_second_once(farm: Farm) -> None:
    beats = farm.told("beat")
    moments = sorted(beats)
    seconds = (moments[-1] - moments[0]) // SECOND
    assert moments == [moments[0] + n * SECOND for n in range(seconds + 1)]
    assert {moment: len(jobs) for moment, jobs in beats.items() if len(jobs) != 1} == {}


def stop(*processes: warm.Program) -> None:
    for one in processes:
        one.kill()
    for one in processes:
        one.wait()


def test_each_cron_moment_has_one_job_when_one_or_all_processes_are_killed(farm: Farm) -> None:
    crew = [farm.start() for _ in range(3)]
    farm.until_more(2)
    for number in range(3):
        # One of them is the process that has submitted the moments so far.
        stop(crew[number])
        farm.until_more(1)
        crew[number] = farm.start()
    farm.until_more(1)
    stop(*crew)
    crew = [farm.start() for _ in range(3)]
    farm.until_more(3)
    stop(*crew)
    expect_each_second_once(farm)


def test_a_process_killed_between_submit_and_bookkeeping_submits_nothing_twice(farm: Farm) -> None:
    mortal = farm.start(fate="mortal")
    farm.until(lambda: mortal.poll() is not None)
    mortal = farm.start(fate="mortal")
    others = [farm.start() for _ in range(2)]
    farm.until_more(4)
    stop(mortal, *others)
    expect_each_second_once(farm)


@pytest.mark.parametrize(
    ("day", "moment", "later"),
    [
        # There is no half past two: the job runs at three.
        (datetime(2030, 3, 31, tzinfo=UTC), timedelta(hours=1), timedelta(hours=1, minutes=30)),
        # There are two: it runs at the first.
        (
            datetime(2030, 10, 27, tzinfo=UTC),
            timedelta(minutes=30),
            timedelta(hours=1, minutes=30),
        ),
    ],
    ids=["spring", "autumn"],
)
def test_a_job_at_half_past_two_runs_once_when_the_clocks_change(
    farm: Farm, day: datetime, moment: timedelta, later: timedelta
) -> None:
    farm.set_clock(day - timedelta(hours=12))
    crew = [farm.start("once") for _ in range(3)]
    farm.until_more(1)
    farm.set_clock(day + moment - SECOND)
    farm.until_behind(day + moment)
    stop(crew.pop())
    crew.append(farm.start("once"))
    farm.set_clock(day + later - SECOND)
    farm.until_behind(day + later)
    # Back to before it, and past it again.
    farm.set_clock(day + moment - SECOND)
    farm.until_more(2)
    farm.set_clock(day + later + timedelta(minutes=1))
    farm.until_behind(day + later + timedelta(minutes=1))
    stop(*crew)
    ran = farm.told("cron")
    assert list(ran) == [day + moment]
    assert len(ran[day + moment]) == 1
