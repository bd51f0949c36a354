"""Queue strategies of a real pool: which job is served next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest

from poolhand import Pool, Retry, fair_round_robin, fifo, lifo, priority, ring_buffer, wait
from poolhand.pool.submitter import Submitter
from poolhand.settings import QueueStrategy
from poolhand.testing import SeededRuntime
from poolhand.views import Status
from tests.unit.pool.support import Journal, occupied, seeded, until

STRATEGIES = [
    fifo(),
    lifo(),
    priority(),
    priority(aging=5),
    fair_round_robin(),
    fair_round_robin("tenant_id", {"A": 2}),
]


async def served(runtime: SeededRuntime, queue: Any, arrivals: Iterable[dict[str, Any]]) -> str:
    """Return the names of these submits in the order in which one slot serves them."""
    journal = Journal()
    async with Pool(runtime=runtime, queue=queue) as pool, occupied(pool):
        for options in arrivals:
            name = options.pop("name", options.get("key", ""))
            await pool.with_options(**options).submit(journal.note, name)
    return "".join(journal.ran)


def keys(text: str) -> list[dict[str, Any]]:
    return [{"key": letter} for letter in text.replace(" ", "")]


@seeded
async def test_fifo_serves_in_the_order_of_arrival_whatever_the_priority(
    runtime: SeededRuntime,
) -> None:
    arrivals = [{"name": name, "priority": n} for n, name in enumerate("abcdef")]
    assert await served(runtime, fifo(), arrivals) == "abcdef"


@seeded
async def test_lifo_serves_the_newest_first_whatever_the_priority(runtime: SeededRuntime) -> None:
    arrivals = [{"name": name, "priority": -n} for n, name in enumerate("abcdef")]
    assert await served(runtime, lifo(), arrivals) == "fedcba"


@seeded
async def test_priority_serves_the_highest_first_and_ties_by_arrival(
    runtime: SeededRuntime,
) -> None:
    levels = [0, 5, -3, 5, 0, 7, -3]
    arrivals = [
        {"name": name, "priority": level} for name, level in zip("abcdefg", levels, strict=True)
    ]
    assert await served(runtime, priority(), arrivals) == "fbdaecg"


@seeded
async def test_priority_is_the_default_strategy(runtime: SeededRuntime) -> None:
    order: list[str] = []
    journal = Journal()
    async with Pool(runtime=runtime) as pool:
        async with occupied(pool):
            for level, name in [(0, "low"), (9, "high")]:
                await pool.with_options(priority=level).submit(journal.note, name)
        order = journal.ran
        assert pool.snapshot().queue == "priority"
    assert order == ["high", "low"]


@pytest.mark.parametrize(("aging", "expected"), [(None, "high"), (5, "low"), (20, "high")])
@seeded
async def test_a_waiting_job_gains_a_level_per_aging_seconds_and_strictly_none_without(
    runtime: SeededRuntime, aging: float | None, expected: str
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue=priority(aging=aging)) as pool, occupied(pool):
        await pool.with_options(priority=0).submit(journal.note, "low")
        await asyncio.sleep(31)  # six levels at 5 s, one at 20 s
        await pool.with_options(priority=3).submit(journal.note, "high")
    assert journal.ran[0] == expected


@seeded
async def test_aging_keeps_the_order_of_arrival_inside_a_level(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue=priority(aging=1)) as pool, occupied(pool):
        for name in "abc":
            await pool.with_options(priority=2).submit(journal.note, name)
            await asyncio.sleep(0.5)
    assert journal.ran == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("arrivals", "order"),
    [
        ("A B B A A B B A", "ABABABAB"),
        ("A A A A A B C D", "ABCDAAAA"),
        ("A A A A B B B B", "ABABABAB"),
        ("B A A A B B", "BABABA"),
        ("C B A C B A", "CBACBA"),
        ("A", "A"),
    ],
)
@seeded
async def test_fair_gives_one_turn_per_key_and_round_in_order_of_first_appearance(
    runtime: SeededRuntime, arrivals: str, order: str
) -> None:
    assert await served(runtime, fair_round_robin(), keys(arrivals)) == order


@pytest.mark.parametrize("pattern", ["random", "A first", "B first", "blocks of ten"])
@seeded
async def test_two_keys_with_100_jobs_each_alternate_strictly_whatever_their_arrival(
    runtime: SeededRuntime, pattern: str
) -> None:
    arrivals = ["A"] * 100 + ["B"] * 100
    match pattern:
        case "random":
            runtime.random.shuffle(arrivals)
        case "B first":
            arrivals.reverse()
        case "blocks of ten":
            arrivals = [letter for _ in range(10) for letter in "A" * 10 + "B" * 10]
        case _:
            pass
    order = await served(runtime, fair_round_robin(), keys("".join(arrivals)))
    assert len(order) == 200
    assert all(one != next_one for one, next_one in pairwise(order))


@seeded
async def test_fair_alternates_from_the_first_job_on_which_starts_at_once(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()

    async def job(name: str) -> None:
        journal.ran.append(name)
        await asyncio.sleep(1)

    async with Pool(runtime=runtime, queue=fair_round_robin()) as pool:
        for letter in "AAAABBBB":
            await pool.with_options(key=letter).submit(job, letter)
    assert "".join(journal.ran) == "ABABABAB"


@seeded
async def test_fair_is_first_come_first_served_inside_a_key(runtime: SeededRuntime) -> None:
    arrivals = [
        {"key": key, "name": name, "priority": level}
        for key, name, level in [("x", "1", 0), ("x", "2", 9), ("y", "a", 0), ("x", "3", 5)]
    ]
    assert await served(runtime, fair_round_robin(), arrivals) == "1a23"


@seeded
async def test_a_key_that_joins_mid_drain_is_served_in_the_running_round(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue=fair_round_robin()) as pool:

        async def job(name: str) -> None:
            journal.ran.append(name)
            if len(journal.ran) == 5:
                for _ in range(3):
                    await pool.with_options(key="C").submit(job, "C")

        async with occupied(pool):
            for letter in "AAAAAABBBBBB":
                await pool.with_options(key=letter).submit(job, letter)
        await until(lambda: not pool.size())
    assert "".join(journal.ran) == "ABABA" + "BC" + "ABC" + "ABC" + "AB"


@seeded
async def test_a_late_key_does_not_catch_up_on_missed_turns(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue=fair_round_robin()) as pool:
        for _ in range(50):
            await pool.with_options(key="A").run(journal.note, "A")
        journal.ran.clear()
        async with occupied(pool):
            for letter in "AAAABBBB":
                await pool.with_options(key=letter).submit(journal.note, letter)
    assert "".join(journal.ran) in ("ABABABAB", "BABABABA")


@seeded
async def test_a_key_cannot_gain_turns_by_leaving_and_coming_back(runtime: SeededRuntime) -> None:
    journal = Journal()

    async def job(name: str) -> None:
        journal.ran.append(name)
        await asyncio.sleep(1)

    async with Pool(runtime=runtime, queue=fair_round_robin()) as pool:
        steady = [await pool.with_options(key="A").submit(job, "A") for _ in range(10)]
        while not steady[-1].status.terminal:
            await pool.with_options(key="B").run(job, "B")
    text = "".join(journal.ran)
    assert "BB" not in text.rstrip("B")
    assert "AAA" not in text.rstrip("A")


@seeded
async def test_after_a_burst_into_a_ring_buffer_the_key_and_a_new_key_still_alternate(
    runtime: SeededRuntime,
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue=fair_round_robin(), backpressure=ring_buffer(6)) as pool:
        async with occupied(pool):
            for letter in "A" * 200 + "BBB":
                await pool.with_options(key=letter).submit(journal.note, letter)
        await until(lambda: not pool.size())
        assert pool.snapshot().rejected == 197
    assert "".join(journal.ran) in ("ABABAB", "BABABA")


@seeded
async def test_cancels_cost_a_key_no_turn(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue=fair_round_robin()) as pool, occupied(pool):
        view = pool.with_options(key="A")
        cancelled = [await view.submit(journal.note, "never") for _ in range(20)]
        for letter in "AAABBB":
            await pool.with_options(key=letter).submit(journal.note, letter)
        for ticket in cancelled:
            assert await ticket.cancel()
    assert "".join(journal.ran) == "ABABAB"


@seeded
async def test_waiting_for_a_time_costs_a_key_no_turn(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue=fair_round_robin()) as pool, occupied(pool):
        for letter in "AAA":
            await pool.with_options(key=letter, delay=1).submit(journal.note, letter)
        for letter in "BBB":
            await pool.with_options(key=letter, delay=2).submit(journal.note, letter)
        await asyncio.sleep(3)
    assert "".join(journal.ran) == "ABABAB"


@seeded
async def test_a_key_of_weight_three_gets_three_turns_per_round(runtime: SeededRuntime) -> None:
    queue = fair_round_robin(weights={"A": 3})
    order = await served(runtime, queue, keys("A" * 30 + "B" * 10))
    assert [order[at : at + 4].count("A") for at in range(0, 40, 4)] == [3] * 10


@seeded
async def test_fair_takes_its_key_from_its_configured_field(runtime: SeededRuntime) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue=fair_round_robin("tenant_id")) as pool, occupied(pool):
        for letter in "AAAABB":
            view = pool.with_options(tenant_id=letter, key="all the same")
            ticket = await view.submit(journal.note, letter)
            assert ticket.snapshot().key == letter
    assert "".join(journal.ran) == "ABABAA"


@pytest.mark.parametrize("field", ["tenant", "user", "session"])
@seeded
async def test_fair_by_an_option_that_exists_anyway_uses_its_value(
    runtime: SeededRuntime, field: str
) -> None:
    async with Pool(runtime=runtime, queue=fair_round_robin(field)) as pool:
        options: dict[str, Any] = {field: "acme"}
        ticket = await pool.with_options(**options).submit(Journal().note, "x")
        job = ticket.snapshot()
        assert job.key == "acme"
        assert getattr(job, field) == "acme"


@seeded
async def test_a_missing_field_falls_back_to_the_key_and_then_to_one_shared_lane(
    runtime: SeededRuntime,
) -> None:
    async def key_of(submitter: Submitter) -> str:
        return (await submitter.submit(Journal().note, "x")).snapshot().key

    async with Pool(runtime=runtime, queue=fair_round_robin("tenant_id")) as pool:
        assert await key_of(pool.with_options(tenant_id="t", key="k")) == "t"
        assert await key_of(pool.with_options(key="k")) == "k"
        assert await key_of(pool.with_options(tenant_id=None, key="k")) == "k"
        assert await key_of(pool.with_options(tenant_id="", key="k")) == "k"
        assert await key_of(pool.with_options(tenant_id="")) == ""
        assert await key_of(pool.with_options(key="")) == ""
        assert await key_of(pool.with_options(key=None)) == ""
        assert await key_of(pool) == ""


@seeded
async def test_jobs_without_a_key_share_one_lane(runtime: SeededRuntime) -> None:
    arrivals = [{"name": "1"}, {"name": "2"}, {"name": "3", "key": ""}, {"name": "A", "key": "A"}]
    assert await served(runtime, fair_round_robin(), arrivals) == "1A23"


@pytest.mark.parametrize("queue", STRATEGIES, ids=str)
@seeded
async def test_every_strategy_serves_every_job_once(runtime: SeededRuntime, queue: Any) -> None:
    journal = Journal()

    async def job(name: str) -> None:
        journal.ran.append(name)
        await asyncio.sleep(runtime.random.choice([0, 0.1, 1]))

    async with Pool(runtime=runtime, queue=queue, max_concurrent=3) as pool:
        for number in range(60):
            level = runtime.random.randrange(3)
            view = pool.with_options(priority=level, key=runtime.random.choice("ABC"))
            await view.submit(job, str(number))
            if number % 7 == 0:
                await asyncio.sleep(0.2)
    assert sorted(journal.ran, key=int) == [str(number) for number in range(60)]


@pytest.mark.parametrize("queue", STRATEGIES, ids=str)
@seeded
async def test_every_strategy_records_the_priority(runtime: SeededRuntime, queue: Any) -> None:
    async with Pool(runtime=runtime, queue=queue) as pool:
        ticket = await pool.with_options(priority=-7).submit(Journal().note, "x")
        assert ticket.snapshot().priority == -7
        assert (await wait(ticket)).priority == -7
        assert (await pool.submit(Journal().note, "x")).snapshot().priority == 0


@pytest.mark.parametrize("queue", STRATEGIES, ids=str)
@seeded
async def test_under_every_strategy_cancelled_waiting_jobs_never_run(
    runtime: SeededRuntime, queue: Any
) -> None:
    journal = Journal()
    async with Pool(runtime=runtime, queue=queue) as pool:
        async with occupied(pool):
            tickets = [await pool.submit(journal.note, str(n)) for n in range(10)]
            for ticket in tickets[::2]:
                assert await ticket.cancel()
        statuses = [job.status for job in await wait(tickets)]
    assert statuses == [Status.CANCELLED, Status.COMPLETED] * 5
    assert sorted(journal.ran) == ["1", "3", "5", "7", "9"]


@pytest.mark.parametrize("queue", STRATEGIES, ids=str)
@seeded
async def test_under_every_strategy_a_retried_job_is_served_again(
    runtime: SeededRuntime, queue: Any
) -> None:
    attempts: list[int] = []

    async def job() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise LookupError("again")
        return len(attempts)

    async with Pool(runtime=runtime, queue=queue, retry=Retry(attempts=3, first=1)) as pool:
        assert await pool.run(job) == 3


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("fifo", fifo),
        ("lifo", lifo),
        ("priority", priority),
        ("fair_round_robin", fair_round_robin),
    ],
)
@seeded
async def test_a_strategy_may_be_given_by_name_and_is_in_the_namespace(
    runtime: SeededRuntime, name: str, made: Callable[[], object]
) -> None:
    async with Pool(runtime=runtime, queue=name) as pool:
        assert pool.snapshot().config.queue == made()
    assert getattr(QueueStrategy, name)() == made()


def test_the_namespace_takes_the_same_arguments() -> None:
    assert QueueStrategy.priority(aging=3) == priority(aging=3)
    weighted = QueueStrategy.fair_round_robin("tenant_id", {"a": 2})
    assert weighted == fair_round_robin("tenant_id", {"a": 2})
