"""Log lines are throttled by name, and suppressed ones are counted."""

from __future__ import annotations

from poolhand.observe.failures import MOST_LINES, MOST_NAMES, REPORT_AFTER, HeldLines, Throttle


def test_ten_lines_of_a_name_are_allowed_in_a_second() -> None:
    throttle = Throttle()
    assert [throttle.allows("x", 0.5) for _ in range(12)] == [True] * MOST_LINES + [False] * 2


def test_slow_failures_are_all_written() -> None:
    throttle = Throttle()
    assert all(throttle.allows("x", 0.2 * number) for number in range(500))
    assert throttle.next_at() is None


def test_a_continuing_burst_is_held_until_its_summary() -> None:
    throttle = Throttle()
    written = [throttle.allows("x", 0.01 * number) for number in range(1_000)]
    assert written == [True] * MOST_LINES + [False] * 990
    assert throttle.next_at() == 0.1 + REPORT_AFTER
    assert throttle.due(10.0) == []
    (held,) = throttle.due(12.1)
    assert (held.name, held.count, held.dead) == ("x", 990, 0)
    assert round(held.seconds, 6) == 12.0
    assert throttle.allows("x", 12.1)


def test_names_are_throttled_independently() -> None:
    throttle = Throttle()
    for _ in range(20):
        throttle.allows("loud", 0.0)
    assert throttle.allows("quiet", 0.0)


def test_final_failures_among_the_held_are_counted() -> None:
    throttle = Throttle()
    for number in range(15):
        throttle.allows("x", 0.0, dead=number % 2 == 0)
    assert throttle.flush(3.0) == [HeldLines("x", 5, 3, 3.0)]
    assert throttle.flush(4.0) == []


def test_inactive_names_are_dropped() -> None:
    throttle = Throttle()
    for number in range(3 * MOST_NAMES):
        assert throttle.allows(f"task-{number}", 2.0 * number)
    assert len(throttle._counters) <= MOST_NAMES
