"""Rows of tables: what they say of workers, jobs and pools, and how they fit a terminal."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolhand.farm.roster import FarmState, RunningJob, Trouble, WorkerState
from poolhand.operate.farms import LoneWorker
from poolhand.tui import rows, summary
from poolhand.tui.throughput import Throughput
from tests.unit.operate.test_farms import FARM, a_farm, a_worker
from tests.unit.operate.world import START, World, made

NOW = START + timedelta(minutes=2)


def told(rows_: list[rows.Row], columns: tuple[rows.Column, ...]) -> list[dict[str, str]]:
    names = [column.name for column in columns]
    return [dict(zip(names, row.cells, strict=True)) for row in rows_]


@pytest.mark.parametrize(
    ("more", "words", "style"),
    [
        ({}, "ready", "green"),
        ({"state": WorkerState.STARTING}, "starting", "yellow"),
        ({"state": WorkerState.LEAVING}, "leaving", "yellow"),
        ({"state": WorkerState.HUNG}, "hung", "red"),
        ({"heard": 4.0}, "SILENT, ready", "red"),
        ({"blocked": 12.0}, "BLOCKED 12 s, ready", "red"),
        ({"stuck": 2}, "2 stuck, ready", "red"),
        ({"heard": 9.0, "blocked": 1.0}, "SILENT, BLOCKED 1.0 s, ready", "red"),
    ],
)
def test_how_a_worker_is_stands_in_words(more: dict[str, Any], words: str, style: str) -> None:
    assert rows.state_of(a_worker(1, **more)) == (words, style)


def test_workers_stand_below_their_farm_and_those_of_none_at_the_end() -> None:
    farm = a_farm(FARM, a_worker(1), a_worker(2, pid=201), capacity=20)
    found = rows.worker_rows([farm], [LoneWorker("lone", "elm/9", 7, 3)], NOW)
    assert [row.key for row in found] == [FARM, f"{FARM}.1", f"{FARM}.2", "lone"]
    first, second, _, last = told(found, rows.WORKERS)
    assert first == {
        "worker": FARM, "state": "running, 1 to 10", "pid": "100", "active": "6/20", "ok": "40",
        "failed": "2", "up": "2 min 00 s", "memory": "99 MB", "heard": "-",
    }  # fmt: skip
    assert second == {
        "worker": f"  {FARM}.1", "state": "ready", "pid": "200", "active": "3/10", "ok": "40",
        "failed": "2", "up": "2 min 00 s", "memory": "50 MB", "heard": "0.4 s ago",
    }  # fmt: skip
    assert (last["state"], last["active"]) == ("of no farm, on elm", "3")


async def test_a_job_is_shown_with_its_worker_how_long_it_runs_and_a_note() -> None:
    async with made() as world:
        running, waiting, dead = await _jobs(world)
        page = await world.operator.jobs()
        mark = RunningJob(running, "fetch", "chat", START, "soft_timeout")
        farm = a_farm(FARM, a_worker(3, jobs=(mark,)))
        found = told(rows.job_rows(page, rows.running_in([farm]), NOW), rows.JOBS)
    cells = {row["id"]: row for row in found}
    assert list(cells) == [dead, waiting, running]
    assert cells[running] | {"task": ""} == {
        "state": "running", "id": running, "task": "", "pool": "chat", "worker": f"{FARM}.3",
        "took": "2 min 00 s", "tries": "1", "note": "soft timeout",
    }  # fmt: skip
    assert cells[waiting]["note"] == "it waits for a slot"
    assert (cells[waiting]["took"], cells[waiting]["worker"]) == ("-", "-")
    assert (cells[dead]["state"], cells[dead]["took"]) == ("failed, dead", "2.0 s")
    assert cells[dead]["note"] == "ValueError: no think"


async def _jobs(world: World) -> tuple[str, str, str]:
    running = await world.add("fetch")
    await world.claim(1)
    return running, await world.add("fetch"), await world.dead("think", pool="research")


def test_troubles_of_all_farms_are_shown_newest_first() -> None:
    early, late = Trouble(START, "early"), Trouble(NOW, "late\n", f"{FARM}.1", "j-1")
    farms = [a_farm(FARM, troubles=(early,)), a_farm("ash-000001", troubles=(late,))]
    found = told(rows.trouble_rows(farms), rows.TROUBLES)
    assert [row["trouble"] for row in found] == ["late\\n (job j-1)", "early"]
    assert [row["farm"] for row in found] == ["ash-000001", FARM]
    assert summary.trouble(farms) == (f"TROUBLE 00:02:00 late\\n (worker {FARM}.1); 1 before it")


@given(
    st.sampled_from([rows.WORKERS, rows.JOBS, rows.POOLS, rows.TROUBLES]),
    st.integers(70, 200),
    st.data(),
)
def test_columns_fit_into_any_width_and_the_last_one_is_there(
    columns: tuple[rows.Column, ...], width: int, data: st.DataObject
) -> None:
    wanted = [
        data.draw(st.integers(len(one.name), max(len(one.name), one.most))) for one in columns
    ]
    fits = rows.fitting(columns, wanted, width)
    assert sum(room + rows.GAP for room in fits.values()) <= width
    assert max(fits) == len(columns) - 1
    for place, column in enumerate(columns):
        assert place in fits or column.spare


@pytest.mark.parametrize("width", [-2, 0, 1, 20])
def test_no_width_at_all_is_survived(width: int) -> None:
    assert rows.fitting(rows.POOLS, [10] * len(rows.POOLS), width)


def test_what_is_too_long_is_cut_where_it_says_least() -> None:
    assert rows.cell("agents.fetch", 8, is_id=False) == "agents.…"
    assert rows.cell("19a8b0c1d2e3f4", 8, is_id=True) == "19a8…3f4"
    assert rows.cell("short", 8, is_id=True) == "short"


def test_one_farm_is_named_and_many_are_counted() -> None:
    farm, other = a_farm(FARM), a_farm("ash-000001", host="ash/1", state=FarmState.STOPPING)
    assert summary.who([farm], NOW) == f"farm {FARM}  running, up 2 min 00 s  shop:app"
    assert summary.who([farm, other], NOW) == "2 farms on 2 hosts: 1 running, 1 stopping"
    assert summary.load([farm, other]) == (
        "queued 0  demand 6 of capacity 20  workers 0, wanted 2 (min 2, max 20)"
    )


def test_a_farm_that_stops_says_what_still_runs() -> None:
    farm = a_farm(FARM, a_worker(1), a_worker(2, active=1), state=FarmState.STOPPING)
    assert "STOPPING: 4 still run in 2 workers" in summary.who([farm], NOW)


def test_an_external_farm_says_that_it_only_tells_the_number() -> None:
    assert "tells the number of workers only" in summary.who([a_farm(FARM, external=True)], NOW)


def test_the_head_has_four_lines_at_most_and_bars_only_where_there_is_room() -> None:
    for width in (20, 80, 200):
        lines = summary.head([a_farm(FARM)], Throughput(0.0), NOW, 1.0, width)
        assert len(lines) == 4
        assert ("▁" in lines[2]) == (width >= 80)
    assert summary.head([], Throughput(0.0), NOW, 1.0, 80) == [summary.NO_FARM]
