"""Rows that stop a process for a minute, as a laptop or a debugger does, and continue it."""

from __future__ import annotations

import time
from threading import Event

from tests.faults.aim import Progress
from tests.faults.checker import Verdict, check
from tests.faults.crew import LIMIT, Life, RunFailed, begin, pass_time, until
from tests.faults.figures import rerun_seconds
from tests.faults.ground import SQLITE, Ground
from tests.faults.history import History
from tests.faults.load import Item, Plan
from tests.faults.outside import Line
from tests.faults.proxy import Proxy
from tests.faults.rows import Settings

STOPPED = 60.0
MOVED_SECONDS = 36.5  # a lease of 30 s last renewed up to 5 s ago, checked once a second
REFUSED_SECONDS = 11.0
ANSWERED_SECONDS = 0.05
SLOTS = 5
LONG = 6.0
OPEN = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
LATER = 1  # the lane that is submitted when the stopped process is back


def stop(ground: Ground, settings: Settings) -> Verdict:
    """Stop a worker that holds no lock: its jobs move, and its late results are refused."""
    plan = Plan(
        tuple(Item(number, "brief", LONG) for number in range(2 * SLOTS))
        + tuple(Item(2 * SLOTS + number, "brief", 0.3, lane=LATER) for number in range(40))
    )
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        one, other = (crew.start(name, slots=SLOTS) for name in ("one", "other"))
        crew.start("door", lanes=[0], slots=0)
        progress.until_runs(SLOTS, one.name, other.name)
        stopped = stop_in(one, wants_lock=False)
        settings.say("stopped; waiting for its jobs to move")
        pass_time(stopped, STOPPED)
        one.go_on()
        crew.start("door", lanes=[LATER], slots=0)
        crew.finish()
    verdict = check(ground.folder)
    history = History(ground.folder)
    moved = rerun_seconds(history)
    late = [run for run in history.attempts if run.ended and run.ended > stopped + STOPPED]
    late = [run for run in late if run.life == one.name and run.began < stopped]
    again = [run for run in history.attempts if run.life == one.name and run.began > stopped]
    if len(moved) != SLOTS or max(moved) > MOVED_SECONDS:
        verdict.faults.append(f"late: {len(moved)} of {SLOTS} jobs moved, after {moved} s")
    if not late or not again:
        verdict.faults.append(f"missed: {len(late)} late results, {len(again)} jobs afterwards")
    verdict.figures |= {"moved_s": max(moved, default=0.0), "late_results": len(late)}
    return verdict


def stop_locked(ground: Ground, settings: Settings) -> Verdict:
    """Stop a process that holds the lock of the file: others are refused until it continues."""
    busy = range(SLOTS + 1, 1200)
    plan = Plan(
        # More than one worker has slots for, so that both hold leases of long jobs.
        tuple(Item(number, "brief", LONG) for number in range(SLOTS + 1))
        + tuple(Item(number, "brief", 0.02) for number in busy)
        + tuple(Item(busy.stop + number, "brief", 0.02, lane=LATER) for number in range(120))
    )
    with begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        one = crew.start("one", lanes=[0], pause=0.02, slots=SLOTS)
        other = crew.start("other", lanes=[LATER], pause=0.5, slots=SLOTS, persists=False)
        progress.until_runs(1, one.name, other.name)
        stopped = stop_in(one, wants_lock=True)
        settings.say("stopped inside a write; others are refused")
        pass_time(stopped, STOPPED)
        one.go_on()
        went_on = time.monotonic()
        crew.finish()
    verdict = check(ground.folder)
    history = History(ground.folder)
    # Not those of the stopped process itself, which cannot report meanwhile.
    refused = [line for line in history.submits if is_refusal(line, other)]
    slowest = max((line["took"] for line in refused), default=0.0)
    if not refused or slowest > REFUSED_SECONDS:
        verdict.faults.append(f"late: {len(refused)} refusals, the slowest took {slowest:.1f} s")
    errors = {line["error"] for line in refused}
    if errors - {"Unavailable"}:
        verdict.faults.append(f"refused: with {sorted(errors)}")
    if taken := [line for line in history.acks if stopped + 1.0 < line["at"] < went_on]:
        verdict.faults.append(f"refused: {taken} was accepted while nothing could be written")
    verdict.figures |= {"refused": len(refused), "refused_s": slowest}
    return verdict


