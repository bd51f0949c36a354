"""Rows of tables: their texts for workers, jobs and pools, and how they fit a terminal."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from poolhand.farm.records import FarmState, RunningJob, Trouble, WorkerState
from poolhand.operate import format, summary, tables
from poolhand.operate.farms import LoneWorker
from poolhand.operate.summary import Throughput
from poolhand.rules.job import Fault, Status
from tests.unit.operate.test_farms import FARM, a_farm, a_worker
from tests.unit.operate.world import START, World, made

NOW = START + timedelta(minutes=2)


def as_dicts(
    rows_: list[format.TableRow], columns: tuple[format.Column, ...]
) -> list[dict[str, str]]:
    names = [column.name for column in columns]
    return [dict(zip(names, row.cells, strict=True)) for row in rows_]


@pytest.mark.parametrize(
    ("more", "words", "style"),
    [
        ({}, "ready", "green"),
        ({"state": WorkerState.STARTING}, "starting", "yellow"),
        ({"state": WorkerState.LEAVING, "leaving_at": START}, "leaving for 2m00s", "yellow"),
        ({"state": WorkerState.HUNG}, "hung", "red"),
        ({"heard": 4.0}, "SILENT, ready", "red"),
        ({"blocked": 12.0}, "BLOCKED 12 s, ready", "red"),
        ({"stuck": 2}, "2 stuck, ready", "red"),
        ({"heard": 9.0, "blocked": 1.0}, "SILENT, BLOCKED 1.0 s, ready", "red"),
    ],
)
def test_the_state_of_a_worker_is_shown_in_words(
    more: dict[str, Any], words: str, style: str
) -> None:
    assert tables.state_of(a_worker(1, **more), NOW) == (words, style)


@pytest.mark.parametrize(("age", "shown"), [(0.5, 0.4), (3.9, 0.4), (6.0, 6.4)])
def test_the_last_signal_is_older_than_the_record_only_if_that_is_overdue(
    age: float, shown: float
) -> None:
    """One figure in all views: the worker may have sent a signal after the record was written."""
    farm = a_farm(FARM, a_worker(1, heard=0.4 + age), age=age)
    assert tables.signal_age(farm, farm.workers[0]) == pytest.approx(shown)


@pytest.mark.parametrize(
    ("minutes", "part"),
    [(1, ("2 troubles, last 1m00s ago", "bold red")), (125, ("2 troubles, last 2h05m ago", ""))],
)
def test_old_troubles_are_not_shown_as_present(minutes: int, part: tuple[str, str]) -> None:
    troubles = (Trouble(START - timedelta(1), "old"), Trouble(START, "new"))
    now = START + timedelta(minutes=minutes)
    farm = a_farm(FARM, troubles=troubles)
    assert summary.troubles([farm], now) == [part]
    assert summary.troubles([a_farm(FARM)], now) == [("no trouble", "dim")]
    age = part[0].partition("last ")[2]
    assert summary.trouble([farm], now) == f"TROUBLE 00:00:00 ({age}) new; 1 before it"


def test_workers_are_listed_under_their_farm_and_those_without_one_at_the_end() -> None:
    farm = a_farm(FARM, a_worker(1), a_worker(2, pid=201), capacity=20)
    found = tables.worker_rows([farm], [LoneWorker("lone", "elm/9", 7, 3)], NOW)
    assert [row.key for row in found] == [FARM, f"{FARM}.1", f"{FARM}.2", "lone"]
    first, second, _, last = as_dicts(found, tables.WORKERS)
    assert first == {
        "worker": FARM, "state": "running", "pid": "100", "running": "6/20", "attempts": "42",
        "failed": "2", "memory": "99 MB", "age": "2m00s", "last signal": "-",
    }  # fmt: skip
    assert second == {
        "worker": f"  {FARM}.1", "state": "ready", "pid": "200", "running": "3/10",
        "attempts": "42", "failed": "2", "memory": "50 MB", "age": "2m00s",
        "last signal": "0.4s ago",
    }  # fmt: skip
    assert (last["state"], last["running"]) == ("of no farm, on elm", "3")


def test_workers_of_a_silent_supervisor_have_an_unknown_state() -> None:
    worker = a_worker(1, heard=12.4)
    found = as_dicts(tables.worker_rows([a_farm(FARM, worker, age=12.0)], [], NOW), tables.WORKERS)
    assert [row["state"] for row in found] == ["NO SIGN for 12s", "unknown"]
    assert found[1]["last signal"] == "12s ago"
    both = [a_farm("ash-000001"), a_farm(FARM, worker, age=12.0)]
    assert summary.plain(summary.state(both, NOW)) == "1 running, 1 without a sign"
    assert summary.plain(summary.state(both[1:], NOW)) == "● NO SIGN for 12s"
    assert "no message from the supervisor" in summary.plain(summary.silent(both))
    assert any("for 12 s: it was killed" in line for line in summary.picture(both, {}, NOW))


def test_a_record_that_is_not_overdue_counts_as_of_now() -> None:
    for age, signal in ((2.0, "0.4s ago"), (5.0, "5.4s ago")):
        farm = a_farm(FARM, a_worker(1, heard=0.4 + age), age=age)
        row = as_dicts(tables.worker_rows([farm], [], NOW), tables.WORKERS)[1]
        assert (row["state"], row["last signal"]) == ("ready", signal)


def test_each_of_several_farms_shows_its_bounds() -> None:
    found = tables.worker_rows([a_farm(FARM), a_farm("ash-000001", maximum=4)], [], NOW)
    assert [row["state"] for row in as_dicts(found, tables.WORKERS)] == [
        "running, 1 to 10",
        "running, 1 to 4",
    ]


async def test_a_job_is_shown_with_its_worker_its_duration_and_a_note() -> None:
    async with made() as world:
        running, waiting, dead = await _jobs(world)
        page = await world.operator.jobs()
        mark = RunningJob(running, "fetch", "chat", START, "soft_timeout")
        farm = a_farm(FARM, a_worker(3, jobs=(mark,)))
        pools = await world.operator.pools()
        found = as_dicts(tables.job_rows(page, tables.running_in([farm]), pools, NOW), tables.JOBS)
    cells = {row["id"]: row for row in found}
    assert list(cells) == [dead, waiting, running]
    assert cells[running] | {"task": ""} == {
        "state": "running", "id": running, "task": "", "pool": "chat", "worker": f"{FARM}.3",
        "age": "2m00s", "took": "2m00s", "tries": "1", "note": "soft timeout",
    }  # fmt: skip
    assert cells[waiting]["note"] == "waits for a worker"
    assert (cells[waiting]["took"], cells[waiting]["worker"]) == ("-", "-")
    assert (cells[dead]["state"], cells[dead]["took"]) == ("failed, dead", "2.0s")
    assert cells[dead]["note"] == "ValueError: no think"


async def _jobs(world: World) -> tuple[str, str, str]:
    running = await world.add("fetch")
    await world.claim(1)
    return running, await world.add("fetch"), await world.dead("think", pool="research")


def test_troubles_of_all_farms_are_shown_newest_first() -> None:
    early, late = Trouble(START, "early"), Trouble(NOW, "late\n", f"{FARM}.1", "j-1")
    farms = [a_farm(FARM, troubles=(early,)), a_farm("ash-000001", troubles=(late,))]
    found = as_dicts(tables.trouble_rows(farms, NOW), tables.TROUBLES)
    assert [row["trouble"] for row in found] == ["late\\n (job j-1)", "early"]
    assert [row["age"] for row in found] == ["0.0s", "2m00s"]
    assert [row["farm"] for row in found] == ["ash-000001", FARM]
    assert summary.trouble(farms, NOW) == (
        f"TROUBLE 00:02:00 (0.0s ago) late\\n (worker {FARM}.1); 1 before it"
    )


@given(
    st.sampled_from([tables.WORKERS, tables.JOBS, tables.POOLS, tables.TROUBLES]),
    st.integers(70, 200),
    st.data(),
)
def test_columns_fit_into_any_width_and_the_last_one_is_there(
    columns: tuple[format.Column, ...], width: int, data: st.DataObject
) -> None:
    wanted = [
        data.draw(st.integers(len(one.name), max(len(one.name), one.most))) for one in columns
    ]
    fits = format.fitting(columns, wanted, width)
    assert sum(room + format.GAP for room in fits.values()) <= width
    assert max(fits) == len(columns) - 1
    for place, column in enumerate(columns):
        assert place in fits or column.spare


@pytest.mark.parametrize("width", [-2, 0, 1, 20])
def test_a_width_of_zero_is_handled(width: int) -> None:
    assert format.fitting(tables.POOLS, [10] * len(tables.POOLS), width)


def test_long_text_is_shortened_where_it_is_least_informative() -> None:
    plain, id, path = (
        format.Column("a"),
        format.Column("a", is_id=True),
        format.Column("a", path=True),
    )
    number = format.Column("a", right=True)
    assert format.cell("it waits for", 8, plain) == "it wait…"
    assert format.cell("19a8b0c1d2e3f4", 8, id) == "19a8…3f4"
    assert format.cell("agents.fetch", 8, path) == "…s.fetch"
    assert format.cell("short", 8, id) == "short"
    assert format.cell("12", 4, number) == "  12"


def test_long_columns_are_shortened_before_others_are_spared() -> None:
    wanted = [12, 28, 23, 8, 12, 5, 5, 5, 30]
    names = [tables.JOBS[place].name for place in format.fitting(tables.JOBS, wanted, 79)]
    assert names == ["state", "id", "task", "age", "note"]
    assert format.fitting(tables.JOBS, wanted, 200) == dict(enumerate(wanted))


def test_an_age_is_exact_for_a_minute_and_then_changes_for_all_rows_at_once() -> None:
    def ages(now: float) -> list[str]:
        moments = (START, START + timedelta(seconds=3.4), START + timedelta(minutes=20))
        return [format.age(since, START + timedelta(seconds=now)) for since in moments]

    assert ages(28.6)[:2] == ["29s", "25s"]
    assert ages(150.0) == ages(154.2) == ages(159.9)
    assert ages(160.0) != ages(159.9)


# Why jobs wait


async def test_a_waiting_job_is_shown_with_the_reason() -> None:
    async with made() as world:
        await world.add("fetch")
        (pool,) = await world.operator.pools()
        (row,) = as_dicts(
            tables.job_rows(await world.operator.jobs(), {}, [pool], NOW), tables.JOBS
        )
        assert row["note"] == "no worker serves pool 'chat'"
        await world.enroll()
        page = await world.operator.jobs()
        for slots, running, note in (
            (None, 9, "waits for a worker"),
            (4, 3, "waits for a worker"),
            (4, 4, "all 4 pool slots busy"),
            (1, 1, "the pool's slot is busy"),
        ):
            seen = replace(pool, slots=slots, running=running)
            (row,) = as_dicts(tables.job_rows(page, {}, [seen], NOW), tables.JOBS)
            assert row["note"] == note
        (job,) = page
        failed = replace(
            job, reason="scheduled", why="it waits for a retry", attempts=1,
            error=Fault("ValueError", "no", ""),
        )  # fmt: skip
        (row,) = as_dicts(tables.job_rows([failed], {}, [pool], NOW), tables.JOBS)
        assert row["note"] == "it waits for a retry; it raised ValueError: no"


async def test_jobs_that_wait_for_pools_while_workers_are_free_are_as_dicts() -> None:
    async with made() as world:
        await world.add("fetch")
        (pool,) = await world.operator.pools()
    free, busy = a_farm(FARM, a_worker(1)), a_farm(FARM, a_worker(1, active=10))
    full = replace(pool, slots=3, running=3, queued=7)
    paused = replace(pool, name="mail", paused=True, queued=1)
    assert summary.limits([free], [full, paused]) == (
        "8 jobs wait for pools, not for workers: mail is paused, chat runs 3 of at most 3"
    )
    assert summary.limits([busy], [full, paused]) == (
        "1 job waits for pools, not for workers: mail is paused"
    )
    assert summary.limits([busy], [full]) == summary.limits([free], [pool]) == ""


# The head


COUNTS = {Status.QUEUED: 5, Status.BLOCKED: 2, Status.COMPLETED: 38, Status.FAILED: 1}


def plain(line: list[summary.Part]) -> str:
    return summary.plain(line)


def test_one_farm_is_named_and_many_are_counted() -> None:
    farm, other = a_farm(FARM), a_farm("ash-000001", host="ash/1", state=FarmState.STOPPING)
    assert plain(summary.who([farm])) == f"farm {FARM} · shop:app"
    assert plain(summary.state([farm], NOW)) == "● running · up 2 min 00 s"
    assert plain(summary.who([farm, other])) == "2 farms on 2 hosts"
    assert plain(summary.state([farm, other], NOW)) == "1 running, 1 stopping"
    assert plain(summary.who([])) == "no farm"


def test_the_load_is_summarized_in_plain_words() -> None:
    farm = a_farm(FARM, a_worker(1), a_worker(2), queued=228, capacity=20, wanted=2)
    assert plain(summary.load([farm], COUNTS)) == (
        "waiting 228 · running 6 of 20 slots · 2 workers (min 1, max 10)"
    )
    # Two farms may serve the same pools, so waiting jobs are counted in the store.
    assert plain(summary.load([farm, farm], COUNTS)).startswith("waiting 7 · running 12 of 40")
    later = {Status.SCHEDULED: 3, Status.RUNNING: 1}
    assert plain(summary.load([], later)) == "waiting 0 · running 1 · scheduled 3"


def test_leaving_workers_are_counted_separately_from_wanted_ones() -> None:
    leaving = a_worker(1, state=WorkerState.LEAVING, leaving_at=START)
    farm = a_farm(FARM, leaving, a_worker(2), wanted=2, maximum=2, surge=0, held=1)
    assert plain(summary.load([farm], {})).endswith(
        "running 6 of 13 slots · 1 worker, 2 wanted, 1 leaving (min 1, max 2)"
    )
    assert plain(summary.held([farm])).startswith(f"{FARM}: 1 worker waits to start")
    assert summary.held([a_farm(FARM)]) == []


def test_failed_jobs_are_counted_separately_from_failed_attempts() -> None:
    line = plain(summary.speed([a_farm(FARM)], COUNTS, Throughput(0.0), 1.0, 20))
    assert line == "0.0 jobs/s · jobs 38 done, 1 failed · attempts 42, 2 failed"


def test_a_stopping_farm_shows_its_running_jobs() -> None:
    farm = a_farm(FARM, a_worker(1), a_worker(2, active=1), state=FarmState.STOPPING)
    assert "STOPPING: 4 still run in 2 workers" in plain(summary.state([farm], NOW))


def test_an_external_farm_is_shown_as_only_reporting_a_number() -> None:
    told = plain(summary.who([a_farm(FARM, external=True)]))
    assert told.endswith("only reports how many workers are wanted")


def test_bars_are_there_only_where_there_is_room() -> None:
    for width in (20, 80, 200):
        line = summary.speed([a_farm(FARM)], {}, Throughput(0.0), 1.0, width)
        assert ("▁" in plain(line)) == (width >= 80)
