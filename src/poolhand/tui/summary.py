"""The head of the live view: farms, load and trouble in four lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from poolhand.farm.roster import FarmRecord, FarmState
from poolhand.operate.showing import safe
from poolhand.tui.throughput import Throughput
from poolhand.tui.words import bars, lasting

NO_FARM = "no farm works here: start one with `poolhand work module:app`"
MOST_BARS = 60


def head(
    farms: Sequence[FarmRecord], throughput: Throughput, now: datetime, at: float, width: int
) -> list[str]:
    """Return the lines on farms; `at` is the moment of the throughput's clock."""
    if not farms:
        return [NO_FARM]
    return [who(farms, now), load(farms), speed(farms, throughput, at, width), trouble(farms)]


def who(farms: Sequence[FarmRecord], now: datetime) -> str:
    """Return which farms these are, and how they are."""
    if len(farms) > 1:
        states = [farm.state for farm in farms]
        counts = [(state, states.count(state)) for state in FarmState]
        told = ", ".join(f"{count} {state}" for state, count in counts if count)
        return f"{len(farms)} farms on {_many({farm.host for farm in farms}, 'host')}: {told}"
    (farm,) = farms
    up = lasting((now - farm.started_at).total_seconds())
    mode = ", tells the number of workers only" if farm.external else ""
    return f"farm {safe(farm.id)}  {_state(farm)}{mode}, up {up}  {safe(farm.app)}"


def _state(farm: FarmRecord) -> str:
    if farm.state is not FarmState.STOPPING:
        return str(farm.state)
    active = sum(worker.active for worker in farm.workers)
    return f"STOPPING: {active} still run in {_many(farm.workers, 'worker')}"


def load(farms: Sequence[FarmRecord]) -> str:
    """Return how much there is to do, and who does it."""
    queued, demand, capacity, wanted, least, most = (
        sum(getattr(farm, name) for farm in farms)
        for name in ("queued", "demand", "capacity", "wanted", "minimum", "maximum")
    )
    workers = sum(len(farm.workers) for farm in farms)
    return (
        f"queued {queued:,}  demand {demand:,} of capacity {capacity:,}  "
        f"workers {workers}, wanted {wanted} (min {least}, max {most})"
    )


def speed(farms: Sequence[FarmRecord], throughput: Throughput, at: float, width: int) -> str:
    """Return how much is done."""
    completed = sum(farm.completed for farm in farms)
    failed = sum(farm.failed for farm in farms)
    numbers = f"{throughput.rate(at):,.1f} jobs/s  ok {completed:,}  failed {failed:,}"
    room = min(MOST_BARS, width - len(numbers) - 6)
    if room < 8:
        return numbers
    return f"{numbers}  {bars(throughput.history(at, room))}"


def trouble(farms: Sequence[FarmRecord]) -> str:
    """Return the newest thing that went wrong, and how many there are."""
    found = [one for farm in farms for one in farm.troubles]
    if not found:
        return "no trouble"
    newest = max(found, key=lambda one: one.at)
    where = f" (worker {safe(newest.worker)})" if newest.worker else ""
    text = f"TROUBLE {newest.at:%H:%M:%S} {safe(newest.text)}{where}"
    return text if len(found) == 1 else f"{text}; {len(found) - 1} before it"


def _many(things: Sequence[object] | set[str], noun: str) -> str:
    return f"{len(things)} {noun}" + ("" if len(things) == 1 else "s")
