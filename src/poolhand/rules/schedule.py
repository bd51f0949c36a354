"""Schedules: the times at which a task is to run, and which of them are due.

A time is handled once its job is stored. A `Past` records which times are handled, so every process
computes the same answer, whatever its wall clock does: no time is ever due twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from poolhand.errors import UsageError
from poolhand.rules.validation import (
    did_you_mean,
    is_number,
    is_short,
    is_text,
    not_allowed,
    raise_faults,
    shown,
    to_seconds,
)

SHORTEST, LONGEST = 1.0, 366 * 86_400.0
LATE = timedelta(seconds=60)  # "skip" does not run a time that is older than this
MOST = 1_000  # missed times that "all" runs, the newest of them
FIRST_LOOK = timedelta(minutes=1)
WIDER = 4
TICK = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CRON_ALLOWED = (
    "five fields, minute hour day month weekday, such as '0 2 * * *' or '*/15 9-17 * * MON-FRI', "
    "six with the second in front, or a name such as '@daily'"
)
NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
FIELDS = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day": "1 to 31, L or LW",
    "month": "1 to 12 or JAN to DEC",
    "weekday": "0 to 7 or SUN to SAT, 5L or MON#1",
}
"""The fields of a cron expression in their order, and what each may be."""
SIZES = {"second": 60, "minute": 60, "hour": 24, "day": 31, "month": 12, "weekday": 7}
EVERY_ALLOWED = "seconds from 1 to 31,622,400, a year"
ZONE_ALLOWED = "the name of a time zone, such as 'UTC' or 'Europe/Berlin'"


class Missed(StrEnum):
    """What happens to times that passed while no process was running."""

    ONCE = "once"  # the newest of them runs
    SKIP = "skip"  # the newest of them runs if it is not late
    ALL = "all"  # each runs, oldest first


class Cron(Struct, frozen=True):
    """The times of a cron expression in a time zone."""

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
    """When a task is to run; the same task at the same times is the same schedule everywhere.

    `call` identifies the arguments of the task: other arguments make another schedule.
    """

    task: str
    when: When
    missed: Missed = Missed.ONCE
    call: str = ""

    @property
    def id(self) -> str:
        call = f"#{self.call}" if self.call else ""
        return f"{self.task}:{self.when.text}{call}"

    def key(self, moment: datetime) -> str:
        """Return the idempotency key of the job for a time of this schedule."""
        return f"schedule:{self.id}:{moment.isoformat()}"


class Past(Struct, frozen=True):
    """The handled times: all times up to `last`, except the missed ones.

    The missed times lie after `missed_from`, up to `missed_until`. They have not run, so they are
    due again if the wall clock is set back before them.
    """

    last: datetime
    missed_from: datetime
    missed_until: datetime


def begin(now: datetime) -> Past:
    """Return the past of a schedule that is new."""
    return Past(now, now, now)


def due(schedule: Schedule, past: Past, now: datetime) -> list[datetime]:
    """Return the times that are to run now, oldest first."""
    since, until = past.last, now
    if now < past.last:
        since, until = past.missed_from, min(now, past.missed_until)
    most = MOST if schedule.missed is Missed.ALL else 1
    moments = newest(schedule.when, since, until, most) if since < until else []
    if schedule.missed is Missed.SKIP and moments and now - moments[-1] > LATE:
        return []
    return moments


def settle(schedule: Schedule, past: Past, done: Sequence[datetime]) -> Past:
    """Return the past after the first one or more of the due times were handled."""
    first, last = done[0], done[-1]
    if last <= past.last:
        return replace(past, missed_from=last)
    if not leaves_out(schedule, past, first):
        return replace(past, last=last)
    return Past(last, past.last, first - TICK)


def pass_over(schedule: Schedule, past: Past, until: datetime) -> Past:
    """Return the past after times up to this one were skipped: the schedule was paused."""
    ahead = after(schedule.when, past.last)
    return past if ahead is None or ahead > until else begin(until)


def leaves_out(schedule: Schedule, past: Past, first: datetime) -> bool:
    """Return whether times before the first one that runs are left out."""
    ahead = after(schedule.when, past.last)
    return ahead is not None and ahead < first


def upcoming(schedule: Schedule, past: Past, now: datetime) -> datetime | None:
    """Return the next time at which the schedule will be due, None if there is none."""
    if now >= past.last:
        return after(schedule.when, now)
    missed = after(schedule.when, max(now, past.missed_from))
    if missed is not None and missed <= past.missed_until:
        return missed
    return after(schedule.when, past.last)


def after(when: When, moment: datetime) -> datetime | None:
    """Return the first time after this one; None for a cron without one in the next 50 years."""
    if isinstance(when, Every):
        return _multiple(when, _multiples(when, moment) + 1)
    return next(_ahead(when, moment), None)


def newest(when: When, since: datetime, until: datetime, most: int) -> list[datetime]:
    """Return the newest times after `since` up to `until`, oldest first."""
    if isinstance(when, Every):
        last = _multiples(when, until)
        first = max(_multiples(when, since) + 1, last - most + 1)
        return [_multiple(when, number) for number in range(first, last + 1)]
    width = FIRST_LOOK
    while True:
        # Search backwards from the end: starting at `since` there may be millions.
        start = max(since, until - width)
        found = takewhile(lambda moment: moment <= until, _ahead(when, start))
        moments = list(deque(found, maxlen=most))
        if start == since or len(moments) == most:
            return moments
        width *= WIDER


def cron(expression: Any, zone: Any) -> Cron:
    """Return a validated cron schedule."""
    fields, faults = _fields(expression)
    if not isinstance(zone, str) or not _is_zone(zone):
        faults.append(not_allowed("tz", zone, ZONE_ALLOWED))
    raise_faults("cron", faults)
    when = Cron(" ".join(fields), zone)
    if after(when, EPOCH + timedelta(days=365 * 50)) is None:
        raise UsageError(f"cron: {shown(expression)} never occurs; there is no such day")
    return when


def every(seconds: Any) -> Every:
    """Return a validated interval."""
    seconds = to_seconds(seconds)
    if not is_number(seconds) or not SHORTEST <= seconds <= LONGEST:
        raise UsageError(f"every: {shown(seconds)} is not allowed; it must be {EVERY_ALLOWED}")
    return Every(round(float(seconds), 6))


def policy(missed: object) -> Missed:
    """Return a validated policy."""
    if not isinstance(missed, str) or missed not in list(Missed):
        allowed = (
            "'once' (the newest missed moment runs), 'skip' (it runs if it is not more than 60 s "
            "old) or 'all' (each runs)"
        )
        raise UsageError(not_allowed("missed", missed, allowed))
    return Missed(missed)


def arguments(args: object, kwargs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the validated arguments of a scheduled task; the task checks whether they fit it."""
    faults = []
    if not isinstance(args, tuple | list):
        faults.append(not_allowed("args", args, "a tuple, such as ('acme',)"))
    named = {} if kwargs is None else kwargs
    if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in named):
        faults.append(not_allowed("kwargs", kwargs, "a dict with names as keys"))
    if faults:
        raise UsageError("; ".join(faults))
    return tuple(cast("Sequence[Any]", args)), dict(cast("Mapping[str, Any]", named))


