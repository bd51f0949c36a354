"""Schedules: the moments at which a task is to run, and which of them are due.

A moment is done with once its job is kept. Which are is written down as a `Past`, from which every
process comes to the same answer, whatever its wall clock does: no moment is ever due twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from poolhand.errors import UsageError
from poolhand.rules.checks import is_number, is_short, is_text, shown, to_seconds

SHORTEST, LONGEST = 1.0, 366 * 86_400.0
LATE = timedelta(seconds=60)  # older than that, "skip" does not run a moment
MOST = 1_000  # moments that "all" makes up for, the newest of them
FIRST_LOOK = timedelta(minutes=1)
WIDER = 4
TICK = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CRON_ALLOWED = (
    "five fields, minute hour day month weekday, such as '0 2 * * *' or '*/15 9-17 * * MON-FRI', "
    "or six with the second in front"
)
EVERY_ALLOWED = "seconds from 1 to 31,622,400, a year"
ZONE_ALLOWED = "the name of a time zone, such as 'UTC' or 'Europe/Berlin'"


class Missed(StrEnum):
    """What is done about moments that went by while nobody was there to see them."""

    ONCE = "once"  # the newest of them runs
    SKIP = "skip"  # the newest of them runs if it is not late
    ALL = "all"  # each runs, oldest first


class Cron(Struct, frozen=True):
    """Moments of the calendar and the clock of a time zone."""

    expression: str
    zone: str

    @property
    def text(self) -> str:
        return f"{self.expression} {self.zone}"


class Every(Struct, frozen=True):
    """The multiples of an interval since 1970, so that all processes agree about them."""

    seconds: float

    @property
    def text(self) -> str:
        return f"every {f'{self.seconds:.6f}'.rstrip('0').rstrip('.')} s"

    @property
    def step(self) -> int:
        """The interval in microseconds."""
        return round(self.seconds * 1_000_000)


When = Cron | Every


class Schedule(Struct, frozen=True):
    """When a task is to run; the same task at the same times is the same schedule everywhere."""

    task: str
    when: When
    missed: Missed = Missed.ONCE

    @property
    def id(self) -> str:
        return f"{self.task}:{self.when.text}"

    def key(self, moment: datetime) -> str:
        """Return the idempotency key of the job of a moment."""
        return f"schedule:{self.id}:{moment.isoformat()}"


class Past(Struct, frozen=True):
    """What is done with: all moments up to `last`, but for those missed.

    The missed ones lie behind `missed_from`, up to `missed_until`. They have not run, so that if
    the wall clock is set back before them they come again.
    """

    last: datetime
    missed_from: datetime
    missed_until: datetime


def begin(now: datetime) -> Past:
    """Return the past of a schedule that nobody has seen before."""
    return Past(now, now, now)


def due(schedule: Schedule, past: Past, now: datetime) -> list[datetime]:
    """Return the moments that are to run now, oldest first."""
    since, until = past.last, now
    if now < past.last:
        since, until = past.missed_from, min(now, past.missed_until)
    most = MOST if schedule.missed is Missed.ALL else 1
    moments = newest(schedule.when, since, until, most) if since < until else []
    if schedule.missed is Missed.SKIP and moments and now - moments[-1] > LATE:
        return []
    return moments


def settle(schedule: Schedule, past: Past, done: Sequence[datetime]) -> Past:
    """Return the past when the first of the moments that were due, at least one, are done with."""
    first, last = done[0], done[-1]
    if last <= past.last:
        return replace(past, missed_from=last)
    if not leaves_out(schedule, past, first):
        return replace(past, last=last)
    return Past(last, past.last, first - TICK)


def leaves_out(schedule: Schedule, past: Past, first: datetime) -> bool:
    """Tell whether moments before the first that runs do not."""
    ahead = after(schedule.when, past.last)
    return ahead is not None and ahead < first


def upcoming(schedule: Schedule, past: Past, now: datetime) -> datetime | None:
    """Return the next moment at which something will be due, None if there is none."""
    if now >= past.last:
        return after(schedule.when, now)
    missed = after(schedule.when, max(now, past.missed_from))
    if missed is not None and missed <= past.missed_until:
        return missed
    return after(schedule.when, past.last)


def after(when: When, moment: datetime) -> datetime | None:
    """Return the first moment behind this one; a cron that has none for 50 years has none."""
    if isinstance(when, Every):
        return _multiple(when, _multiples(when, moment) + 1)
    return next(_ahead(when, moment), None)


def newest(when: When, since: datetime, until: datetime, most: int) -> list[datetime]:
    """Return the newest moments behind `since` up to `until`, oldest first."""
    if isinstance(when, Every):
        last = _multiples(when, until)
        first = max(_multiples(when, since) + 1, last - most + 1)
        return [_multiple(when, number) for number in range(first, last + 1)]
    width = FIRST_LOOK
    while True:
        # Looked for from near the end: from `since` on there may be millions.
        start = max(since, until - width)
        found = takewhile(lambda moment: moment <= until, _ahead(when, start))
        moments = list(deque(found, maxlen=most))
        if start == since or len(moments) == most:
            return moments
        width *= WIDER


def cron(expression: Any, zone: Any) -> Cron:
    """Return checked moments of the calendar."""
    faults = []
    if not is_text(expression) or not is_short(expression) or not _is_cron(expression):
        faults.append(f"{shown(expression)} is not allowed; it must be {CRON_ALLOWED}")
    if not isinstance(zone, str) or not _is_zone(zone):
        faults.append(f"tz={shown(zone)} is not allowed; it must be {ZONE_ALLOWED}")
    if faults:
        raise UsageError("cron: " + "; ".join(faults))
    when = Cron(" ".join(expression.split()), zone)
    if after(when, EPOCH + timedelta(days=365 * 50)) is None:
        raise UsageError(f"cron: {shown(expression)} never comes; there is no such day")
    return when


def every(seconds: Any) -> Every:
    """Return a checked interval."""
    seconds = to_seconds(seconds)
    if not is_number(seconds) or not SHORTEST <= seconds <= LONGEST:
        raise UsageError(f"every: {shown(seconds)} is not allowed; it must be {EVERY_ALLOWED}")
    return Every(round(float(seconds), 6))


def policy(missed: object) -> Missed:
    """Return a checked policy."""
    if not isinstance(missed, str) or missed not in list(Missed):
        raise UsageError(
            f"missed={shown(missed)} is not allowed; it must be 'once' (the newest missed moment "
            "runs), 'skip' (it runs if it is not more than 60 s old) or 'all' (each runs)"
        )
    return Missed(missed)


def _multiples(when: Every, moment: datetime) -> int:
    return (moment - EPOCH) // TICK // when.step


def _multiple(when: Every, number: int) -> datetime:
    return EPOCH + number * when.step * TICK


def _ahead(when: Cron, moment: datetime) -> Iterator[datetime]:
    """Yield the moments behind this one."""
    # Only where there is a cron: others need not pay for it.
    from zoneinfo import ZoneInfo

    from cronsim import CronSim

    zone = UTC if when.zone == "UTC" else ZoneInfo(when.zone)
    for found in CronSim(when.expression, moment.astimezone(zone)):
        at = found.astimezone(UTC)
        # In an hour that comes twice, a time of its first coming is found from its second.
        if at > moment:
            yield at


def _is_cron(expression: str) -> bool:
    from cronsim import CronSim

    try:
        CronSim(expression, EPOCH)
    except Exception:
        # CronSimError, and what it does not foresee, such as a number of 5,000 digits.
        return False
    return True


def _is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True
