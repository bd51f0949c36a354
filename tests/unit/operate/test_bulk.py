"""Actions of an operator on many jobs at once, and shortened ids."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from poolhand import UsageError
from poolhand.contract import Filter, JobBatch, JobRequest
from poolhand.operate.bulk import CANCEL_AT_ONCE, Progress
from poolhand.rules.audit import CANCEL, STREAM
from poolhand.rules.job import Status
from tests.unit.operate.world import START, World


async def statuses(world: World, *ids: str) -> list[str]:
    return [(await world.get(id)).job.status.value for id in ids]


async def test_all_selected_jobs_are_cancelled_and_no_others(world: World) -> None:
    wanted = [await world.add(pool="a", delay=delay) for delay in (None, 60.0)]
    other = await world.add(pool="b")
    summary = await world.operator.cancel_all(Filter(pool="a"), "anna")
    assert (summary.done, summary.not_done, summary.answers) == (2, 0, ())
    assert await statuses(world, *wanted, other) == ["cancelled", "cancelled", "queued"]
    lines = await world.store.read(STREAM, kind=CANCEL)
    assert all(b'"by":"anna"' in line.body for line in lines)
    assert len(lines) == 2


@pytest.mark.parametrize(
    "which",
    [{"tenant": "t"}, {"name": "fetch"}, {"session": "s"}, {"user": "u"}, {"key": "k"}],
    ids=str,
)
async def test_a_filter_selects_the_jobs_to_cancel(world: World, which: dict[str, Any]) -> None:
    other = await world.add("other")
    wanted = await world.add("fetch", tenant="t", session="s", user="u", key="k")
    assert (await world.operator.cancel_all(Filter(**which), "anna")).done == 1
    assert await statuses(world, wanted, other) == ["cancelled", "queued"]


async def test_jobs_submitted_before_since_are_left_alone(world: World) -> None:
    old = await world.add()
    world.runtime.seconds += 60  # type: ignore[attr-defined]
    new = await world.add()
    which = Filter(since=START + timedelta(seconds=30))
    assert await world.operator.count_live(which) == {Status.QUEUED: 1}
    assert (await world.operator.cancel_all(which, "anna")).done == 1
    assert await statuses(world, old, new) == ["queued", "cancelled"]


async def test_running_jobs_are_asked_to_stop_and_finished_ones_are_not_counted(
    world: World,
) -> None:
    over, running = await world.dead(), await world.add()
    assert len(await world.claim()) == 1
    assert (await world.operator.cancel_all(Filter(pool="chat"), "anna")).done == 1
    assert (await world.get(running)).cancel_requested
    assert not (await world.get(over)).cancel_requested


async def test_a_session_is_not_handed_on_to_a_turn_that_is_cancelled_too(world: World) -> None:
    turns = [await world.add(session="s", idempotency_key=f"k{n}") for n in range(4)]
    assert (await world.operator.cancel_all(Filter(session="s"), "anna")).done == 4
    assert await statuses(world, *turns) == ["cancelled"] * 4
    assert await world.store.unheld() == []
    again = await world.add(session="s")
    assert await statuses(world, again) == ["queued"]


async def test_a_bulk_cancel_works_in_batches_and_reports_progress(world: World) -> None:
    count = CANCEL_AT_ONCE + 20
    draft = (await world.get(await world.add(pool="other"))).job
    draft = replace(draft, pool="chat")
    orders = [JobRequest(replace(draft, id=f"many-{number:05}"), b"") for number in range(count)]
    await world.store.add([JobBatch(tuple(orders))])
    told: list[Progress] = []
    summary = await world.operator.cancel_all(Filter(pool="chat"), "anna", told.append)
    assert summary.done == count
    assert [one.done for one in told] == [CANCEL_AT_ONCE, count]
    assert {one.total for one in told} == {count}
    assert await world.operator.count(Filter(pool="chat")) == {Status.CANCELLED: count}


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ({"statuses": (Status.FAILED,)}, r"statuses=\['failed'\] .* can be cancelled while it is"),
        ({"since": START.replace(tzinfo=None)}, "since=.* it must be a datetime with a time zone"),
        ({"until": "2h"}, "until='2h' is not allowed"),
        ({"since": START, "until": START}, "is not before until"),
        ({"user": 7}, "user=7 is not allowed; it must be a text"),
    ],
    ids=str,
)
async def test_a_filter_that_makes_no_sense_is_refused_before_anything_happens(
    world: World, which: dict[str, Any], told: str
) -> None:
    id = await world.add()
    with pytest.raises(UsageError, match=told):
        await world.operator.cancel_all(Filter(**which), "anna")
    assert await statuses(world, id) == ["queued"]


async def test_a_job_is_found_by_a_unique_id_prefix(world: World) -> None:
    first, second = await world.add(), await world.add()
    assert await world.operator.resolve(first) == first
    with pytest.raises(UsageError, match=f"matches several jobs: {second}, {first}; give more"):
        await world.operator.resolve(first[:-1])
    assert await world.operator.resolve("nothing-like-it") == "nothing-like-it"
    with pytest.raises(UsageError, match="id 'job' is too short; give at least 4 characters"):
        await world.operator.resolve("job")
    for number in range(10):
        await world.add(id=f"crowd-{number}")
    assert await world.operator.resolve("crowd-7") == "crowd-7"
    with pytest.raises(UsageError, match=r"crowd-9, .*crowd-5, …; give more"):
        await world.operator.resolve("crowd")
    await world.add(id="alone-12345")
    assert await world.operator.resolve("alon") == "alone-12345"
    with pytest.raises(UsageError, match="id 'alo' is too short"):
        await world.operator.resolve("alo")


async def test_an_id_that_is_a_prefix_of_another_means_itself(world: World) -> None:
    await world.add(id="twin-1")
    await world.add(id="twin-11")
    assert await world.operator.resolve("twin-1") == "twin-1"
