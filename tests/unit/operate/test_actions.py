"""Views and actions of an operator: jobs, pools, the audit log."""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import Any

import pytest

from poolhand import UsageError
from poolhand.contract import Filter, LogLine, Owner
from poolhand.operate.arguments import LAST
from poolhand.rules.audit import CANCEL, PAUSE, RESIZE, RESUME, STREAM
from poolhand.rules.job import Status
from poolhand.rules.queue.backpressure import Bounded
from poolhand.rules.queue.strategy import Fifo
from tests.conditions import STRANGER
from tests.unit.operate.world import World


async def test_jobs_are_listed_newest_first_and_in_pages(world: World) -> None:
    ids = [await world.add() for _ in range(5)]
    first = await world.operator.jobs(Filter(pool="chat"), limit=2)
    second = await world.operator.jobs(Filter(pool="chat"), first.after, limit=2)
    third = await world.operator.jobs(Filter(pool="chat"), second.after, limit=2)
    seen = [job.id for page in (first, second, third) for job in page.jobs]
    assert seen == ids[::-1]
    assert third.after is None


async def test_dead_letters_are_listed_separately(world: World) -> None:
    first, second = await world.dead("fetch"), await world.dead("think")
    await world.add()
    dead = await world.operator.dead()
    assert (len(dead), [job.id for job in dead]) == (2, [second, first])
    assert [job.id for job in await world.operator.dead(Filter(name="fetch"))] == [first]
    assert [job.id for job in await world.operator.dead(limit=1)] == [second]


async def test_a_filter_selects_by_all_of_its_fields(world: World) -> None:
    wanted = await world.add("fetch", "a", key="k", session="s", tenant="t")
    for other in ({"key": "x"}, {"session": "x"}, {"tenant": "x"}):
        await world.add("fetch", "a", **{"key": "k", "session": "s", "tenant": "t", **other})
    await world.add("other", "a", key="k", session="s9", tenant="t")
    await world.add("fetch", "b", key="k", session="s", tenant="t")
    which = Filter(pool="a", name="fetch", key="k", session="s", tenant="t")
    assert [job.id for job in (await world.operator.jobs(which)).jobs] == [wanted]
    assert await world.operator.count(Filter(pool="b")) == {Status.QUEUED: 1}


async def test_a_listed_job_shows_that_no_worker_serves_its_pool(world: World) -> None:
    await world.add(pool="one")

    async def note() -> tuple[str | None, str]:
        (job,) = (await world.operator.jobs(Filter(pool="one"))).jobs
        return job.reason, job.note

    unserved = ("no_worker", "no worker serves pool 'one'")
    assert await note() == unserved
    host, boot, *_ = world.runtime.identity()
    for owner in (
        Owner("submits", "elm/9", "b", 300, "1"),
        Owner("other", "elm/9", "b", 300, "1", works=True, pools=("two",)),
        # A killed process of this machine whose lease has not expired yet.
        Owner("gone", host, boot, 2**22 + 1, "1", works=True),
    ):
        await world.enroll(owner)
        assert await note() == unserved
        (job,) = (await world.operator.jobs(Filter(pool="one"))).jobs
        shown = await world.operator.job(job.id)
        assert shown is not None
        assert shown.reason == "no_worker"
    await world.enroll(Owner("serves", "elm/9", "b", 301, "1", works=True, pools=("one",)))
    assert await note() == ("queued", "it waits for a free slot of a worker")


async def test_a_listed_job_shows_what_it_waits_for(world: World) -> None:
    await world.declare("one", slots=5, max_per_key=1)
    held = [
        await world.add(pool="one", key="k"),
        await world.add(pool="one", key="l", session="s"),
    ]
    assert len(await world.claim(2)) == 2
    await world.add(pool="one", key="k")
    await world.add(pool="one", key="m", session="s")
    await world.add(pool="one", delay=30.0)
    await world.add(pool="one")
    await world.add(pool="closed")
    await world.operator.pause("closed", "anna")
    listed = (await world.operator.jobs()).jobs
    reasons = [job.reason for job in listed if job.pool != STRANGER]
    assert reasons == ["paused", "queued", "scheduled", "session_busy", "key_cap", None, None]
    assert [job.why for job in (await world.operator.jobs(Filter(), limit=5)).jobs] == [
        "the pool is paused; resume it",
        "it waits for a free slot of a worker",
        "it waits for its time in 30.0 s",
        "session 's' is busy",
        "key 'k' has all of its places in use",
    ]
    await world.operator.cancel(held, "anna")
    asked = await world.operator.jobs(Filter(statuses=(Status.RUNNING,)))
    assert {job.why for job in asked.jobs} == {"it runs and was asked to stop"}


