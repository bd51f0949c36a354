"""Schedules: their moments, and which of them are due."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from poolhand.errors import UsageError
from poolhand.rules import schedule as rules
from poolhand.rules.schedule import (
    MOST,
    Cron,
    Missed,
    Past,
    Schedule,
    begin,
    due,
    leaves_out,
    newest,
    settle,
    upcoming,
)

NOON = datetime(2030, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def minutely(missed: Missed = Missed.ONCE) -> Schedule:
    return Schedule("t", rules.every(60), missed)


def moments(expression: str, zone: str, since: str, until: str) -> list[str]:
    found = newest(rules.cron(expression, zone), at(since), at(until), MOST)
    return [moment.isoformat() for moment in found]


def run(schedule: Schedule, past: Past, now: datetime) -> tuple[list[datetime], Past]:
    """Run the due moments, and return the past after them."""
    found = due(schedule, past, now)
    return found, settle(schedule, past, found) if found else past


def test_a_new_schedule_has_nothing_due() -> None:
    for missed in Missed:
        past = begin(NOON)
        assert due(minutely(missed), past, NOON) == []
        assert upcoming(minutely(missed), past, NOON) == NOON + MINUTE


def test_intervals_are_multiples_since_the_epoch() -> None:
    past = begin(NOON + timedelta(seconds=17))
    schedule = Schedule("t", rules.every(0.5 + 7))
    first = upcoming(schedule, past, past.last)
    assert first is not None
    assert first.timestamp() % 7.5 == 0
    assert first - past.last <= timedelta(seconds=7.5)
    assert due(schedule, past, first) == [first]


def test_an_interval_of_a_third_does_not_drift() -> None:
    when = rules.every(4 / 3)
    later = at("2090-01-01T00:00Z")
    found = newest(when, at("1970-01-01T00:00Z"), later, 3)
    assert [(one - rules.EPOCH) // rules.TICK % when.step for one in found] == [0, 0, 0]
    assert later - found[-1] < timedelta(seconds=4 / 3)


def test_a_moment_is_due_from_its_time_and_only_once() -> None:
    past = begin(NOON)
    assert due(minutely(), past, NOON + MINUTE - rules.TICK) == []
    found, past = run(minutely(), past, NOON + MINUTE)
    assert found == [NOON + MINUTE]
    assert due(minutely(), past, NOON + MINUTE) == []
    assert upcoming(minutely(), past, NOON + MINUTE) == NOON + 2 * MINUTE


def test_once_runs_the_newest_missed_moment() -> None:
    found, past = run(minutely(), begin(NOON), NOON + 3 * HOUR)
    assert found == [NOON + 3 * HOUR]
    assert due(minutely(), past, NOON + 3 * HOUR) == []


@pytest.mark.parametrize(("late", "runs"), [(0.0, True), (60.0, True), (60.1, False)])
def test_skip_runs_no_moment_older_than_a_minute(late: float, runs: bool) -> None:
    schedule = Schedule("t", rules.every(3600), Missed.SKIP)
    found, past = run(schedule, begin(NOON), NOON + 2 * HOUR + timedelta(seconds=late))
    assert found == ([NOON + 2 * HOUR] if runs else [])
    assert run(schedule, past, NOON + 3 * HOUR)[0] == [NOON + 3 * HOUR]


def test_all_runs_each_that_was_missed_oldest_first() -> None:
    found, past = run(minutely(Missed.ALL), begin(NOON), NOON + HOUR)
    assert found == [NOON + n * MINUTE for n in range(1, 61)]
    assert due(minutely(Missed.ALL), past, NOON + HOUR) == []


def test_all_runs_at_most_a_thousand_and_reports_it() -> None:
    schedule, past = minutely(Missed.ALL), begin(NOON)
    found = due(schedule, past, NOON + 1_000 * MINUTE)
    assert len(found) == 1_000
    assert not leaves_out(schedule, past, found[0])
    found = due(schedule, past, NOON + 1_001 * MINUTE)
    assert found == [NOON + n * MINUTE for n in range(2, 1_002)]
    assert leaves_out(schedule, past, found[0])


def test_a_partly_submitted_catch_up_continues_where_it_stopped() -> None:
    schedule, past = minutely(Missed.ALL), begin(NOON)
    found = due(schedule, past, NOON + 5 * MINUTE)
    past = settle(schedule, past, found[:2])
    assert due(schedule, past, NOON + 5 * MINUTE) == found[2:]


def test_a_clock_set_back_repeats_nothing() -> None:
    past = begin(NOON)
    ran: list[datetime] = []
    for minutes in [1, 2, 3, 4, -56, -30, 0, 1, 2, 3, 4, 5, 6]:
        found, past = run(minutely(), past, NOON + minutes * MINUTE)
        ran += found
    assert ran == [NOON + n * MINUTE for n in (1, 2, 3, 4, 5, 6)]


@pytest.mark.parametrize("missed", list(Missed))
def test_a_clock_that_is_temporarily_an_hour_ahead_loses_and_repeats_nothing(
    missed: Missed,
) -> None:
    past, schedule = begin(NOON), minutely(missed)
    ran: list[datetime] = []
    ahead = [NOON + HOUR + n * MINUTE for n in range(3)]
    right = [NOON + n * MINUTE for n in range(3, 70)]
    for now in ahead + right:
        assert (upcoming(schedule, past, now) or now) > now
        found, past = run(schedule, past, now)
        ran += found
    assert len(ran) == len(set(ran))
    # In the two minutes in which it was ahead, other moments ran instead of the first two.
    expected = {NOON + n * MINUTE for n in range(1 if missed is Missed.ALL else 3, 70)}
    assert set(ran) == expected


def test_a_daily_job_runs_once_though_the_clock_passes_its_time_twice() -> None:
    schedule = Schedule("t", rules.cron("0 2 * * *", "UTC"))
    past = begin(at("2030-05-01T01:30Z"))
    found, past = run(schedule, past, at("2030-05-01T02:30Z"))
    assert found == [at("2030-05-01T02:00Z")]
    for now in ("01:31", "01:59", "02:00", "02:01", "03:00"):
        assert due(schedule, past, at(f"2030-05-01T{now}Z")) == []
    assert upcoming(schedule, past, at("2030-05-01T01:31Z")) == at("2030-05-02T02:00Z")


@pytest.mark.parametrize(
    ("zone", "spring", "moved", "autumn", "stays"),
    [
        (
            "Europe/Berlin",
            "2030-03-31",
            "2030-03-31T01:00:00+00:00",
            "2030-10-27",
            "2030-10-27T00:30:00+00:00",
        ),
        (
            "America/New_York",
            "2030-03-10",
            "2030-03-10T07:00:00+00:00",
            "2030-11-03",
            "2030-11-03T07:30:00+00:00",
        ),
    ],
)
def test_a_job_at_half_past_two_runs_once_on_the_days_when_the_clocks_change(
    zone: str, spring: str, moved: str, autumn: str, stays: str
) -> None:
    for day, expected in ((spring, moved), (autumn, stays)):
        since, until = f"{day}T00:00+00:00", f"{day}T12:00+00:00"
        assert moments("30 2 * * *", zone, since, until) == [expected]
        # From any moment in between, too: the repeated hour makes no difference.
        past, ran = begin(at(since)), []
        schedule = Schedule("t", rules.cron("30 2 * * *", zone))
        for minute in range(12 * 60):
            found, past = run(schedule, past, at(since) + minute * MINUTE)
            ran += found
        assert [one.isoformat() for one in ran] == [expected]
        for minute in range(12 * 60):
            now = at(since) + minute * MINUTE
            coming = upcoming(schedule, begin(now), now)
            assert coming is not None
            assert coming > now
            assert (coming == at(expected)) == (now < at(expected))


def test_in_the_repeated_hour_in_new_york_a_job_runs_once() -> None:
    found = moments("30 1 * * *", "America/New_York", "2030-11-03T00:00Z", "2030-11-03T12:00Z")
    assert found == ["2030-11-03T05:30:00+00:00"]


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/Berlin", "2030-03-31"),
        ("Europe/Berlin", "2030-10-27"),
        ("America/New_York", "2030-03-10"),
        ("America/New_York", "2030-11-03"),
    ],
)
def test_a_half_hourly_job_follows_elapsed_time_across_dst_changes(zone: str, day: str) -> None:
    since = at(f"{day}T00:00Z")
    found = moments("*/30 * * * *", zone, f"{day}T00:00Z", f"{day}T12:00Z")
    assert found == [(since + n * timedelta(minutes=30)).isoformat() for n in range(1, 25)]


def test_moments_follow_the_local_time_of_the_zone_through_the_year() -> None:
    found = moments("0 2 1 * *", "Europe/Berlin", "2030-01-01T12:00Z", "2030-12-31T00:00Z")
    assert [text[11:13] for text in found] == ["01", "01", *["00"] * 7, "01", "01"]


def test_the_newest_of_years_of_minutes_are_found_at_once() -> None:
    when = rules.cron("* * * * *", "Europe/Berlin")
    found = newest(when, at("1990-01-01T00:00Z"), NOON, 1_000)
    assert found == [NOON - n * MINUTE for n in reversed(range(1_000))]


def test_the_newest_of_a_rare_moment_is_found() -> None:
    when = rules.cron("0 0 29 2 *", "UTC")
    assert newest(when, at("2025-01-01T00:00Z"), NOON, 1) == [at("2028-02-29T00:00Z")]
    assert newest(when, at("2028-02-29T00:00Z"), NOON, 1) == []


def test_the_key_of_a_moment_contains_task_expression_and_time() -> None:
    schedule = Schedule("jobs.nightly", rules.cron(" 0  2 * * *", "Europe/Berlin"))
    key = schedule.key(at("2030-05-01T00:00Z"))
    assert key == "schedule:jobs.nightly:0 2 * * * Europe/Berlin:2030-05-01T00:00:00+00:00"
    assert Schedule("poll", rules.every(30.0)).id == Schedule("poll", rules.every(30)).id
    assert rules.every(2.5).text == "every 2.5 s"


@pytest.mark.parametrize(
    ("expression", "field", "value", "allowed"),
    [
        ("61 * * * *", "minute", "'61'", "0 to 59"),
        ("*/0 * * * *", "minute", "'*/0'", "0 to 59"),
        ("5-1 * * * *", "minute", "'5-1'", "0 to 59"),
        ("0,15,60 * * * *", "minute", "'60' in '0,15,60'", "0 to 59"),
        ("1L/2 * * * *", "minute", "'1L/2'", "0 to 59"),
        ("½ * * * *", "minute", "'½'", "0 to 59"),
        ("9" * 900 + " * * * *", "minute", "'999", "0 to 59"),
        ("0 24 * * *", "hour", "'24'", "0 to 23"),
        ("0 0 0 * *", "day", "'0'", "1 to 31"),
        ("0 0 L/x * *", "day", "'L/x'", "1 to 31"),
        ("0 0 1 13 *", "month", "'13'", "1 to 12 or JAN to DEC"),
        ("0 2 * * MUN", "weekday", "'MUN'", "0 to 7 or SUN to SAT"),
        ("0 2 * * *\0", "weekday", "'*\\x00'", "0 to 7 or SUN to SAT"),
        ("60 0 2 * * *", "second", "'60'", "0 to 59"),
    ],
)
def test_a_wrong_field_is_refused_with_its_value_and_the_allowed_values(
    expression: str, field: str, value: str, allowed: str
) -> None:
    with pytest.raises(UsageError) as caught:
        rules.cron(expression, "UTC")
    assert str(caught.value).startswith(f"cron: {field} {value}")
    assert f" is not allowed; it must be *, {allowed}" in str(caught.value)


def test_all_wrong_fields_are_reported_at_once() -> None:
    with pytest.raises(UsageError, match=r"minute '61' .*; hour '24' .*; weekday 'x' "):
        rules.cron("61 24 * * x", "UTC")


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        (" @Weekly ", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_a_named_schedule_equals_its_cron_expression(name: str, expression: str) -> None:
    assert rules.cron(name, "Asia/Tokyo") == rules.cron(expression, "Asia/Tokyo")


def test_a_misspelt_schedule_name_gets_a_suggestion() -> None:
    with pytest.raises(
        UsageError, match="'@dayly' is not the name of a schedule; did you mean '@daily"
    ):
        rules.cron("@dayly", "UTC")
    with pytest.raises(UsageError, match="there are @hourly, @daily"):
        rules.cron("@reboot", "UTC")


@pytest.mark.parametrize(
    ("args", "kwargs", "fault"),
    [
        ("acme", None, "args='acme' is not allowed; it must be a tuple"),
        (5, None, "args=5 is not allowed"),
        ((), ["a"], r"kwargs=\['a'\] is not allowed; it must be a dict"),
        ((), {1: 2}, "kwargs={1: 2} is not allowed"),
    ],
)
def test_arguments_of_another_kind_are_refused(args: Any, kwargs: Any, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        rules.arguments(args, kwargs)
    assert rules.arguments([1], None) == ((1,), {})


def test_moments_of_a_pause_are_skipped_and_not_repeated_when_the_clock_is_set_back() -> None:
    schedule = minutely(Missed.ALL)
    past = rules.begin(NOON)
    assert rules.pass_over(schedule, past, NOON + timedelta(seconds=59)) is past
    later = rules.pass_over(schedule, past, NOON + timedelta(seconds=600))
    assert due(schedule, later, NOON + timedelta(seconds=601)) == []
    assert due(schedule, later, NOON + timedelta(seconds=300)) == []
    assert due(schedule, later, NOON + timedelta(seconds=660)) == [NOON + timedelta(seconds=660)]
    assert rules.pass_over(schedule, later, NOON) is later


@pytest.mark.parametrize(
    "expression",
    ["", " ", "* * * *", "* * * * * * *", "9" * 5_000 + " * * * *", "x", None, 5, b"* * * * *"],
)
def test_a_wrong_expression_is_refused_with_the_allowed_values(expression: Any) -> None:
    with pytest.raises(UsageError, match=r"^cron: .* must be five fields, minute hour day"):
        rules.cron(expression, "UTC")


@pytest.mark.parametrize("zone", ["", "Berlin", "Europe", "../../UTC", "a\0b", "/UTC", None, 1])
def test_an_unknown_zone_is_refused_with_the_allowed_values(zone: Any) -> None:
    with pytest.raises(UsageError, match=re.escape("such as 'UTC' or 'Europe/Berlin'")):
        rules.cron("0 2 * * *", zone)


def test_all_faults_of_a_cron_expression_are_reported_at_once() -> None:
    with pytest.raises(UsageError, match=r"'x' has 1 field; .*tz='y' is not allowed"):
        rules.cron("x", "y")


@pytest.mark.parametrize("expression", ["0 0 */31 2 MON#5", "0 0 30 2 *"])
def test_a_day_that_never_comes_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="never occurs"):
        rules.cron(expression, "UTC")


@pytest.mark.parametrize(
    "seconds", [0, 0.99, -1, 1e9, float("nan"), float("inf"), True, "30", None]
)
def test_a_wrong_interval_is_refused_with_the_allowed_values(seconds: Any) -> None:
    with pytest.raises(UsageError, match=r"^every: .* must be seconds from 1 to"):
        rules.every(seconds)


@pytest.mark.parametrize("missed", ["", "none", "ALL", None, 1])
def test_a_wrong_missed_policy_is_refused_with_the_allowed_values(missed: Any) -> None:
    with pytest.raises(UsageError, match=r"must be 'once' .* 'skip' .* or 'all'"):
        rules.policy(missed)


def test_an_app_without_cron_schedules_does_not_import_the_cron_parser() -> None:
    program = (
        "import sys, poolhand; app = poolhand.App('memory://')\n"
        "app.every(5)(app.task(name='poll')(lambda: None))\n"
        "assert not {'cronsim', 'zoneinfo'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_zone_is_looked_up_by_name() -> None:
    assert Cron("0 2 * * *", "UTC") == rules.cron("0 2 * * *", "UTC")
    assert rules.after(rules.cron("0 2 * * *", "Asia/Kolkata"), NOON) == at("2030-05-01T20:30Z")


@pytest.mark.parametrize(
    ("expression", "field", "longest"),
    [
        ("*/90 * * * *", "minute '*/90'", "*/60 * * * *"),
        ("0 1,2-20/36 * * *", "hour '2-20/36'", "0 1,2-20/24 * * *"),
        ("*/61 * * * * *", "second '*/61'", "*/60 * * * * *"),
        ("0 0 * */13 *", "month '*/13'", "0 0 * */12 *"),
    ],
)
def test_a_step_beyond_its_field_is_refused(expression: str, field: str, longest: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"cron: {field} is not allowed; a step of the")):
        rules.cron(expression, "UTC")
    assert rules.cron(longest, "UTC").expression == longest
