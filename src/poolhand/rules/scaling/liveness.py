"""Liveness: when a worker counts as hung, and how long to back off before restarting a dead one."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from poolhand.rules.scaling.farm_settings import FarmSettings

SILENT_INTERVALS = 7
KILL_INTERVALS = 2
REPORT_WITHIN = 15.0  # seconds from the start of a process to its first message
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
MANY_DEATHS = 20  # deaths of ready workers within DEATHS_SECONDS; more restarts wait MANY_PAUSE
DEATHS_SECONDS = 60.0
MANY_PAUSE = 5.0


class Verdict(StrEnum):
    """What the supervisor does about a worker."""

    FINE = "fine"
    TERMINATE = "terminate"
    KILL = "kill"


class LivenessFacts(Struct, frozen=True):
    """The times of a worker: its start, its last message, and when it was asked to end as hung.

    `blocked` is for how long its event loop, or its store thread's loop, has been blocked,
    according to the worker itself.
    """

    started_at: float
    heard_at: float | None
    told_at: float | None
    blocked: float


def judge(sight: LivenessFacts, settings: FarmSettings, now: float) -> tuple[Verdict, str]:
    """Return whether a worker is hung, and why."""
    interval = settings.heartbeat_interval_s
    if sight.told_at is not None:
        late = now - sight.told_at >= KILL_INTERVALS * interval
        return (Verdict.KILL, "it did not end") if late else (Verdict.FINE, "")
    if sight.heard_at is None:
        if now - sight.started_at >= max(REPORT_WITHIN, SILENT_INTERVALS * interval):
            return Verdict.TERMINATE, "it did not report after its start"
    elif now - sight.heard_at >= SILENT_INTERVALS * interval:
        return Verdict.TERMINATE, f"silent for {now - sight.heard_at:.1f} s"
    if sight.blocked >= settings.loop_blocked_limit_s:
        return Verdict.TERMINATE, f"its event loop has not turned for {sight.blocked:.0f} s"
    return Verdict.FINE, ""


def is_silent(heard_at: float, settings: FarmSettings, now: float) -> bool:
    """Return whether a supervisor has been silent for so long that its workers exit."""
    return now - heard_at >= SILENT_INTERVALS * settings.heartbeat_interval_s


class Deaths(Struct, frozen=True):
    """Unexpected deaths of workers: consecutive ones before they were ready, and their times."""

    unready: int = 0
    moments: tuple[float, ...] = ()
    last_at: float = 0.0


def died(deaths: Deaths, was_ready: bool, now: float) -> Deaths:
    """Return the deaths with one more."""
    recent = tuple(at for at in deaths.moments if now - at < DEATHS_SECONDS)
    if was_ready:
        return Deaths(deaths.unready, (*recent, now)[-MANY_DEATHS:], now)
    if deaths.unready and now < may_start_at(deaths):
        # It started together with the previous one and died of the same cause.
        return deaths
    return Deaths(deaths.unready + 1, recent, now)


def came_up(deaths: Deaths) -> Deaths:
    """Return the deaths after a worker became ready, which resets the backoff."""
    return Deaths(0, deaths.moments, deaths.last_at)


def may_start_at(deaths: Deaths) -> float:
    """Return the earliest time at which the next worker may be started."""
    if deaths.unready:
        # The exponent is capped, because an unbounded one would overflow.
        doubled = FIRST_PAUSE * 2.0 ** min(deaths.unready - 1, 20)
        return deaths.last_at + min(LONGEST_PAUSE, doubled)
    if len(deaths.moments) >= MANY_DEATHS:
        return deaths.last_at + MANY_PAUSE
    return 0.0