def _multiples(when: Every, moment: datetime) -> int:
    return (moment - EPOCH) // TICK // when.step


def _multiple(when: Every, number: int) -> datetime:
    return EPOCH + number * when.step * TICK


def _ahead(when: Cron, moment: datetime) -> Iterator[datetime]:
    """Yield the times after this one."""
    # Imported here so that only programs with a cron pay for it.
    from zoneinfo import ZoneInfo

    from cronsim import CronSim

    zone = UTC if when.zone == "UTC" else ZoneInfo(when.zone)
    for found in CronSim(when.expression, moment.astimezone(zone)):
        at = found.astimezone(UTC)
        # In an hour that occurs twice, CronSim may return a time of the first occurrence
        # when asked from the second.
        if at > moment:
            yield at


def _fields(expression: Any) -> tuple[list[str], list[str]]:
    """Return the fields of an expression, and the faults, each with the name of its field."""
    if not is_text(expression) or not is_short(expression):
        return [], [f"{shown(expression)} is not allowed; it must be {CRON_ALLOWED}"]
    name = expression.strip().lower()
    if name.startswith("@") and name not in NAMED:
        return [], [
            f"{shown(expression)} is not the name of a schedule; {did_you_mean(name, NAMED)}"
        ]
    fields = NAMED.get(name, expression).split()
    if len(fields) not in (5, 6):
        count = f"{len(fields)} field" + ("" if len(fields) == 1 else "s")
        return fields, [f"{shown(expression)} has {count}; it must be {CRON_ALLOWED}"]
    names = list(FIELDS)[-len(fields) :]
    faults = [
        fault
        for place, (name, text) in enumerate(zip(names, fields, strict=True))
        if (fault := _fault(name, text, place, len(fields)))
    ]
    if not faults and not _is_cron(" ".join(fields)):
        faults = [f"{shown(expression)} never occurs; there is no such day"]
    return fields, faults


def _fault(name: str, text: str, place: int, count: int) -> str | None:
    """Return the fault of one field; for a list, the fault of its first invalid entry."""

    def is_good(part: str) -> bool:
        return _is_cron(" ".join(part if at == place else "*" for at in range(count)))

    if is_good(text):
        return _long_step(name, text)
    bad = next((part for part in text.split(",") if not is_good(part)), text)
    where = "" if bad == text else f" in {shown(text)}"
    return (
        f"{name} {shown(bad)}{where} is not allowed; it must be *, {FIELDS[name]}, a range such as "
        "1-5, a step such as */2, or a list of these"
    )


def _long_step(name: str, text: str) -> str | None:
    """Return the fault of a step beyond the values of a field: the field would not repeat."""
    for part in text.split(","):
        step = part.partition("/")[2]
        if step.isdecimal() and int(step) > SIZES[name]:
            return (
                f"{name} {shown(part)} is not allowed; a step of the {name} is at most "
                f"{SIZES[name]}: for a longer interval write @app.every(seconds)"
            )
    return None


def _is_cron(expression: str) -> bool:
    from cronsim import CronSim

    try:
        CronSim(expression, EPOCH)
    except Exception:
        # CronSimError, and errors it does not handle, such as a number of 5,000 digits.
        return False
    return True


def _is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True
