"""The live view, driven by keys over a store with farms and jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from poolhand.contract import Filter, LogLine, Put
from poolhand.farm.records import (
    FARMS,
    ControlAnswer,
    ControlKind,
    FarmState,
    FinishedJob,
    RunningJob,
    Snapshot,
    Trouble,
    WorkerState,
)
from poolhand.rules.audit import RERUN
from poolhand.rules.job import Fault, Status
from poolhand.rules.streams import events_of
from poolhand.stores.postgres.store import PostgresStore
from poolhand.stores.sqlite.store import SqliteStore
from poolhand.tui.farm_app import FarmApp
from tests.private_servers.postgres_server import PostgresServer
from tests.unit.operate.test_farms import FARM, a_farm, a_worker, farming, write_down
from tests.unit.operate.world import START, Clock, World, made

pytestmark = pytest.mark.slow

HOSTILE = "\x1b[31m[red]x[/nothing]\x07\u202e"
SPELLED = "\\x1b[31m[red]x[/nothing]\\x07\\u202e"
SECONDS = 20


class Screen:
    """A terminal with a view, and a keyboard."""

    def __init__(self, app: FarmApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def text(self) -> str:
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.text.splitlines()]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, found: Callable[[], object]) -> None:
        """Wait until the condition holds."""
        try:
            async with asyncio.timeout(SECONDS):
                while not found():
                    await self.pilot.pause(0.02)
        except TimeoutError:
            pytest.fail(f"it never came:\n{self.text}", pytrace=True)

    async def sees(self, *texts: str) -> None:
        """Wait until all of this is on the screen."""
        await self.until(lambda: all(text in self.text for text in texts))

    async def sees_no(self, text: str) -> None:
        await self.until(lambda: text not in self.text)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = Clock()
    async with made(SqliteStore(tmp_path / "agents.db", clock), clock) as one:
        yield one


@asynccontextmanager
async def viewed(
    world: World, size: tuple[int, int] = (120, 40), **options: Any
) -> AsyncIterator[Screen]:
    """Show the view of a world, which polls five times a second."""
    app = FarmApp(world.operator, by="anna", every=0.2, runtime=world.runtime, **options)
    async with app.run_test(size=size) as pilot:
        yield Screen(app, pilot)


async def tell(world: World, id: str, *told: tuple[str, Any]) -> None:
    """Write the events of a job, as its worker does."""
    lines = [
        LogLine(events_of(id), kind, msgspec.json.encode({"attempt": 1, "data": data}))
        for kind, data in told
    ]
    await world.store.append(lines)


# The screen


async def test_farms_and_workers_are_shown_with_their_state(world: World) -> None:
    trouble = Trouble(START, f"it hangs {HOSTILE}", f"{FARM}.2")
    farm = a_farm(FARM, a_worker(1), a_worker(2, heard=4.0, blocked=3.2), troubles=(trouble,))
    await write_down(world.store, farm)
    async with viewed(world) as screen:
        await screen.sees(f"farm {FARM} · shop:app", "● running", "(min 1, max 10)")
        await screen.sees("waiting 0 · running 6 of 10 slots", "attempts 42, 2 failed")
        await screen.sees("1 trouble, last 0.0s ago")
        await screen.sees(f"00:00:00Z  0.0s  {FARM}  {FARM}.2  it hangs {SPELLED}")
        await screen.sees(f"{FARM}.1", "SILENT, BLOCKED 3.2 s, ready", "4.0s ago", "50 MB")
        await write_down(world.store, replace(farm, queued=77, state=FarmState.STOPPING))
        await screen.sees("waiting 77", "STOPPING: 6 still run in 2 workers")


async def test_each_tab_is_reached_by_its_number_by_t_and_by_a_click(world: World) -> None:
    await world.add(pool="research")
    async with viewed(world) as screen:
        for key, text in (("2", "jobs: all"), ("3", "order of jobs"), ("1", "Newest jobs")):
            await screen.press(key)
            await screen.sees(text)
        for text in ("jobs: all", "order of jobs", "Newest jobs"):
            await screen.press("t")
            await screen.sees(text)
        for x, text in ((9, "jobs: all"), (18, "order of jobs"), (2, "Newest jobs")):
            await screen.pilot.click("#tabs", (x, 0))
            await screen.sees(text)
        await screen.pilot.click("#tabs", (70, 0))
        await screen.sees("Newest jobs")


async def test_the_newest_jobs_are_below_the_workers_and_keys_act_on_them(world: World) -> None:
    id = await world.add("agents.fetch")
    await write_down(world.store, a_farm(FARM, a_worker(1)))
    async with viewed(world) as screen:
        await screen.sees(f"{FARM}.1", "Newest jobs", id, "no worker serves")
        assert screen.text.index(f"{FARM}.1") < screen.text.index(id)
        # Without the cursor on a job, no job is selected.
        await screen.press("c")
        await screen.sees("select a job first")
        await screen.press("tab", "enter")
        await screen.sees(f"job {id}", "● queued")
        await screen.press("escape")
        await screen.sees("Newest jobs")
        await screen.press("p")
        await screen.sees("pool 'chat' is paused")
        await screen.press("c")
        await screen.sees(f"{id}: it is cancelled")


async def test_failed_jobs_and_failed_attempts_are_shown_separately(world: World) -> None:
    await world.dead()
    await write_down(world.store, a_farm(FARM, completed=40, failed=9))
    async with viewed(world) as screen:
        await screen.sees("jobs 0 done, 1 failed", "attempts 49, 9 failed")


async def test_states_have_colours_and_job_text_has_none(world: World) -> None:
    await world.dead("[green]fetch[/]")
    await write_down(world.store, a_farm(FARM, a_worker(1), a_worker(2, heard=9.0)))
    async with viewed(world) as screen:
        await screen.sees("failed, dead", "[green]fetch[/]", "SILENT, ready")
        colours = {
            segment.text.strip(): segment.style.color and segment.style.color.name
            for strip in screen.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None
        }
        assert colours["ready"] == "green"
        assert colours["SILENT, ready"] == "red"
        assert colours["failed, dead"] == "red"
        assert colours["[green]fetch[/]"] != "green"


async def test_a_leaving_worker_and_the_workers_that_wait_for_it_are_shown(world: World) -> None:
    leaving = a_worker(1, state=WorkerState.LEAVING, leaving_at=START)
    await write_down(world.store, a_farm(FARM, leaving, a_worker(2), maximum=1, surge=1, held=1))
    async with viewed(world) as screen:
        await screen.sees("leaving for 0.0s", "1 worker, 1 leaving (min 1, max 1)")
        await screen.sees("1 worker waits to start: at most 2 processes at once")


async def test_jobs_waiting_for_a_paused_pool_are_reported_below_the_table(world: World) -> None:
    await world.add()
    await world.operator.pause("chat", "anna")
    await write_down(world.store, a_farm(FARM, a_worker(1)))
    async with viewed(world) as screen:
        await screen.sees("1 job waits for pools, not for workers: chat is paused")
        await screen.press("c")
        await screen.sees("select a job first")


async def test_empty_views_explain_what_to_do(world: World) -> None:
    async with viewed(world, (80, 24)) as screen:
        await screen.sees("no worker processes yet", "no jobs yet: submit one from your code")
        await screen.press("2")
        await screen.sees("no jobs yet: submit one from your code")
        await screen.press("f")
        await screen.sees("jobs: waiting", "no such jobs: escape shows all")
        await screen.press("3")
        await screen.sees("no pools yet: they appear when an app first submits or works")
        assert "Troubles" not in screen.text
        await world.add()
        await screen.sees("chat", "open")
        await screen.sees_no("no pools yet")


async def test_throughput_grows_with_the_jobs_farms_have_finished(world: World) -> None:
    await write_down(world.store, a_farm(FARM, completed=40))
    async with viewed(world) as screen:
        await screen.sees("0.0 jobs/s")
        assert isinstance(world.runtime, Clock)
        world.runtime.seconds += 5.0
        await write_down(world.store, a_farm(FARM, completed=90))
        await screen.sees("10.0 jobs/s", "█")


async def test_a_store_without_a_farm_explains_how_to_start_one(world: World) -> None:
    async with viewed(world) as screen:
        await screen.sees("no farm is running; start one with `poolhand work module:app`")
        for key in ("plus", "x", "s"):
            await screen.press(key)
            await screen.sees("select a farm first")
        await screen.press("t", "r")
        await screen.sees("select a job first")
        await screen.press("enter", "t", "p")
        await screen.sees("select a pool first")


async def test_jobs_are_seen_newest_first_with_their_worker(world: World) -> None:
    running = await world.add("agents.fetch")
    await world.claim(1)
    waiting = await world.add("agents.think")
    job = RunningJob(running, "agents.fetch", "chat", START)
    await write_down(world.store, a_farm(FARM, a_worker(1, jobs=(job,))))
    async with viewed(world) as screen:
        await screen.press("t")
        await screen.sees(running, waiting)
        rows = [line.split() for line in screen.lines if "agents." in line]
        assert [row[:4] for row in rows] == [
            ["queued", waiting, "agents.think", "chat"],
            ["running", running, "agents.fetch", "chat"],
        ]
        assert rows[1][4] == f"{FARM}.1"
        newest = await world.add("agents.think")
        await screen.sees(newest)


async def test_the_cursor_stays_on_its_job_while_others_arrive(world: World) -> None:
    ids = [await world.add() for _ in range(3)]
    async with viewed(world) as screen:
        await screen.press("t")
        await screen.sees(*ids)
        await screen.press("down")
        assert screen.app.board.jobs.chosen == ids[1]
        newest = await world.add()
        await screen.sees(newest)
        assert screen.app.board.jobs.chosen == ids[1]
        await screen.press("up", "up")
        assert screen.app.board.jobs.chosen == newest
        newer = await world.add()
        await screen.until(lambda: screen.app.board.jobs.chosen == newer)


async def test_pools_and_all_troubles_are_seen_in_their_view(world: World) -> None:
    await world.add(pool="research")
    dead = await world.dead()
    troubles = (Trouble(START, "first"), Trouble(START + timedelta(1), "second", None, dead))
    await write_down(world.store, a_farm(FARM, a_worker(1), troubles=troubles))
    async with viewed(world) as screen:
        await screen.press("t", "t")
        await screen.sees("research", "open", "first", f"second (job {dead})")
        await screen.press("tab", "enter")
        await screen.sees(f"job {dead}", "● failed, dead")


async def test_five_hundred_jobs_are_reached_page_by_page(world: World) -> None:
    ids = [await world.add() for _ in range(500)]
    async with viewed(world) as screen:
        await screen.press("t")
        await screen.sees("100 or more", ids[-1])
        for seen in (100, 200, 300, 400):
            await screen.press("end")
            await screen.until(partial(lambda seen: len(screen.app.model.jobs) > seen, seen))
        await screen.press("end")
        await screen.sees(ids[0])
        assert screen.app.board.jobs.chosen == ids[0]


@pytest.mark.parametrize(
    "size", [(80, 24), (5, 3), pytest.param((200, 60), marks=pytest.mark.full)]
)
async def test_every_view_fits_its_terminal_and_others_after_a_resize(
    world: World, size: tuple[int, int]
) -> None:
    id = await world.dead("agents.fetch" * 5)
    await write_down(world.store, a_farm(FARM, a_worker(1), troubles=(Trouble(START, "x" * 300),)))
    async with viewed(world, size) as screen:
        for _ in range(2):
            for key in ("t", "enter", "escape", "t", "question_mark", "escape", "t"):
                await screen.press(key)
                await screen.pilot.pause()
                assert max(map(len, screen.text.splitlines())) <= screen.app.size.width
            await screen.pilot.resize_terminal(80, 24)
        await screen.press("t")
        await screen.sees("failed, dead", id[-3:], "ValueError: no", "t view  / search")


# Text of jobs


async def test_an_opened_job_shows_its_events_while_it_runs(world: World) -> None:
    id = await world.add("agents.fetch")
    (claim,) = await world.claim(1)
    await write_down(
        world.store, a_farm(FARM, a_worker(1, jobs=(RunningJob(id, "a", "chat", START),)))
    )
    await tell(world, id, ("chunk", "hello"), ("progress", {"message": "reading", "page": 3}))
    async with viewed(world) as screen:
        await screen.press("t")
        await screen.sees(id)
        await screen.press("enter")
        await screen.sees(f"job {id}", "● running", f"worker        {FARM}.1")
        await screen.sees("attempts      1 · waited 0.0 s")
        await screen.sees("chunk     hello", "progress  reading page=3")
        await tell(world, id, ("log", {"stream": "stdout", "text": "printed"}))
        await screen.sees("log       stdout: printed")
        fault = Fault("ValueError", "no bees", "Traceback:\n  a line of it")
        await world.end(claim, Status.FAILED, error=fault)
        await screen.sees("failed, dead", "error         ValueError: no bees", "a line of it")
        await screen.sees("state     failed")
        await screen.press("escape")
        await screen.sees("jobs: all")


async def test_a_waiting_job_is_shown_with_the_reason(world: World) -> None:
    id = await world.add()
    async with viewed(world) as screen:
        await screen.press("t")
        await screen.sees(id)
        await screen.press("enter")
        await screen.sees("why it waits  no worker is connected to this store")
        await screen.sees("nothing yet: what the job prints, logs and emits is shown here")


async def test_job_text_is_shown_without_markup_or_control_sequences(
    world: World,
) -> None:
    fault = Fault(HOSTILE, HOSTILE, f"{HOSTILE}\n{HOSTILE}")
    id = await world.add(HOSTILE, pool="[bold]p", key=HOSTILE)
    (claim,) = await world.claim(1)
    job = RunningJob(id, HOSTILE, "[bold]p", START, HOSTILE)
    worker = a_worker(1, jobs=(job,))
    farm = a_farm(FARM, worker, app=HOSTILE, troubles=(Trouble(START, HOSTILE, HOSTILE),))
    await write_down(world.store, farm)
    await tell(world, id, ("chunk", HOSTILE), ("progress", {"message": HOSTILE, HOSTILE: HOSTILE}))
    await tell(world, id, ("log", {"stream": "stdout", "text": HOSTILE}), ("chunk", [HOSTILE]))
    ended = FinishedJob(id, HOSTILE, "p", Status.FAILED, 1, START, 1.0, HOSTILE, fault)
    told = ControlAnswer(True, HOSTILE, Snapshot(FARM, None, (job,), (ended,)))
    async with viewed(world) as screen, farming(world.store, told):

        async def clean() -> None:
            await screen.sees(SPELLED)
            assert screen.text.replace("\n", "").isprintable()

        await clean()
        await screen.press("s")
        await screen.sees("1 running, 1 recently ended")
        await clean()
        await screen.press("escape", "t")
        await screen.sees(id)
        await clean()
        await screen.press("enter")
        await screen.sees(f"chunk     {SPELLED}")
        await clean()
        await world.end(claim, Status.FAILED, error=fault)
        await screen.sees(f"error         {SPELLED}: {SPELLED}", f"    {SPELLED}")
        await screen.press("escape", "t")
        await screen.sees("[bold]p")
        await clean()


# Filters


async def test_jobs_are_searched_while_typing_and_escape_shows_all_again(world: World) -> None:
    fetch, think = await world.add("agents.fetch"), await world.add("agents.think")
    async with viewed(world) as screen:
        await screen.press("slash", *"fetch")
        await screen.sees("search 'fetch' · 1", fetch)
        await screen.sees_no(think)
        await screen.press("enter")
        assert screen.app.board.jobs.chosen == fetch
        await screen.press("escape")
        await screen.sees("jobs: all · all pools · 2", fetch, think)


async def test_keys_are_letters_while_a_search_is_typed(world: World) -> None:
    await world.add("quota")
    async with viewed(world) as screen:
        await screen.press("slash", *"qx+t")
        await screen.sees("search 'qx+t' · 0")
        assert screen.app.is_running


async def test_jobs_are_chosen_by_state_and_by_pool(world: World) -> None:
    waiting, dead = await world.add(), await world.dead(pool="research")
    async with viewed(world) as screen:
        await screen.press("f")
        await screen.sees("jobs: waiting · all pools · 1", waiting)
        await screen.press("f")
        await screen.sees("jobs: running · all pools · 0")
        await screen.press("escape", "o", "o")
        await screen.sees("jobs: all · pool research · 1", dead)
        await screen.press("t", "enter")
        await screen.sees("jobs: all · pool chat · 1", waiting)


# Actions


async def test_a_dead_job_is_rerun_and_the_status_line_reports_it(world: World) -> None:
    id = await world.dead()
    async with viewed(world) as screen:
        await screen.press("t")
        await screen.sees(id)
        await screen.press("r")
        await screen.sees(f"{id}: it runs again as")
    assert len(await world.operator.jobs(Filter(statuses=(Status.QUEUED,)))) == 1
    (line,) = await world.operator.last_audit(kind=RERUN)
    assert (line.job, line.by) == (id, "anna")


async def test_a_job_is_cancelled_from_the_table_and_from_its_page(world: World) -> None:
    first, second = await world.add(), await world.add()
    async with viewed(world) as screen:
        await screen.press("t")
        await screen.sees(second)
        await screen.press("c")
        await screen.sees(f"{second}: it is cancelled", "cancelled  ")
        await screen.press("down", "enter")
        await screen.sees(f"job {first}", "● queued")
        await screen.press("c")
        await screen.sees("● cancelled", f"{first}: it is cancelled")
        await screen.press("c")
        await screen.sees(f"{first}: it had already ended")


async def test_a_pool_is_paused_and_resumed_from_each_view(world: World) -> None:
    id = await world.add()
    async with viewed(world) as screen:
        await screen.press("t")
        await screen.sees(id)
        await screen.press("p")
        await screen.sees("pool 'chat' is paused")
        assert (await world.pool("chat")).paused
        await screen.press("t")
        await screen.sees("PAUSED")
        await screen.press("p")
        await screen.sees("pool 'chat': jobs start again", "open")
        await screen.press("t", "t", "enter")
        await screen.sees(f"job {id}")
        await screen.press("p")
        await screen.until(lambda: "pool 'chat' is paused" in screen.text)


@pytest.mark.parametrize(
    ("key", "bounds"),
    [
        ("plus", (2, None)),
        ("minus", (0, None)),
        ("right_square_bracket", (None, 11)),
        ("left_square_bracket", (None, 9)),
    ],
)
async def test_bounds_of_the_farm_move_by_one(
    world: World, key: str, bounds: tuple[int | None, int | None]
) -> None:
    await write_down(world.store, a_farm(FARM, a_worker(1)))
    async with (
        viewed(world) as screen,
        farming(world.store, ControlAnswer(True, "as you like")) as wishes,
    ):
        await screen.sees(f"{FARM}.1")
        await screen.press(key)
        await screen.sees(f"{FARM}: as you like")
    (wish,) = wishes
    assert (wish.kind, wish.by) == (ControlKind.BOUNDS, "anna")
    assert (wish.minimum, wish.maximum) == bounds


async def test_key_presses_faster_than_answers_add_up(world: World) -> None:
    await write_down(world.store, a_farm(FARM))
    async with viewed(world) as screen:
        await screen.sees(f"farm {FARM}")
        await screen.press("plus", "plus", "plus")
        async with farming(world.store, ControlAnswer(True, "as you like")) as wishes:
            await screen.until(lambda: len(wishes) == 3)
            await screen.sees("as you like")
    assert sorted(wish.minimum or 0 for wish in wishes) == [2, 3, 4]


async def test_an_answer_that_arrives_while_another_page_is_open_is_shown(world: World) -> None:
    await write_down(world.store, a_farm(FARM))
    async with viewed(world) as screen:
        await screen.sees(f"farm {FARM}")
        await screen.press("plus", "question_mark")
        await screen.sees("next view")
        async with farming(world.store, ControlAnswer(True, "as you like")):
            await screen.sees(f"{FARM}: as you like")
        await screen.press("escape")
        await screen.sees_no("next view")


async def test_with_several_farms_keys_act_on_the_selected_one(world: World) -> None:
    other = replace(a_worker(1), id="elm-000001.1")
    await write_down(world.store, a_farm(FARM, a_worker(1)), a_farm("elm-000001", other))
    async with viewed(world) as screen, farming(world.store, farm="elm-000001") as wishes:
        await screen.sees("2 farms on 1 host", "2 running", "elm-000001.1")
        await screen.press("down", "down", "down", "plus")
        await screen.sees("elm-000001: it is done")
    assert len(wishes) == 1


async def test_a_refused_or_invalid_control_request_is_reported_and_the_view_continues(
    world: World,
) -> None:
    await write_down(world.store, a_farm(FARM, minimum=0, maximum=1))
    async with viewed(world) as screen, farming(world.store, ControlAnswer(False, "not now")):
        await screen.sees(f"farm {FARM}")
        await screen.press("minus")
        await screen.sees("is not allowed", "minimum must be an int from 0")
        await screen.press("plus")
        await screen.sees(f"{FARM}: not now")


async def test_a_snapshot_of_the_selected_worker_is_shown_whole(world: World) -> None:
    worker = f"{FARM}.1"
    await write_down(world.store, a_farm(FARM, a_worker(1)))
    ended = FinishedJob("j-0", "fetch", "web", Status.COMPLETED, 1, START, 1.5, worker)
    shot = Snapshot(FARM, worker, (RunningJob("j-1", "think", "web", START),), (ended,))
    async with (
        viewed(world) as screen,
        farming(world.store, ControlAnswer(True, "", shot)) as wishes,
    ):
        await screen.sees(worker)
        await screen.press("down", "s")
        await screen.sees(
            f"worker {worker}: 1 running, 1 recently ended", "j-1  think", "j-0  fetch"
        )
        await screen.press("escape")
        await screen.sees_no("j-0  fetch")
    assert [(wish.kind, wish.worker) for wish in wishes] == [(ControlKind.SNAPSHOT, worker)]


async def test_a_farm_is_drained_only_after_a_yes(world: World) -> None:
    await write_down(world.store, a_farm(FARM, a_worker(1)))
    async with viewed(world) as screen, farming(world.store) as wishes:
        await screen.sees(f"{FARM}.1")
        for no in ("n", "escape", "enter"):
            await screen.press("x")
            await screen.sees(f"Drain farm {FARM}")
            await screen.press(no)
            await screen.sees_no("Drain farm")
        assert wishes == []
        await screen.press("x")
        await screen.sees(f"Drain farm {FARM}")
        await screen.press("y")
        await screen.sees(f"{FARM}: it is done")
    assert [(wish.kind, wish.worker) for wish in wishes] == [(ControlKind.DRAIN, None)]


async def test_help_names_every_key(world: World) -> None:
    async with viewed(world, (80, 24)) as screen:
        await screen.press("question_mark")
        await screen.sees("+ -", "] [", *(f"{key}    " for key in "tsx/forcpq"))
        await screen.press("question_mark")
        await screen.sees_no("next view")


# Ending


async def ended(screen: Screen) -> None:
    await screen.until(lambda: not screen.app.is_running)


async def test_quitting_a_remote_view_ends_only_the_view(world: World) -> None:
    await write_down(world.store, a_farm(FARM))
    async with viewed(world) as screen, farming(world.store) as wishes:
        await screen.sees(f"farm {FARM}")
        await screen.press("q")
        await ended(screen)
    assert wishes == []


@pytest.mark.parametrize("key", ["q", "ctrl+c", pytest.param("ctrl+q", marks=pytest.mark.full)])
async def test_quitting_over_a_farm_of_this_terminal_stops_it_and_shows_its_end(
    world: World, key: str
) -> None:
    farm, quits = a_farm(FARM, a_worker(1)), list[bool]()
    await write_down(world.store, farm, a_farm("elm-000001"))
    async with viewed(world, farm_id=FARM, on_quit=quits.append) as screen:
        await screen.sees(f"farm {FARM}", "● running")
        assert "elm-000001" not in screen.text
        await screen.press(key)
        await screen.sees("q again stops it at once")
        assert quits == [False]
        await write_down(world.store, replace(farm, state=FarmState.STOPPING))
        await screen.sees("STOPPING: 3 still run in 1 worker")
        await screen.press(key)
        await screen.sees("the farm stops at once")
        assert quits == [False, True]
        assert screen.app.is_running
        await world.store.put([Put(f"{FARMS}{FARM}", None)])
        await ended(screen)


async def test_a_third_quit_ends_the_view_though_the_farm_does_not(world: World) -> None:
    await write_down(world.store, a_farm(FARM))
    quits = list[bool]()
    async with viewed(world, farm_id=FARM, on_quit=quits.append) as screen:
        await screen.sees(f"farm {FARM}")
        await screen.press("q", "q", "q")
        await ended(screen)
    assert quits == [False, True]


async def test_a_record_that_is_only_late_does_not_end_the_view(world: World) -> None:
    async with viewed(world, farm_id=FARM, on_quit=lambda _: None) as screen:
        await screen.sees(f"farm {FARM} has not reported yet")
        await write_down(world.store, a_farm(FARM))
        await screen.sees("● running")
        await world.store.put([Put(f"{FARMS}{FARM}", None)])
        await screen.sees("no farm is running")
        await write_down(world.store, a_farm(FARM))
        await screen.sees("● running")
        await world.store.put([Put(f"{FARMS}{FARM}", None)])
        await screen.sees("no farm is running")
        assert isinstance(world.runtime, Clock)
        world.runtime.seconds += 16.0
        await ended(screen)


# Problems


async def test_an_unavailable_store_is_reported_and_reconnected(
    own_postgres: PostgresServer,
) -> None:
    clock = Clock()
    store = PostgresStore(own_postgres.database(), clock)
    async with made(store, clock) as world:
        await write_down(store, a_farm(FARM, a_worker(1)))
        id = await world.add()
        async with viewed(world) as screen:
            await screen.press("t")
            await screen.sees(id)
            await asyncio.to_thread(own_postgres.stop)
            await screen.sees("STORE DOWN, retrying", id)
            await screen.press("c")
            await screen.sees("[PH-STO-001]")
            await screen.press("enter")
            await screen.sees("the store does not answer, retrying")
            await asyncio.to_thread(own_postgres.start)
            await screen.sees_no("the store does not answer")
            await screen.sees(f"job {id}", "● queued")
            await screen.press("escape")
            await screen.sees_no("STORE DOWN")
            newest = await world.add()
            await screen.sees(newest)
