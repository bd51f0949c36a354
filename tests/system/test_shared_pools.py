"""Three real processes that share a pool on a server, watched from outside."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from poolhand import App, wait
from poolhand.views import Job, Status

CAP = 4
HANDS = 3

pytestmark = pytest.mark.slow


class Hand:
    """One of the processes; requests and answers are lines."""

    def __init__(self, url: str, folder: Path, pipe: int) -> None:
        arguments = [url, str(folder), str(pipe), str(CAP)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.shared_pool_hand", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[pipe],
        )

    def tell(self, order: str, number: int = 0) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([order, number]) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, order: str, number: int = 0) -> Any:
        self.tell(order, number)
        return self.hear()

    def leave(self) -> int:
        """Let it drain and end."""
        self.process.communicate()
        return self.process.returncode


class World:
    """A gate that holds all jobs until it is opened, and the reports of the jobs."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self.url = url
        self._folder = folder
        self._stack = stack
        self._read, self._write = os.pipe()
        stack.callback(os.close, self._read)
        stack.callback(os.close, self._write)
        self._gate = os.open(folder / "gate", os.O_RDWR | os.O_CREAT)
        stack.callback(os.close, self._gate)
        fcntl.flock(self._gate, fcntl.LOCK_EX)

    def hand(self) -> Hand:
        hand = Hand(self.url, self._folder, self._write)
        self._stack.callback(hand.process.communicate)
        self._stack.callback(hand.process.kill)
        assert hand.hear() == "ready"
        return hand

    def open(self) -> None:
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    def wait_for(self, begun: int) -> None:
        """Wait until so many more jobs have begun."""
        while begun:
            begun -= len(os.read(self._read, begun))

    def story(self) -> list[tuple[str, str, int, int]]:
        """Return the reports of jobs: begin or end, the job, the process, the token."""
        lines = [line.split() for line in (self._folder / "story").read_text().splitlines()]
        return [(what, id, int(pid), int(token)) for what, id, pid, token in lines]

    def jobs(self, ids: list[str]) -> list[Job]:
        """Return the jobs when all of them are over."""

        async def ask() -> list[Job]:
            async with App(self.url) as app:
                found = [await app.get(id) for id in ids]
                return await wait([one for one in found if one is not None])

        return asyncio.run(ask())


@pytest.fixture
def world(store_schema: str, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(store_schema, tmp_path, stack)


def most_at_once(story: list[tuple[str, str, int, int]]) -> int:
    running = most = 0
    for what, *_ in story:
        running += 1 if what == "begin" else -1
        most = max(most, running)
    return most


def test_three_processes_have_one_cap_one_queue_and_one_set_of_keys(world: World) -> None:
    hands = [world.hand() for _ in range(HANDS)]
    assert {tuple(hand.ask("see")) for hand in hands} == {tuple(hands[0].ask("see"))}
    keyed = [hand.ask("keyed", 5) for hand in hands]
    assert keyed[0] == keyed[1] == keyed[2]
    for hand in hands:
        hand.tell("run", 20)
    world.wait_for(CAP)
    world.open()
    done = [id for hand in hands for id in hand.hear()]
    jobs = world.jobs([*done, *keyed[0]])
    assert [hand.leave() for hand in hands] == [0] * HANDS
    assert len({job.id for job in jobs}) == len(jobs) == HANDS * 20 + 5
    assert {(job.status, job.attempts, job.tenant) for job in jobs} == {
        (Status.COMPLETED, 1, "acme")
    }
    story = world.story()
    assert Counter(what for what, *_ in story) == {"begin": len(jobs), "end": len(jobs)}
    assert len({token for what, _, _, token in story if what == "begin"}) == len(jobs)
    assert most_at_once(story) == CAP


def test_after_a_kill_tasks_run_elsewhere_and_closures_are_reported_lost(
    world: World,
) -> None:
    victim = world.hand()
    tasks = victim.ask("tasks", 3)
    closures = victim.ask("closures", 1)
    world.wait_for(CAP)
    others = [world.hand() for _ in range(HANDS - 1)]
    tasks += victim.ask("tasks", 5)
    closures += victim.ask("closures", 3)
    theirs = [id for hand in others for id in hand.ask("tasks", 4)]
    victim.process.kill()
    victim.process.wait()
    # Before the gate opens: other processes have taken the slots of the dead one.
    world.wait_for(CAP)
    world.open()
    jobs = {job.id: job for job in world.jobs([*tasks, *closures, *theirs])}
    assert [hand.leave() for hand in others] == [0] * (HANDS - 1)
    for id in tasks:
        crashed = id in tasks[:3]
        assert (jobs[id].status, jobs[id].crashes) == (Status.COMPLETED, int(crashed)), jobs[id]
        assert jobs[id].attempts == 1 + crashed
    assert {(jobs[id].status, jobs[id].attempts) for id in theirs} == {(Status.COMPLETED, 1)}
    for id in closures:
        error = jobs[id].error
        assert (jobs[id].status, error and error.type) == (
            Status.FAILED,
            "poolhand.errors.JobLost",
        )
        assert error is not None
        assert "the process that submitted it, which is gone" in error.message
    story = world.story()
    lived = [line for line in story if line[2] != victim.process.pid]
    assert most_at_once(lived) == CAP
    assert {id for what, id, _, _ in lived if what == "end"} == {*tasks, *theirs}
