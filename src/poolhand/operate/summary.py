"""Farms in a few lines: names, states, load, throughput and problems.

Each line consists of parts, a text and its style each: the live view shows them styled,
`poolhand top --inline` as plain text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime

from poolhand.farm.records import FarmRecord, FarmState
from poolhand.operate.farms import silence_text
from poolhand.operate.format import FARM_STYLES, age, bars, jobs_wait, lasting, many, short_duration
from poolhand.operate.tables import no_sign, slots_of
from poolhand.operate.views import PoolView
from poolhand.rules.job import Status
from poolhand.rules.plain import safe
from poolhand.rules.scaling.worker_count import held_text

NO_FARM = "no farm is running; start one with `poolhand work module:app`"
MOST_BARS = 60
LEAST_BARS = 8
SPAN = 120.0
RATE_SPAN = 10.0
RECENT_TROUBLE = 600.0  # seconds during which the last trouble is shown in red
Counts = Mapping[Status, int]
Part = tuple[str, str]


class Throughput:
    """Computes rates from the number of attempts that each farm has ended so far.

    Times are seconds of a monotonic clock.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._counts: dict[str, int] = {}
        self._growth: deque[tuple[float, int]] = deque()

    def note(self, at: float, counts: Mapping[str, int]) -> None:
        """Record the farms' counts; what a new farm did before its first record is ignored."""
        grown = sum(max(0, n - self._counts.get(farm, n)) for farm, n in counts.items())
        self._counts = dict(counts)
        self._growth.append((at, grown))
        while self._growth and self._growth[0][0] <= at - SPAN:
            self._growth.popleft()

    def rate(self, at: float) -> float:
        """Return the recent number of jobs per second."""
        since = min(RATE_SPAN, at - self._began)
        if since <= 0:
            return 0.0
        return sum(grown for when, grown in self._growth if when > at - since) / since

    def history(self, at: float, parts: int) -> list[float]:
        """Return how many jobs ended in each part of the last two minutes, oldest first."""
        found = [0.0] * parts
        for when, grown in self._growth:
            ago = (at - when) / SPAN
            if 0 <= ago < 1:
                found[parts - 1 - int(ago * parts)] += grown
        return found


def plain(line: Sequence[Part]) -> str:
    """Return a line without its styles."""
    return "".join(text for text, _ in line)


def who(farms: Sequence[FarmRecord]) -> list[Part]:
    """Return the name of the farm, or the number of farms and hosts."""
    if not farms:
        return [("no farm", "bold yellow")]
    if len(farms) > 1:
        hosts = many(len({farm.host for farm in farms}), "host")
        return [(f"{len(farms)} farms", "bold"), (f" on {hosts}", "")]
    (farm,) = farms
    mode = ", only reports how many workers are wanted" if farm.external else ""
    return [("farm ", ""), (safe(farm.id), "bold"), (f" · {safe(farm.app)}{mode}", "")]


def state(farms: Sequence[FarmRecord], now: datetime) -> list[Part]:
    """Return the states of these farms."""
    if len(farms) > 1:
        states = [farm.state for farm in farms if not farm.is_silent]
        counts = [(one, states.count(one)) for one in FarmState]
        found = [[(f"{count} {one}", FARM_STYLES[one])] for one, count in counts if count]
        silent = len(farms) - len(states)
        found += [[(f"{silent} without a sign", "bold red")]] if silent else []
        return _separated(found, ", ")
    if not farms:
        return []
    (farm,) = farms
    if farm.is_silent:
        return [(f"● {no_sign(farm)}", "bold red")]
    up = lasting((now - farm.started_at).total_seconds())
    return [(f"● {_state(farm)}", FARM_STYLES[farm.state]), (f" · up {up}", "")]


def _state(farm: FarmRecord) -> str:
    if farm.state is not FarmState.STOPPING:
        return str(farm.state)
    active = sum(worker.active for worker in farm.workers)
    return f"STOPPING: {active} still run in {many(len(farm.workers), 'worker')}"


def load(farms: Sequence[FarmRecord], counts: Counts) -> list[Part]:
    """Return how many jobs wait and run, and the number of workers."""
    waiting, running = _waiting(farms, counts), _running(farms, counts)
    parts = [
        [("waiting ", ""), (f"{waiting:,}", "bold cyan" if waiting else "bold")],
        [("running ", ""), (f"{running:,}", "bold green" if running else "bold"), *_slots(farms)],
    ]
    if farms:
        parts.append(_workers(farms))
    later = counts.get(Status.SCHEDULED, 0)
    if later:
        parts.append([("scheduled ", ""), (f"{later:,}", "bold blue")])
    return _separated(parts)


def _waiting(farms: Sequence[FarmRecord], counts: Counts) -> int:
    # A farm counts the jobs of its own pools. Farms may share pools, so do not add their counts.
    if len(farms) == 1:
        return farms[0].queued
    return counts.get(Status.QUEUED, 0) + counts.get(Status.BLOCKED, 0)


def _running(farms: Sequence[FarmRecord], counts: Counts) -> int:
    if not farms:
        return counts.get(Status.RUNNING, 0)
    return sum(worker.active for farm in farms for worker in farm.workers)


def _slots(farms: Sequence[FarmRecord]) -> list[Part]:
    if not farms:
        return []
    return [(f" of {sum(map(slots_of, farms)):,} slots", "")]


