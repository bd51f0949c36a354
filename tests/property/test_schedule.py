"""Schedules under any clock and any order of processes: no moment twice, none lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from poolhand.rules import schedule as rules
from poolhand.rules.schedule import Missed, Past, Schedule, When, begin, due, newest, settle

START = datetime(2030, 3, 30, 22, tzinfo=UTC)
SECOND = timedelta(seconds=1)
CRONS = (
    "*/7 * * * *",
    "30 2 * * *",
    "0,30 1-3 * * *",
    "15 */2 * * *",
    "0 0 1 * *",
    "*/20 * * * * *",
)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")

crons = st.builds(rules.cron, st.sampled_from(CRONS), st.sampled_from(ZONES))
whens = crons | st.builds(rules.every, st.integers(1, 7_200) | st.floats(1, 100))
# Mostly small steps, now and then an hour forward or back, or a night.
steps = st.one_of(
    st.floats(0, 120),
    st.floats(-30, 0),
    st.sampled_from([3_600.0, -3_600.0, -1_800.0, 40_000.0]),
).map(lambda seconds: timedelta(seconds=seconds))


def naive(when: When, since: datetime, until: datetime) -> list[datetime]:
    """Return all moments after one up to another."""
    if isinstance(when, rules.Every):
        step = round(when.seconds * 1_000_000)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        number = (since - epoch) // timedelta(microseconds=step) + 1
        found = []
        while (moment := epoch + timedelta(microseconds=number * step)) <= until:
            found.append(moment)
            number += 1
        return found
    # From some hours before, so that the result does not depend on the starting point.
    begins = (since - timedelta(hours=4)).astimezone(ZoneInfo(when.zone))
    ahead = (one.astimezone(UTC) for one in CronSim(when.expression, begins))
    return [one for one in takewhile(lambda one: one <= until, ahead) if one > since]


class Farm:
    """Processes that share one recorded past; each may hold a moment between two steps."""

    def __init__(self, schedule: Schedule, count: int) -> None:
        self.schedule = schedule
        self.past: Past | None = None
        self.version = 0
        self.jobs: set[datetime] = set()
        self.settled: list[datetime] = []
        self.hands: list[tuple[int, Past | None, list[datetime], datetime] | None] = [None] * count

    def step(self, who: int, now: datetime) -> None:
        """Let a process look and submit or, if it has, record that; others may have."""
        hand = self.hands[who]
        if hand is None:
            moments = [] if self.past is None else due(self.schedule, self.past, now)
            for moment in moments:
                assert moment <= now
                self.jobs.add(moment)
            self.hands[who] = self.version, self.past, moments, now
            return
        self.hands[who] = None
        version, past, moments, seen = hand
        if version != self.version or (past is not None and not moments):
            return
        self.version += 1
        self.settled += moments
        self.past = begin(seen) if past is None else settle(self.schedule, past, moments)

    def die(self, who: int) -> None:
        self.hands[who] = None


@given(
    when=crons | st.builds(rules.every, st.integers(15, 7_200) | st.floats(15, 100)),
    missed=st.sampled_from(list(Missed)),
    moves=st.lists(st.tuples(steps, st.integers(0, 2), st.booleans()), max_size=60),
)
def test_no_scheduled_moment_runs_twice_or_is_lost(
    when: When, missed: Missed, moves: list[tuple[timedelta, int, bool]]
) -> None:
    farm = Farm(Schedule("t", when, missed), 3)
    now = latest = START
    farm.step(0, now)
    farm.step(0, now)
    for step, who, dies in moves:
        now = max(START, now + step)
        latest = max(latest, now)
        if dies:
            farm.die(who)
        else:
            farm.step(who, now)
    # The remaining processes do the rest when the clock is right.
    for who in (0, 1, 2) * 4:
        farm.step(who, latest)
    assert len(farm.settled) == len(set(farm.settled))
    expected = naive(when, START, latest)
    assert set(farm.jobs) <= set(expected)
    if missed is Missed.ALL and len(expected) <= rules.MOST:
        assert sorted(farm.settled) == expected
    if missed is Missed.ONCE and expected:
        assert expected[-1] in farm.jobs


@given(when=whens, gap=st.floats(0, 2_000_000), most=st.integers(1, 1_000), late=st.floats(0, 9e4))
def test_the_newest_moments_match_a_naive_count(
    when: When, gap: float, most: int, late: float
) -> None:
    since = START + timedelta(seconds=late)
    until = since + timedelta(seconds=gap / 20)
    assert newest(when, since, until, most) == naive(when, since, until)[-most:]


@pytest.mark.slow
@given(
    when=crons | st.builds(rules.every, st.integers(20, 7_200)),
    ahead=st.integers(1, 3_600),
    length=st.integers(1, 600),
    missed=st.sampled_from([Missed.ONCE, Missed.ALL]),
)
def test_a_clock_that_was_ahead_for_a_while_loses_no_later_moment(
    when: When, ahead: int, length: int, missed: Missed
) -> None:
    schedule, past = Schedule("t", when, missed), begin(START)
    ran: list[datetime] = []
    wrong = [START + (ahead + n) * SECOND for n in range(0, length, 10)]
    right = [START + (length + n) * SECOND for n in range(0, 4_500, 10)]
    for now in wrong + right:
        moments = due(schedule, past, now)
        if moments:
            past = settle(schedule, past, moments)
        ran += moments
    assert len(ran) == len(set(ran))
    # Moments of the right time; under "once" a moment of the wrong time ran in place of others.
    expected = naive(when, right[0], right[-1])
    assert set(expected) <= set(ran)
