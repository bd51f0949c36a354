"""Why a stored job waits, from the records of the store."""

from __future__ import annotations

import pytest

from poolhand.contract import Filter, Owner
from poolhand.durable.client import explain as why
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import Bounded
from poolhand.rules.queue.strategy import Fifo, Lifo, Priority, fair_round_robin
from tests.unit.operate.world import Clock, World


async def told(world: World, id: str) -> tuple[str | None, str | None]:
    job = await world.operator.job(id)
    assert job is not None
    return job.reason, job.why


async def test_without_any_worker_a_job_waits_for_a_worker(world: World) -> None:
    id = await world.add()
    assert await told(world, id) == (
        "no_worker",
        f"no worker is connected to this store ({world.store.place}); start one",
    )


async def test_a_process_that_only_submits_is_not_a_worker(world: World) -> None:
    await world.store.enroll(Owner("web", *world.runtime.identity()))
    assert (await told(world, await world.add()))[0] == "no_worker"
    await world.store.enroll(Owner("web", *world.runtime.identity(), works=True))
    assert (await told(world, await world.add()))[0] == "queued"


async def test_a_worker_of_other_pools_does_not_count(world: World) -> None:
    others = Owner("web", *world.runtime.identity(), works=True, pools=("other",))
    await world.store.enroll(others)
    reason, text = await told(world, await world.add())
    assert reason == "no_worker"
    assert text == (
        f"no worker that is connected to this store ({world.store.place}) serves pool 'chat'; "
        "start one whose app has a task in it or declares it, or give a worker pools=['chat']"
    )


async def test_an_expired_worker_does_not_count(world: World) -> None:
    await world.add()
    await world.claim()
    await world.store.expire_owner(world.worker.id, 0)
    assert [lease.expired for lease in await world.store.leases()] == [True]
    assert (await told(world, await world.add()))[0] == "no_worker"


async def test_in_a_pool_without_a_cap_a_job_waits_for_a_free_worker_slot(world: World) -> None:
    first = await world.add()
    await world.enroll()
    assert await told(world, first) == ("queued", "it waits for a free slot of a worker")
    await world.add()
    assert (await told(world, first))[1] == (
        "it waits for a free slot of a worker; 1 other waits too"
    )


async def test_a_paused_pool_is_the_first_reason(world: World) -> None:
    id = await world.add()
    await world.operator.pause("chat", "anna")
    assert await told(world, id) == ("paused", "the pool is paused; resume it")


async def test_a_scheduled_job_shows_when_it_is_due(world: World) -> None:
    id = await world.add(delay=90.0)
    assert await told(world, id) == ("scheduled", "it waits for its time in 90.0 s")
    assert isinstance(world.runtime, Clock)
    world.runtime.seconds += 30
    assert await told(world, id) == ("scheduled", "it waits for its time in 60.0 s")


@pytest.mark.parametrize(
    ("queue", "ahead"),
    [(Fifo(), [0, 1, 2]), (Lifo(), [2, 1, 0]), (Priority(), [2, 0, 1])],
    ids=["fifo", "lifo", "priority"],
)
async def test_in_a_full_pool_the_number_of_jobs_ahead_is_shown(
    world: World, queue: Fifo | Lifo | Priority, ahead: list[int]
) -> None:
    await world.declare("p", slots=1, queue=queue)
    await world.add(pool="p")
    (running,) = await world.claim()
    ids = [await world.add(pool="p", priority=priority) for priority in (1, 7, 5)]
    names = {0: "no other", 1: "1 other", 2: "2 others"}
    for id, count in zip(ids, ahead, strict=True):
        assert await told(world, id) == (
            "behind_others" if count else "pool_cap",
            f"it waits for one of 1 slots, {names[count]} before it",
        )
    await world.end(running, Status.COMPLETED)
    in_order = [id for _, id in sorted(zip(ahead, ids, strict=True))]
    for id in in_order:
        (claim,) = await world.claim()
        assert claim.job.id == id
        await world.end(claim, Status.COMPLETED)


async def test_the_wait_is_estimated_from_the_latest_jobs(world: World) -> None:
    await world.declare("p", slots=1, queue=Fifo())
    for _ in range(2):
        await world.add(pool="p")
    (done,) = await world.claim()
    await world.end(done, Status.COMPLETED)
    await world.claim()
    await world.add(pool="p")
    last = await world.add(pool="p")
    assert await told(world, last) == (
        "behind_others",
        "it waits for one of 1 slots, 1 other before it, about 4.0 s",
    )


