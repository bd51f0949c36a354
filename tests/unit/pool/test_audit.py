"""A pool in memory keeps the same audit as a store, for the last ten thousand records."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poolhand import App, Pool, Retry, Ticket, UsageError, bounded, ring_buffer, wait
from poolhand.observe.events import Events, JobEnded, JobRetried, JobStarted, JobSubmitted
from poolhand.rules.audit import AuditLine
from poolhand.testing import SeededRuntime, run_seeded
from poolhand.views import Status
from tests.unit.pool.support import Heard, seeded, until

Told = list[tuple[str, dict[str, Any]]]


def told(pool: Pool) -> list[str]:
    """Return the audit as text; a job is shown by the last number of its id."""
    return [worded(line) for line in pool.audit()]


def worded(line: AuditLine) -> str:
    job = getattr(line.record, "task_id", None)
    kind = line.kind.removeprefix("pool_")
    return kind if job is None else f"{kind} {int(job[-5:], 16)}"


def body(lines: list[AuditLine]) -> bytes:
    return b"\n".join(b"%d %b" % (line.number, line.body) for line in lines)


async def no_op() -> None: ...


async def take(item: int) -> None: ...


async def fail() -> None:
    raise OSError("secret")


@seeded
async def test_a_job_is_audited_from_submit_to_outcome(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        await pool.run(no_op)
        await asyncio.sleep(1)
        await wait(await pool.with_options(retry=Retry(attempts=2, first=1)).submit(fail))
    lines = pool.audit()
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    kinds = [line.kind.removeprefix("pool_") for line in lines]
    good = ["submit", "dequeue", "outcome"]
    bad = ["submit", "dequeue", "retry", "dequeue", "outcome"]
    assert kinds == ["create", *good, *bad, "drain"]
    (ended,) = (line.record for line in lines if line.number == 9)
    assert (ended.status, ended.attempt, ended.error) == (Status.FAILED, 2, "OSError")  # type: ignore[union-attr]
    assert b"secret" not in body(lines)


@seeded
async def test_records_have_job_time_and_slot(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime, max_concurrent=1) as pool:
        await asyncio.sleep(1)
        first = await pool.with_options(priority=3, key="k", idempotency_key="i").submit(
            asyncio.sleep, 2
        )
        second = await pool.submit(asyncio.sleep, 1)
        await wait([first, second])
        lines = {worded(line).split()[0] + line.record.task_id: line for line in pool.audit()[1:]}  # type: ignore[operator]
        submit = msgspec.json.decode(lines[f"submit{first.id}"].body)
        assert submit == {
            "schema": "poolhand.pool_submit.v1",
            "pool_id": pool.id,
            "pool": pool.name,
            "task_id": first.id,
            "submitted_at": "2030-01-01T00:00:01Z",
            "priority": 3,
            "key": "k",
            "idempotency_key": "i",
            "submitted_by": "user",
        }
        dequeue = msgspec.json.decode(lines[f"dequeue{second.id}"].body)
        assert (dequeue["queued_for_ms"], dequeue["slot_index"], dequeue["attempt"]) == (2000, 0, 1)
        assert dequeue["dequeued_at"] == "2030-01-01T00:00:03Z"
        assert lines[f"outcome{second.id}"].at == second.snapshot().finished_at


@seeded
async def test_an_eviction_is_audited_after_the_submit_that_caused_it(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, backpressure=ring_buffer(1)) as pool:
        tickets = [await pool.submit(asyncio.sleep, 1) for _ in range(3)]
        await wait(tickets)
        numbers = [int(ticket.id[-5:], 16) for ticket in tickets]
        words = told(pool)
        assert words.index(f"drop {numbers[1]}") > words.index(f"submit {numbers[2]}")
        (drop,) = pool.audit(kind="pool_drop")
        record = msgspec.json.decode(drop.body)
        assert (record["replacement_task_id"], record["policy"]) == (tickets[2].id, "ring_buffer")
        assert (record["queue_depth"], record["max_depth"]) == (1, 1)


@seeded
async def test_the_audit_can_be_read_from_a_number_and_by_kind(runtime: SeededRuntime) -> None:
    async with Pool(runtime=runtime) as pool:
        await pool.run(no_op)
        pool.pause()
        seen = pool.audit()
        pool.resume()
        await pool.resize(2)
        assert [worded(line) for line in pool.audit(after=seen[-1].number)] == ["resume", "resize"]
        assert [line.number for line in pool.audit(kind="pool_re")] == [6, 7]
        assert pool.audit(after=100) == []
        assert pool.audit()[: len(seen)] == seen
        for wrong in ({"after": -1}, {"after": "1"}, {"kind": None}):
            with pytest.raises(UsageError, match="it must be the"):
                pool.audit(**wrong)


@pytest.mark.slow
async def test_the_last_ten_thousand_are_kept_with_their_numbers() -> None:
    async with Pool(max_concurrent=3) as pool:
        for asked in (False, True):
            for _ in range(4):
                await pool.map(take, range(1000))
                if asked:
                    pool.audit()
            lines = pool.audit()
            last = 1 + 3 * 4000 * (1 + asked)
            assert [line.number for line in lines] == list(range(last - 9_999, last + 1))


@seeded
async def test_the_audit_does_not_keep_results_alive(runtime: SeededRuntime) -> None:
    class Result:
        pass

    async with Pool(runtime=runtime, history=0) as pool:
        gone = [weakref.ref(await pool.run(Result)) for _ in range(10)]
        await asyncio.sleep(1)
        gc.collect()
        assert [one() for one in gone] == [None] * 10
        assert len(pool.audit(kind="pool_outcome")) == 10


async def busy_day(runtime: SeededRuntime, asks: bool, events: Events | None = None) -> Pool:
    """Submit and end jobs in all ways, by the randomness of the seed."""
    policy = bounded(5, on_full="drop_oldest")
    random, retry = runtime.random, Retry(attempts=3, first=0.5)
    dice = iter([random.random() for _ in range(2000)])
    pool = Pool(runtime=runtime, events=events, max_concurrent=2, backpressure=policy, retry=retry)
    async with pool:
        tickets: list[Ticket[Any]] = []

        async def job(seconds: float, bad: bool) -> None:
            await asyncio.sleep(seconds)
            if bad:
                raise OSError

        for _ in range(80):
            roll = next(dice)
            view = pool.with_options(expires=0.3) if roll < 0.2 else pool
            tickets.append(await view.submit(job, next(dice), roll > 0.8))
            if next(dice) < 0.2:
                await tickets[int(next(dice) * len(tickets))].cancel()
            if next(dice) < 0.1:
                (pool.pause if next(dice) < 0.3 else pool.resume)()
            await asyncio.sleep(next(dice))
            if asks:
                pool.audit()
        pool.resume()
        await wait(tickets)
    return pool


def test_the_same_run_gives_the_same_bytes() -> None:
    for seed in range(5):
        first, second = (
            body(run_seeded(lambda runtime: busy_day(runtime, False), seed).audit())
            for _ in range(2)
        )
        assert first == second
        assert first.count(b"\n") > 200


def test_reading_the_audit_in_between_does_not_change_it() -> None:
    for seed in range(5):
        asked, once = (
            run_seeded(lambda runtime, asks=asks: busy_day(runtime, asks), seed).audit()  # type: ignore[misc]
            for asks in (True, False)
        )
        assert [line.number for line in asked] == list(range(1, len(asked) + 1))
        assert [worded(line) for line in asked] == [worded(line) for line in once]


def test_the_audit_matches_the_events() -> None:
    kinds = {JobSubmitted: "submit", JobStarted: "dequeue", JobRetried: "retry"}
    for seed in range(5):
        heard = Heard()
        pool = run_seeded(lambda runtime: busy_day(runtime, False, heard.events), seed)  # noqa: B023
        lived: dict[str, list[str]] = defaultdict(list)
        for event in heard.all:
            kind = kinds.get(type(event))
            if isinstance(event, JobEnded):
                kind = "drop" if event.job.status is Status.REJECTED else "outcome"
            if kind is not None:
                lived[event.job.id].append(kind)  # type: ignore[attr-defined]
        audited: dict[str, list[str]] = defaultdict(list)
        inside, most = 0, 0
        for line in pool.audit():
            kind = line.kind.removeprefix("pool_")
            if kind in ("submit", "dequeue", "retry", "outcome", "drop"):
                audited[line.record.task_id].append(kind)  # type: ignore[index]
            if kind == "dequeue":
                inside += 1
                most = max(most, inside)
            elif kind == "retry" or (kind == "outcome" and _was_inside(audited, line)):
                inside -= 1
        assert audited == lived
        assert (inside, most) == (0, 2)


def _was_inside(audited: dict[str, list[str]], line: AuditLine) -> bool:
    return audited[line.record.task_id][-2] == "dequeue"  # type: ignore[index]


@seeded
async def test_a_blocked_submitter_is_audited_once_its_job_is_accepted(
    runtime: SeededRuntime,
) -> None:
    async with Pool(runtime=runtime, backpressure=bounded(1)) as pool:
        runs = [asyncio.ensure_future(pool.run(asyncio.sleep, 1)) for _ in range(6)]
        for _ in range(20):
            await asyncio.sleep(0.37)
            seen = pool.snapshot()
            assert len(pool.audit(kind="pool_submit")) == seen.total
            assert len(pool.audit(kind="pool_dequeue")) == seen.active + seen.completed
        await asyncio.gather(*runs)
    numbers = [line.number for line in pool.audit()]
    assert numbers == list(range(1, 2 + 3 * 6 + 1))


class Gate:
    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def hold(self) -> None:
        self.entered.set()
        await self.opened.wait()


async def scenario(pool: Pool) -> list[str]:
    """Do one thing of every kind; return the ids of the jobs in order."""
    gate, other = Gate(), Gate()
    async with pool:
        held = await pool.submit(gate.hold)
        await gate.entered.wait()
        waiting = [await pool.submit(no_op) for _ in range(3)]
        await waiting[1].cancel()
        pool.pause()
        await wait(late := await pool.with_options(expires=0.01).submit(no_op))
        pool.resume()
        gate.opened.set()
        await wait([held, *waiting])
        again = Retry(attempts=2, first=0.01)
        await wait(failing := await pool.with_options(retry=again).submit(fail))
        rerun = await pool.rerun(failing.id)
        await wait(rerun)
        running = await pool.submit(other.hold)
        await other.entered.wait()
        await running.cancel()
        await pool.resize(2)
    tickets: list[Ticket[Any]] = [held, *waiting, late, failing, rerun, running]
    return [ticket.id for ticket in tickets]


@pytest.mark.slow
async def test_a_store_writes_the_same_audit_records_as_a_pool_in_memory(tmp_path: Path) -> None:
    options: dict[str, Any] = {"backpressure": ring_buffer(2), "max_concurrent": 1}
    pool = Pool("kept", **options)
    ours = by_job(await scenario(pool), [(line.kind, as_dict(line)) for line in pool.audit()])
    kept = Pool("kept", scope="pipeline", scope_id="night", dir=tmp_path, **options)
    with pytest.raises(UsageError, match="poolhand audit"):
        kept.audit()
    ids = await scenario(kept)
    async with App(f"sqlite:///{tmp_path}/night__kept.db") as app:
        lines = await app.operator().audit(0, 1000)
    theirs = by_job(ids, [(line.kind, line.record) for line in lines])
    assert ours == theirs


def as_dict(line: AuditLine) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.json.decode(line.body)
    return record


# Fields that differ between two runs, or name an actor: a pool in memory has none.
DIFFERENT = ("task_id", "pool_id", "replacement_task_id", "queued_for_ms", "detail")


def by_job(ids: list[str], lines: Told) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return the records of each job and of the pool, without fields that differ between runs."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for kind, record in lines:
        job = record.get("task_id")
        facts = {
            key: None if key in DIFFERENT or key.endswith("_at") else value
            for key, value in record.items()
        }
        found["pool" if job is None else f"job {ids.index(job)}"].append((kind, facts))
    return found


async def test_the_audit_must_be_read_on_the_thread_of_the_loop() -> None:
    async with Pool() as pool:
        await until(lambda: True)
        with pytest.raises(UsageError, match="on the thread of its event loop"):
            await asyncio.to_thread(pool.audit)
    with pytest.raises(UsageError, match="is not started"):
        Pool().audit()
