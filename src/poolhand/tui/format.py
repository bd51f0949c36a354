"""Formats of durations, sizes and bars."""

from __future__ import annotations

from collections.abc import Sequence

NOTHING = "-"
BARS = "▁▂▃▄▅▆▇█"
MINUTE, HOUR, DAY = 60, 3600, 86400
COARSE = 10 * MINUTE


def lasting(seconds: float | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return NOTHING
    whole = round(max(0.0, seconds))
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE:02} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02} min"
    return f"{whole // DAY} d {whole % DAY // HOUR:02} h"


def brief(seconds: float | None) -> str:
    """Return a duration that fits into a column: 0.4s, 28s, 2m05s, 28m, 3h12m, 4d06h."""
    if seconds is None:
        return NOTHING
    whole = round(max(0.0, seconds))
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    if whole < MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        # From ten minutes on seconds do not matter, and would cause a redraw every second.
        seconds_too = whole < COARSE
        return f"{whole // MINUTE}m" + (f"{whole % MINUTE:02}s" if seconds_too else "")
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02}m"
    return f"{whole // DAY}d{whole % DAY // HOUR:02}h"


def size(octets: int) -> str:
    """Return a memory size; 0 means unknown."""
    if octets <= 0:
        return NOTHING
    megabytes = octets / (1 << 20)
    return f"{megabytes:,.0f} MB" if megabytes < 10_000 else f"{megabytes / 1024:,.1f} GB"


def bars(values: Sequence[float]) -> str:
    """Return values as bars, scaled to the highest; any value above 0 is visible."""
    most = max(values, default=0.0)
    if most <= 0:
        return BARS[0] * len(values)
    last = len(BARS) - 1
    return "".join(BARS[max(int(v > 0), round(v / most * last))] for v in values)
