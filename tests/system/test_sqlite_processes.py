"""Three processes on one file: guarantees of one process hold over all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from poolhand.contract import Filter, JobBatch, JobRequest, Store
from poolhand.rules.audit import DEQUEUE, STREAM, SUBMIT
from poolhand.rules.job import Job, Status
from poolhand.rules.queue.backpressure import bounded
from poolhand.rules.queue.strategy import fair_round_robin
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.store import SqliteStore
from tests import warm
from tests.contract.support import order, spec
from tests.system.sqlite_crew import take_part
from tests.unit.stores.tables import faults

T = TypeVar("T")

HANDS = 3
LIMIT = 50  # seconds after which a wait gives up

pytestmark = pytest.mark.slow


def ended(hands: Sequence[warm.Program]) -> list[int]:
    """Wait for the end of all; return their exit codes."""
    try:
        return [hand.wait(LIMIT) for hand in hands]
    finally:
        for hand in hands:
            hand.kill()


class Crew:
    """A file, the processes that share it, and their reports."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self.story = folder / "story"

    def ask(self, verb: Callable[[Store], Awaitable[T]]) -> T:
        """Call the store once."""

        async def main() -> T:
            store = SqliteStore(self.path, Runtime())
            await store.open()
            try:
                return await verb(store)
            finally:
                await store.close()

        return asyncio.run(main())

    def work(self, shares: Sequence[Sequence[Job]], waiting: int = 0) -> list[list[str]]:
        """Let all submit their shares and work until everything is over; return their reports."""
        total = sum(map(len, shares)) + waiting
        hands = [
            warm.start_call(take_part, self.path, self.story, f"hand-{n}", share, total)
            for n, share in enumerate(shares)
        ]
        assert ended(hands) == [0] * len(hands)
        assert list(faults(self.path)) == []
        return [line.split(" ") for line in self.story.read_text().splitlines()]

    def work_off(self, orders: Sequence[JobRequest]) -> list[list[str]]:
        """Let all processes work until the earlier jobs are over."""
        self.ask(lambda store: store.add([JobBatch(tuple(orders))]))
        return self.work([[] for _ in range(HANDS)], waiting=len(orders))

    def audit(self, kind: str) -> list[dict[str, Any]]:
        lines = self.ask(lambda store: store.read(STREAM, limit=100_000, kind=kind))
        return [msgspec.json.decode(line.body) for line in lines]


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    return Crew(tmp_path)


def share(hand: int, count: int, **options: Any) -> list[Job]:
    return [order(f"{hand}-{number:03}", **options).job for number in range(count)]


def most_at_once(story: list[list[str]], field: int) -> Counter[str]:
    """Return the largest number of runs at once among those with the same field."""
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for words in story:
        now[words[field]] += 1 if words[0] == "begin" else -1
        most[words[field]] = max(most[words[field]], now[words[field]])
    return most


def test_every_job_is_run_once_by_one_process(crew: Crew) -> None:
    story = crew.work([share(hand, 100) for hand in range(HANDS)])
    begun = [words[1] for words in story if words[0] == "begin"]
    assert len(begun) == len(set(begun)) == HANDS * 100
    tokens = [words[2] for words in story if words[0] == "begin"]
    assert len(set(tokens)) == len(tokens)
    assert crew.ask(lambda store: store.count(Filter())) == {Status.COMPLETED: HANDS * 100}


def test_the_cap_of_a_pool_holds_over_all_processes(crew: Crew) -> None:
    crew.ask(lambda store: store.declare(spec(slots=5)))
    story = crew.work_off([order(f"job-{number:03}") for number in range(150)])
    assert most_at_once(story, field=3)["pool"] <= 5


def test_the_cap_of_a_key_holds_over_all_processes(crew: Crew) -> None:
    crew.ask(lambda store: store.declare(spec(max_per_key=2)))
    story = crew.work_off([order(f"job-{n:03}", key="AB"[n % 2]) for n in range(150)])
    assert max(most_at_once(story, field=4).values()) <= 2


def test_turns_of_a_session_run_one_by_one_in_submit_order(crew: Crew) -> None:
    shares = [
        [order(f"{hand}-{number:03}", session=f"s{number % 4}").job for number in range(40)]
        for hand in range(HANDS)
    ]
    story = crew.work(shares)
    assert max(most_at_once(story, field=5).values()) == 1
    submitted = [record["task_id"] for record in crew.audit(SUBMIT)]
    for session in range(4):
        begun = [words[1] for words in story if words[0] == "begin" and words[5] == f"s{session}"]
        assert begun == [id for id in submitted if int(id[-3:]) % 4 == session]


def test_fair_keys_take_turns_whichever_process_claims(crew: Crew) -> None:
    crew.ask(lambda store: store.declare(spec(queue=fair_round_robin(weights={"B": 2}))))
    crew.work_off([order(f"job-{n:03}", key="ABC"[n % 3]) for n in range(120)])
    picked = [record["key"] for record in crew.audit(DEQUEUE)]
    # B has two turns in each round while it has jobs: its 40 jobs last for 20 rounds.
    rounds = [picked[start : start + 4] for start in range(0, 80, 4)]
    assert [Counter(one) for one in rounds] == [Counter("ABBC")] * 20


def test_blocked_submitters_of_all_processes_are_admitted_in_order(crew: Crew) -> None:
    crew.ask(lambda store: store.declare(spec(backpressure=bounded(2), slots=2)))
    crew.work([share(hand, 40) for hand in range(HANDS)])
    entered = [record["task_id"] for record in crew.audit(SUBMIT)]

    async def arrived(store: Store) -> list[str]:
        page = await store.find(Filter(), limit=1000)
        return [one.job.id for one in reversed(page.jobs)]

    assert entered == crew.ask(arrived)
    assert len(entered) == HANDS * 40