async def test_a_job_is_shown_with_all_its_fields(world: World) -> None:
    id = await world.dead("fetch", key="k", tenant="t", session="s", priority=3)
    job = await world.operator.job(id)
    assert job is not None
    assert (job.id, job.pool, job.name, job.status) == (id, "chat", "fetch", Status.FAILED)
    assert (job.key, job.tenant, job.session, job.priority) == ("k", "t", "s", 3)
    assert (job.attempts, job.crashes, job.ran, job.dead) == (1, 0, 2.0, True)
    assert job.error is not None
    assert job.note == "it is over: failed"
    assert await world.operator.job("nothing") is None


async def test_the_size_of_a_result_is_shown_and_not_the_result(world: World) -> None:
    id = await world.add()
    (claim,) = await world.claim()
    await world.end(claim, Status.COMPLETED, result=b"12345")
    job = await world.operator.job(id)
    assert job is not None
    assert job.result_bytes == 5


async def test_a_waiting_job_is_cancelled_and_a_running_one_asked(world: World) -> None:
    running = await world.add()
    await world.claim()
    waiting = await world.add()
    over = await world.dead(pool="other")
    answers = await world.operator.cancel([waiting, running, over, "nothing"], "anna")
    assert [(one.id, one.done, one.reason) for one in answers] == [
        (waiting, True, "cancelled"),
        (running, True, "asked"),
        (over, False, "over"),
        ("nothing", False, "not_found"),
    ]
    assert (await world.get(waiting)).job.status is Status.CANCELLED
    assert (await world.get(running)).cancel_requested
    lines = await world.operator.audit(0, kind=CANCEL)
    assert [(line.job, line.by) for line in lines] == [(waiting, "anna"), (running, "anna")]


async def test_a_job_is_cancelled_once(world: World) -> None:
    id = await world.add()
    (first,) = await world.operator.cancel([id], "anna")
    (second,) = await world.operator.cancel([id], "bert")
    assert (first.done, second.done, second.reason) == (True, False, "over")
    assert [line.by for line in await world.operator.audit(0, kind=CANCEL)] == ["anna"]


async def test_cancelling_the_job_of_a_blocked_submitter_withdraws_it(world: World) -> None:
    await world.enroll()
    await world.declare("small", slots=1, backpressure=Bounded(1))
    for _ in range(2):
        await world.add(pool="small")
        await world.claim()
    parked = await world.add(pool="small", owner=world.worker.id)
    job = await world.operator.job(parked)
    assert job is not None
    assert (job.submitter_blocked, job.reason) == (True, "pool_full")
    (answer,) = await world.operator.cancel([parked], "anna")
    assert (answer.done, answer.reason) == (True, "cancelled")
    assert await world.operator.job(parked) is None


async def test_pools_are_listed_with_their_rules_and_counts(world: World) -> None:
    await world.declare("p", slots=2, queue=Fifo(), backpressure=Bounded(9), max_per_key=1)
    for key in ("a", "a", "b", "c"):
        await world.add(pool="p", key=key)
    await world.add(pool="p", delay=60.0)
    await world.claim(5)
    (pool,) = [pool for pool in await world.operator.pools() if pool.name != STRANGER]
    assert (pool.name, pool.slots, pool.declared_slots, pool.resized) == ("p", 2, 2, False)
    assert (pool.strategy, pool.policy) == ("fifo", "bounded(9, block_submitter)")
    assert (pool.running, pool.queued, pool.blocked, pool.scheduled) == (2, 1, 1, 1)
    assert (pool.paused, pool.max_per_key, pool.blocked_submitters) == (False, 1, 0)