def stop_writing(ground: Ground, settings: Settings) -> Verdict:
    """Stop a worker inside a transaction: it blocks no other process, and its jobs move."""
    busy = range(2 * SLOTS, 2 * SLOTS + 600)
    plan = Plan(
        tuple(Item(number, "brief", LONG) for number in range(2 * SLOTS))
        + tuple(Item(number, "brief", 0.02) for number in busy)
    )
    proxy = Proxy("127.0.0.1", ground.server.port, settings.seed, watches=True)
    with proxy, begin(ground, plan) as crew:
        progress = Progress(ground.folder, plan)
        one = crew.start("one", proxy.through(ground.url), slots=2 * SLOTS)
        other = crew.start("other", slots=2 * SLOTS)
        door = crew.start("door", lanes=[0], pause=0.1, slots=0)
        progress.until_runs(1, one.name, other.name)
        stopped = stop_inside(one, proxy)
        settings.say("stopped inside a transaction; waiting for its jobs to move")
        pass_time(stopped, STOPPED)
        one.go_on()
        crew.finish()
    verdict = check(ground.folder)
    history = History(ground.folder)
    moved = rerun_seconds(history)
    refused = [line for line in history.submits if is_refusal(line, door)]
    slowest = max((line["took"] for line in refused), default=0.0)
    if not moved or max(moved) > MOVED_SECONDS:
        verdict.faults.append(f"late: {len(moved)} jobs moved, after {moved} s")
    if slowest > REFUSED_SECONDS:
        verdict.faults.append(f"late: a submit was refused after {slowest:.1f} s")
    meanwhile = [line for line in history.acks if stopped < line["at"] < stopped + STOPPED]
    if not meanwhile:
        verdict.faults.append("held up: nothing was accepted while a worker stood still")
    verdict.figures |= {"moved_s": max(moved, default=0.0), "refused": len(refused)}
    verdict.figures |= {"refused_s": slowest, "meanwhile": len(meanwhile)}
    return verdict


def stop_inside(life: Life, proxy: Proxy) -> float:
    """Stop a process while the server waits for the rest of its transaction; return when."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        until("it writes", lambda: {"add", "claim", "settle"} & life.marks.now(), pause=0.0001)
        life.hold()
        # Its earlier requests must be answered before the state of the server is clear.
        Event().wait(ANSWERED_SECONDS)
        if proxy.idle_in_transaction:
            life.stop()
            return time.monotonic()
        life.let_go()
    raise RunFailed(f"{life.name} was never found inside a transaction")


def stop_between(life: Life, ground: Ground) -> float:
    """Stop a process that holds no lock and is in no transaction; return when."""
    if ground.store == SQLITE:
        return stop_in(life, wants_lock=False)
    while True:
        life.hold()
        Event().wait(ANSWERED_SECONDS)
        if ground.server.query(OPEN) == "0":
            life.stop()
            return time.monotonic()
        life.let_go()


def is_refusal(line: Line, life: Life) -> bool:
    """Return whether a line says that a submit of this process was refused."""
    return line["what"] == "refused" and str(line["mark"]).startswith(f"{life.name}/")


def stop_in(life: Life, wants_lock: bool) -> float:
    """Stop a process while it holds the lock of the file, or while it does not; return when."""
    while True:
        if wants_lock:
            until("it holds the lock", lambda: "lock" in life.marks.now(), pause=0.0001)
        if ("lock" in life.hold()) is wants_lock:
            life.stop()
            return time.monotonic()
        life.let_go()