async def test_without_a_fixed_order_only_the_cap_is_named(world: World) -> None:
    await world.declare("p", slots=1, queue=fair_round_robin())
    ids = [await world.add(pool="p", key=key) for key in ("a", "b", "c")]
    await world.claim()
    assert await told(world, ids[1]) == (
        "behind_others",
        "all 1 slots of the pool are taken; 1 other waits too",
    )


async def test_above_a_limit_the_jobs_ahead_are_not_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(why, "MOST_RIVALS", 3)
    await world.declare("p", slots=1, queue=Fifo())
    ids = [await world.add(pool="p") for _ in range(6)]
    await world.claim()
    assert (await told(world, ids[1]))[1] == "all 1 slots of the pool are taken; 4 others wait too"


async def test_a_busy_session_is_shown_with_the_job_that_holds_it(world: World) -> None:
    first = await world.add(session="s", tenant="t")
    await world.add(session="s", tenant="other")
    await world.claim(2)
    second = await world.add(session="s", tenant="t")
    third = await world.add(session="s", tenant="t")
    assert await told(world, second) == (
        "session_busy",
        f"session 's' is busy with job {first}, no other of the session before it",
    )
    assert await told(world, third) == (
        "session_busy",
        f"session 's' is busy with job {first}, 1 other of the session before it",
    )


async def test_a_turn_that_waits_for_its_retry_still_holds_its_session(world: World) -> None:
    first = await world.add(session="s")
    (claim,) = await world.claim()
    second = await world.add(session="s")
    await world.back(claim, 30.0)
    assert await told(world, first) == ("scheduled", "it waits for a retry in 30.0 s")
    assert f"busy with job {first}," in str((await told(world, second))[1])


async def test_a_job_behind_its_key_cap_shows_the_running_jobs_of_the_key(world: World) -> None:
    await world.declare("p", slots=9, max_per_key=2)
    ids = [await world.add(pool="p", key="k") for _ in range(4)]
    await world.claim(9)
    assert await told(world, ids[3]) == (
        "key_cap",
        "key 'k' has all of its 2 places in use, 1 other of the key before it",
    )


async def test_a_blocked_submitter_is_the_reason_its_job_waits(world: World) -> None:
    await world.enroll()
    await world.declare("p", slots=1, backpressure=Bounded(1))
    for _ in range(2):
        await world.add(pool="p")
        await world.claim()
    id = await world.add(pool="p", owner=world.worker.id)
    assert await told(world, id) == ("pool_full", "its submitter waits: the pool is full")


async def test_a_running_job_shows_for_how_long(world: World) -> None:
    id = await world.add()
    await world.claim()
    assert isinstance(world.runtime, Clock)
    world.runtime.seconds += 12
    assert await told(world, id) == ("running", "it runs: attempt 1, for 12.0 s")
    await world.operator.cancel([id], "anna")
    assert await told(world, id) == ("stopping", "it runs and was asked to stop")


async def test_a_finished_job_shows_its_outcome(world: World) -> None:
    id = await world.dead()
    assert await told(world, id) == ("over", "it is over: failed")


async def killed(world: World, id: str) -> str:
    """Assign the job to a dead process of this host; return the process as text."""
    host, boot, _, started = world.runtime.identity()
    world.worker = Owner("killed", host, boot, 2**22 + 1, started, works=True)
    assert [claim.job.id for claim in await world.claim()] == [id]
    return f"its process (pid {2**22 + 1} on {host}) is gone"


async def test_a_running_job_of_a_killed_process_shows_when_it_is_reaped(world: World) -> None:
    id = await world.add()
    why = f"{await killed(world, id)}; the job is taken back when a worker or an app opens this "
    assert await told(world, id) == ("process_gone", f"{why}store")
    (listed,) = (await world.operator.jobs(Filter(id_prefix=id))).jobs
    assert listed.note == f"{why}store"


async def test_a_cancel_does_not_ask_a_killed_process_to_stop(world: World) -> None:
    id = await world.add()
    gone = await killed(world, id)
    (answer,) = await world.operator.cancel([id], "anna")
    assert (answer.done, answer.text) == (
        True,
        f"{gone}; the job is taken back, and cancelled, when a worker or an app opens this store",
    )
    assert (await told(world, id))[0] == "process_gone"


async def test_while_a_process_that_lives_holds_jobs_no_running_job_is_taken_for_left(
    world: World,
) -> None:
    lives = await world.add()
    await world.claim()
    id = await world.add()
    await killed(world, id)
    assert (await told(world, id))[0] == "running"
    assert (await told(world, lives))[0] == "running"