async def test_a_paused_pool_starts_nothing_until_it_is_resumed(world: World) -> None:
    await world.add()
    paused = await world.operator.pause("chat", "anna")
    assert paused is not None
    assert paused.paused
    assert await world.claim() == []
    resumed = await world.operator.resume("chat", "bert")
    assert resumed is not None
    assert not resumed.paused
    assert len(await world.claim()) == 1
    began = world.audited_before
    pauses = await world.operator.audit(began, kind="pool_pause")
    assert [(line.kind, line.by) for line in pauses] == [(PAUSE, "anna")]
    assert [line.by for line in await world.operator.audit(began, kind=RESUME)] == ["bert"]


async def test_a_resize_overrides_the_declaration_until_it_is_reset(world: World) -> None:
    await world.declare("p", slots=1)
    for _ in range(4):
        await world.add(pool="p")
    wide = await world.operator.resize("p", 3, "anna")
    assert wide is not None
    assert (wide.slots, wide.declared_slots, wide.resized) == (3, 1, True)
    assert len(await world.claim(9)) == 3
    back = await world.operator.resize("p", None, "anna")
    assert back is not None
    assert (back.slots, back.resized) == (1, False)
    assert len(await world.operator.audit(0, kind=RESIZE)) == 2


async def test_an_invalid_size_is_refused(world: World) -> None:
    await world.add()
    wrong: list[Any] = [0, -1, True, 1.5, 100_001, 2**70]
    for slots in wrong:
        with pytest.raises(UsageError, match="an int of at least 1"):
            await world.operator.resize("chat", slots, "anna")


async def test_an_action_on_an_unknown_pool_returns_none_and_changes_nothing(world: World) -> None:
    await world.add(pool="research")
    assert await world.operator.pause("reserch", "anna") is None
    assert await world.operator.resume("reserch", "anna") is None
    assert await world.operator.resize("reserch", 1, "anna") is None
    assert {pool.name for pool in await world.operator.pools()} - {STRANGER} == {"research"}
    assert await world.operator.near("reserch") == "research"
    assert await world.operator.near("zzz") is None


@pytest.mark.parametrize(
    "by",
    ["", "  ", None, "\udcff", "x" * 1001],
    ids=["empty", "blank", "none", "not UTF-8", "long"],
)
async def test_an_action_without_an_actor_is_refused(world: World, by: Any) -> None:
    id = await world.dead()
    for act in (
        world.operator.cancel([id], by),
        world.operator.retry([id], by),
        world.operator.retry_all(Filter(), by),
        world.operator.pause("chat", by),
        world.operator.resume("chat", by),
        world.operator.resize("chat", 1, by),
    ):
        with pytest.raises(UsageError, match="the name of the actor"):
            await act


@pytest.mark.parametrize("lines", [0, 1, 7, 8, 9, 1023, 1024, 1025, 2600])
async def test_the_newest_audit_lines_are_found(world: World, lines: int) -> None:
    await world.store.append([LogLine(STREAM, "pool_drain", b"{}")] * lines)
    numbers = [line.number for line in await world.operator.last_audit(8)]
    last = world.audited_before + lines
    assert numbers == list(range(max(0, last - 8) + 1, last + 1))


async def test_the_newest_audit_lines_of_a_kind_are_found_however_rare(world: World) -> None:
    rare = [await world.add() for _ in range(3)]
    await world.operator.cancel(rare, "anna")
    await world.store.append([LogLine(STREAM, "pool_outcome", b"{}")] * 300)
    assert [line.job for line in await world.operator.last_audit(2, CANCEL)] == rare[1:]
    assert [line.job for line in await world.operator.last_audit(9, CANCEL)] == rare
    assert await world.operator.last_audit(9, "pool_drain") == []


async def test_the_audit_log_is_read_on_from_a_number(world: World) -> None:
    ids = [await world.add() for _ in range(5)]
    first = await world.operator.audit(world.audited_before, 2)
    rest = await world.operator.audit(first[-1].number)
    assert [line.job for line in [*first, *rest]] == ids


NUMBERS = [None, "", "2", 1.0, math.nan, math.inf, True, 2**70]


