"""Rows of the server of a store: stopped, killed, paused, full or not started, under load."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from random import Random
from threading import Event
from typing import Any

from tests.faults import outside
from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import Crew, Life, begin, pass_time, until
from tests.faults.ground import Ground
from tests.faults.history import History
from tests.faults.load import LANES, Item, Plan, standard
from tests.faults.outside import Line
from tests.faults.row_kills import SLOTS
from tests.faults.row_stop import LATER, REFUSED_SECONDS, is_refusal
from tests.faults.rows import Play, Settings

LONGEST_OUTAGE = 4.0
PAUSED = 15.0
READY_SECONDS = 5.0
READY_LIMIT = 20.0
LONG = 6.0
TAKEN_SECONDS = 5.0
ALL = list(range(LANES))
END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name <> 'taken'"
    " AND backend_type = 'client backend'"
)


def outages(how: str) -> Play:
    """Return the row in which the server ends in this way, several times, under the usual load."""

    def play(ground: Ground, settings: Settings) -> Verdict:
        random = Random(f"{how} {settings.seed}")
        count = max(2, settings.kills // 20)
        plan = standard(settings.seed, settings.jobs, settings.longest)
        pause = settings.pace * 4.0 * count * LANES / settings.jobs
        with begin(ground, plan) as crew:
            progress = Progress(ground.folder, plan)
            crew.start("door", lanes=ALL, pause=pause, slots=0)
            lives = [crew.start(f"worker-{number}", slots=SLOTS) for number in range(2)]
            for number in range(count):
                progress.until_at((number + random.random()) / (count + 1), lives[0])
                end(ground, how)
                crew.blows.write("server", how=how)
                Event().wait(random.uniform(0.0, settings.pace * LONGEST_OUTAGE))
                ground.server.start()
                crew.blows.write("server up")
                settings.say(f"{how} {number + 1} of {count} at {progress.look():.0%}")
            crew.finish()
        return judged(ground, {"outages": count})

    return play


def end(ground: Ground, how: str) -> None:
    """Take the server away."""
    match how:
        case "kill":
            ground.server.kill()
        case "pause":
            ground.server.pause()
        case "fast" | "immediate":
            ground.server.stop(how)
        case _:
            raise ValueError(how)


def judged(ground: Ground, besides: dict[str, float], may_crash: bool = False) -> Verdict:
    """Check what holds if only the store was unavailable: refused in time, and no lease lost."""
    verdict = check(ground.folder)
    history = History(ground.folder)
    refused = [line for line in history.submits if line["what"] == "refused"]
    slowest = max((line["took"] for line in refused), default=0.0)
    if slowest > REFUSED_SECONDS:
        verdict.faults.append(f"late: a submit was refused after {slowest:.1f} s")
    if errors := {line["error"] for line in refused} - {"Unavailable"}:
        verdict.faults.append(f"refused: with {sorted(errors)}")
    verdict.faults += [] if may_crash else lost_leases(history)
    backs = list(back_seconds(history))
    verdict.figures |= {
        **besides,
        "refused": len(refused),
        "refused_s": slowest,
        "back_s": max(backs, default=0.0),
    }
    return verdict


def lost_leases(history: History) -> list[str]:
    """No lease is lost while its process lives and its store is unavailable for a moment."""
    return [
        f"lease: job {job['id']} has crashed {job['crashes']} times, no process was ended"
        for job in history.jobs.values()
        if job["crashes"]
    ]


def back_seconds(history: History) -> Iterator[float]:
    """Yield how long after each return of the server a job was accepted or begun."""
    signs = sorted([line["at"] for line in history.acks] + [run.began for run in history.attempts])
    for blow in history.blows:
        if blow["what"] == "server up":
            yield min((at - blow["at"] for at in signs if at > blow["at"]), default=0.0)


def paused(ground: Ground, settings: Settings) -> Verdict:
    """Pause the server for a while, with all connections open."""
    busy = range(2 * SLOTS, 2 * SLOTS + 300)
    plan = Plan(
        tuple(Item(number, "brief", LONG) for number in range(SLOTS))
        + tuple(Item(number, "brief", 0.02) for number in busy)
        + tuple(Item(busy.stop + number, "brief", 0.02, lane=LATER) for number in range(60))
    )
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        for number in range(2):
            crew.start(f"worker-{number}", slots=SLOTS)
        crew.start("steady", lanes=[0], pause=0.02, slots=0)
        door = crew.start("door", lanes=[LATER], pause=0.3, slots=0, persists=False)
        until("jobs run", lambda: progress.look() > 0.1)
        ground.server.pause()
        stopped = time.monotonic()
        crew.blows.write("server", how="pause")
        settings.say(f"the server stands still for {PAUSED:g} s")
        pass_time(stopped, PAUSED)
        ground.server.resume()
        went_on = time.monotonic()
        crew.blows.write("server up")
        crew.finish()
    verdict = judged(ground, {})
    lines = History(ground.folder).submits
    if not any(is_refusal(line, door) and stopped < line["at"] < went_on for line in lines):
        verdict.faults.append("missed: nothing was refused while the server stood still")
    taken = [one for one in lines if one["what"] == "ack" and stopped + 1.0 < one["at"] < went_on]
    if taken:
        verdict.faults.append(f"refused: {taken} was accepted while nothing could be written")
    return verdict


def connections(ground: Ground, settings: Settings) -> Verdict:
    """Take all connections of the server, those of the workers included."""
    plan = Plan(
        tuple(Item(number, "brief", 0.05) for number in range(200))
        + tuple(Item(200 + number, "brief", 0.05, lane=LATER) for number in range(20))
    )
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        crew.start("worker", slots=SLOTS)
        crew.start("door", lanes=[0], pause=0.05, slots=0)
        until("jobs run", lambda: progress.look() > 0.1)
        with all_taken(ground) as taken:
            settings.say(f"{taken} connections are taken")
            crew.blows.write("server", how="full")
            late = crew.start("late", lanes=[LATER], slots=0, patient=True)
            until("it is not ready", lambda: ready(crew, late, False), READY_LIMIT)
            Event().wait(TAKEN_SECONDS)
        crew.blows.write("server up")
        crew.finish()
    verdict = judged(ground, {"taken": taken})
    if not verdict.figures["refused"]:
        verdict.faults.append("missed: nothing was refused while there was no connection")
    return verdict


@contextmanager
def all_taken(ground: Ground) -> Iterator[int]:
    """Hold every connection of the server inside a block."""
    import asyncpg

    held: list[Any] = []
    settings = {"application_name": "taken"}

    async def take() -> None:
        held.append(await asyncpg.connect(ground.url, server_settings=settings))
        refusals = 0
        while refusals < 20:
            try:
                held.append(await asyncpg.connect(ground.url, server_settings=settings))
                refusals = 0
            except asyncpg.TooManyConnectionsError:
                # Connections of others are ended, and the first to reconnect gets them.
                refusals += 1
                await held[0].execute(END_OTHERS)

    async def leave() -> None:
        for one in held:
            await one.close()

    with asyncio.Runner() as runner:
        runner.run(take())
        try:
            yield len(held)
        finally:
            runner.run(leave())


def absent(ground: Ground, settings: Settings, ways: tuple[str, ...] = ("fast",)) -> Verdict:
    """Start without a server, then start and stop it: readiness is reported correctly in time."""
    plan = Plan(tuple(Item(number, "brief", 0.05) for number in range(60)))
    turns: list[tuple[float, bool]] = []
    ground.server.stop("fast")
    with begin(ground, plan) as crew:
        lives = [
            crew.start("worker", slots=SLOTS, patient=True),
            crew.start("door", lanes=[0], pause=0.1, slots=0, patient=True),
        ]

        def told(value: bool) -> None:
            turns.append((time.monotonic(), value))
            for life in lives:
                is_told = partial(ready, crew, life, value)
                until(f"{life.name} says {value}", is_told, READY_LIMIT)

        told(value=False)
        settings.say("two processes wait for their server")
        ground.server.start()
        told(value=True)
        for way in ways:
            end(ground, way)
            told(value=False)
            (ground.server.resume if way == "pause" else ground.server.start)()
            told(value=True)
        crew.finish()
    verdict = judged(ground, {})
    lines = outside.read(ground.folder / outside.TOLD)
    verdict.figures["ready_s"] = max(ready_seconds(lines, turns, [one.name for one in lives]))
    return verdict


def timed_absent(ground: Ground, settings: Settings) -> Verdict:
    """The same for every kind of outage, each reported within five seconds."""
    verdict = absent(ground, settings, ("fast", "immediate", "kill", "pause"))
    if verdict.figures["ready_s"] > READY_SECONDS:
        verdict.faults.append(f"late: ready was wrong for {verdict.figures['ready_s']:.1f} s")
    return verdict


def ready(crew: Crew, life: Life, value: bool) -> bool:
    """Return whether the last report of a process about its readiness is this."""
    lines = outside.read(crew.folder / outside.TOLD)
    said = [one["value"] for one in lines if one["what"] == "ready" and one["life"] == life.name]
    return bool(said) and said[-1] is value


def ready_seconds(
    lines: list[Line], turns: list[tuple[float, bool]], lives: list[str]
) -> Iterator[float]:
    """Yield how long after each change every process reported it correctly."""
    for (at, value), (until_at, _) in pairwise([*turns, (math.inf, True)]):
        for life in lives:
            said = [
                line
                for line in lines
                if line["what"] == "ready" and line["life"] == life and at < line["at"] < until_at
            ]
            wrong = [line["at"] - at for line in said if line["value"] is not value]
            right = [line["at"] - at for line in said if line["value"] is value]
            yield max(min(right, default=math.inf), *wrong, 0.0)