def _workers(farms: Sequence[FarmRecord]) -> list[Part]:
    workers = [worker for farm in farms for worker in farm.workers]
    leaving = sum(worker.leaving_at is not None for worker in workers)
    wanted, least, most = (
        sum(getattr(farm, name) for farm in farms) for name in ("wanted", "minimum", "maximum")
    )
    staying = len(workers) - leaving
    going = f", {leaving} leaving" if leaving else ""
    missing = f", {wanted} wanted" if wanted != staying else ""
    noun = "worker" if staying == 1 else "workers"
    return [(f"{staying}", "bold"), (f" {noun}{missing}{going} (min {least}, max {most})", "")]


def speed(
    farms: Sequence[FarmRecord], counts: Counts, throughput: Throughput, at: float, width: int
) -> list[Part]:
    """Return the throughput, the jobs done and failed, and the last two minutes as bars."""
    rate = [(f"{throughput.rate(at):,.1f}", "bold"), (" jobs/s", "")]
    line = _separated([rate, *done(farms, counts)])
    room = min(MOST_BARS, width - len(plain(line)) - 4)
    if room < LEAST_BARS:
        return line
    return [*line, ("  ", ""), (bars(throughput.history(at, room)), "green")]


def done(farms: Sequence[FarmRecord], counts: Counts) -> list[list[Part]]:
    """Return ended jobs and attempts: a retried job counts as failed only after its last."""
    completed, failed = counts.get(Status.COMPLETED, 0), counts.get(Status.FAILED, 0)
    found = [
        [(f"jobs {completed:,} done, ", ""), (f"{failed:,} failed", "bold red" if failed else "")]
    ]
    if farms:
        tried = sum(farm.completed + farm.failed for farm in farms)
        lost = sum(farm.failed for farm in farms)
        found.append(
            [(f"attempts {tried:,}, ", ""), (f"{lost:,} failed", "yellow" if lost else "")]
        )
    return found


def held(farms: Sequence[FarmRecord]) -> list[Part]:
    """Return why wanted workers are not started yet."""
    for farm in farms:
        if farm.held:
            leaving = sum(worker.leaving_at is not None for worker in farm.workers)
            text = held_text(farm.maximum, farm.surge, farm.held, leaving)
            return [(f"{safe(farm.id)}: {text}", "yellow")]
    return []


def silent(farms: Sequence[FarmRecord]) -> list[Part]:
    """Return the alert for the first farm whose supervisor is silent."""
    for farm in farms:
        if farm.is_silent:
            return [(f"{safe(farm.id)}: {safe(silence_text(farm))}", "bold red")]
    return []


def limits(farms: Sequence[FarmRecord], pools: Sequence[PoolView]) -> str:
    """Return which pools keep jobs waiting while workers have free slots: paused or at the cap."""
    paused = [pool for pool in pools if pool.queued and pool.paused]
    full = [pool for pool in pools if pool.queued and not pool.paused and _is_full(pool)]
    running = sum(worker.active for farm in farms for worker in farm.workers)
    if running >= sum(map(slots_of, farms)):
        full = []
    found = [f"{safe(pool.name)} is paused" for pool in paused]
    found += [f"{safe(pool.name)} runs {pool.running} of at most {pool.slots}" for pool in full]
    if not found:
        return ""
    waits = sum(pool.queued for pool in [*paused, *full])
    return f"{jobs_wait(waits)} for pools, not for workers: {', '.join(found)}"


def _is_full(pool: PoolView) -> bool:
    return pool.slots is not None and pool.running >= pool.slots


def picture(farms: Sequence[FarmRecord], counts: Counts, now: datetime) -> list[str]:
    """Return the whole summary as plain lines."""
    title = [*who(farms), ("  ", ""), *state(farms, now)]
    parts = [title, load(farms, counts), _separated(done(farms, counts))]
    parts += [silent(farms), held(farms)]
    return [*(plain(line) for line in parts if line), trouble(farms, now)]


def trouble(farms: Sequence[FarmRecord], now: datetime) -> str:
    """Return the newest trouble, and how many came before it."""
    found = [one for farm in farms for one in farm.troubles]
    if not found:
        return "no trouble"
    newest = max(found, key=lambda one: one.at)
    where = f" (worker {safe(newest.worker)})" if newest.worker else ""
    ago = short_duration((now - newest.at).total_seconds())
    text = f"TROUBLE {newest.at:%H:%M:%S} ({ago} ago) {safe(newest.text)}{where}"
    return text if len(found) == 1 else f"{text}; {len(found) - 1} before it"


def troubles(farms: Sequence[FarmRecord], now: datetime) -> list[Part]:
    """Return how many troubles the farms report, and how long ago the last one was."""
    found = [one.at for farm in farms for one in farm.troubles]
    if not found:
        return [("no trouble", "dim")]
    is_recent = (now - max(found)).total_seconds() < RECENT_TROUBLE
    text = f"{many(len(found), 'trouble')}, last {age(max(found), now)} ago"
    return [(text, "bold red" if is_recent else "")]


def _separated(parts: Sequence[Sequence[Part]], between: str = " · ") -> list[Part]:
    """Return groups of parts as one line."""
    line: list[Part] = []
    for number, part in enumerate(parts):
        line += [(between, ""), *part] if number else part
    return line