async def test_an_invalid_limit_is_refused(world: World) -> None:
    await world.dead()
    wrong: list[Any] = [*NUMBERS, 0, -1]
    for limit in wrong:
        for look in (
            world.operator.jobs(limit=limit),
            world.operator.dead(limit=limit),
            world.operator.audit(0, limit),
            world.operator.last_audit(limit),
        ):
            with pytest.raises(UsageError, match=r"limit=.* an int from 1"):
                await look


async def test_an_invalid_cursor_is_refused(world: World) -> None:
    await world.dead()
    wrong: list[Any] = [*NUMBERS, 2**63, -1]
    for after in wrong:
        looks: list[Awaitable[object]] = [world.operator.audit(after)]
        if after is not None:
            looks += [world.operator.jobs(after=after), world.operator.dead(after=after)]
        for look in looks:
            with pytest.raises(UsageError, match=r"after=.* an int from 0"):
                await look


async def test_the_largest_numbers_are_taken(world: World) -> None:
    id = await world.dead()
    mine, largest = Filter(pool="chat"), 10**18
    assert [job.id for job in await world.operator.jobs(mine, LAST, largest)] == [id]
    assert [job.id for job in await world.operator.dead(after=LAST, limit=10**18)] == [id]
    assert await world.operator.audit(LAST, 10**18) == []
    assert len(await world.operator.last_audit(10**18)) == len(await world.operator.audit(0))


@pytest.mark.parametrize("ids", ["job-0001", "", None, 3, b"job-0001", [1], [b"x"]], ids=repr)
async def test_ids_that_are_no_list_of_texts_are_refused(world: World, ids: Any) -> None:
    id = await world.dead()
    for act in (world.operator.cancel(ids, "anna"), world.operator.retry(ids, "anna")):
        with pytest.raises(UsageError, match=r"ids=.*; it must be a list of ids"):
            await act
    assert (await world.get(id)).dead


async def test_ids_may_be_any_iterable(world: World) -> None:
    ids = [await world.add() for _ in range(3)]
    answers = await world.operator.cancel((id for id in ids), "anna")
    assert [(one.id, one.done) for one in answers] == [(id, True) for id in ids]


@pytest.mark.parametrize(
    "which",
    [
        "chat",
        None,
        Filter(statuses=Status.FAILED),  # type: ignore[arg-type]
        Filter(statuses="failed"),  # type: ignore[arg-type]
        Filter(statuses=("fialed",)),  # type: ignore[arg-type]
        Filter(statuses=None),  # type: ignore[arg-type]
    ],
    ids=["text", "none", "one status", "text for statuses", "unknown status", "no statuses"],
)
async def test_an_invalid_filter_is_refused(world: World, which: Any) -> None:
    await world.dead()
    for look in (
        world.operator.jobs(which),
        world.operator.dead(which),
        world.operator.count(which),
        world.operator.retry_all(which, "anna"),
    ):
        with pytest.raises(UsageError, match=r"it must be a (Filter|tuple)"):
            await look


async def test_ids_and_names_are_texts(world: World) -> None:
    looks = ("farm", "job", "payload", "resolve", "session", "session_history", "session_tenants")
    acts = ("erase_session", "pause", "trigger_schedule", "drain_farm")
    wrong: list[Any] = [5, None, b"x", ["x"]]
    for verb in (*looks, *acts):
        for id in wrong:
            by = ("me",) if verb in acts else ()
            with pytest.raises(UsageError, match="is not allowed; it must be a text"):
                await getattr(world.operator, verb)(id, *by)


@pytest.mark.parametrize("tenant", [None, 5])
async def test_sessions_are_erased_of_one_named_tenant(world: World, tenant: Any) -> None:
    with pytest.raises(UsageError, match="it must be the tenant whose sessions are erased"):
        await world.operator.erase_sessions(tenant, "me")


async def test_dead_must_be_a_bool(world: World) -> None:
    word: Any = "yes"
    with pytest.raises(
        UsageError, match="dead='yes' is not allowed; it must be True, False or None"
    ):
        await world.operator.jobs(Filter(dead=word))


@pytest.mark.parametrize("verb", ["cancel_all", "retry_all", "drop_all"])
async def test_progress_must_be_a_function(world: World, verb: str) -> None:
    with pytest.raises(
        UsageError, match="progress=5 is not allowed; it must be a function, or None"
    ):
        await getattr(world.operator, verb)(Filter(), "me", 5)
