"""The vigil: which worker processes are hung, and how soon a dead one is followed by another."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from poolhand.rules.scaling.farm_settings import FarmSettings

SILENT_INTERVALS = 7
KILL_INTERVALS = 2
REPORT_WITHIN = 15.0  # seconds from the start of a process to its first word
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
MANY_DEATHS = 20  # of workers that had been ready, within DEATHS_SECONDS: from then on with a pause
DEATHS_SECONDS = 60.0
MANY_PAUSE = 5.0


class Verdict(StrEnum):
    """What is to be done about a worker."""

    FINE = "fine"
    TERMINATE = "terminate"
    KILL = "kill"


class LivenessFacts(Struct, frozen=True):
    """A worker as it is seen: when it began, showed life, and was told that it is hung.

    `blocked` is how long its event loop, or its keeper, has not turned by its own account.
    """

    started_at: float
    heard_at: float | None
    told_at: float | None
    blocked: float


def judge(sight: LivenessFacts, settings: FarmSettings, now: float) -> tuple[Verdict, str]:
    """Say whether a worker is hung, and why."""
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
    """Tell whether a supervisor has shown no life for so long that its workers leave."""
    return now - heard_at >= SILENT_INTERVALS * settings.heartbeat_interval_s


class Deaths(Struct, frozen=True):
    """How workers have died without being told to: in a row before they were ready, and when."""

    unready: int = 0
    moments: tuple[float, ...] = ()
    last_at: float = 0.0


def died(deaths: Deaths, was_ready: bool, now: float) -> Deaths:
    """Note a death."""
    recent = tuple(at for at in deaths.moments if now - at < DEATHS_SECONDS)
    if was_ready:
        return Deaths(deaths.unready, (*recent, now)[-MANY_DEATHS:], now)
    if deaths.unready and now < may_start_at(deaths):
        # Started together with the one before it, and dead of the same.
        return deaths
    return Deaths(deaths.unready + 1, recent, now)


def came_up(deaths: Deaths) -> Deaths:
    """Note that a worker is ready: workers can be."""
    return Deaths(0, deaths.moments, deaths.last_at)


def may_start_at(deaths: Deaths) -> float:
    """Return from when on the next worker may be started."""
    if deaths.unready:
        # As an exponent it would grow beyond all numbers.
        doubled = FIRST_PAUSE * 2.0 ** min(deaths.unready - 1, 20)
        return deaths.last_at + min(LONGEST_PAUSE, doubled)
    if len(deaths.moments) >= MANY_DEATHS:
        return deaths.last_at + MANY_PAUSE
    return 0.0
