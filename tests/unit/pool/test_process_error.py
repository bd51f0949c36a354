"""Errors of children that cannot be rebuilt: retry rules still know them by name."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from threading import Lock

import pytest

from poolhand import GiveUp, Retry, RetryLater, Snooze
from poolhand.errors import JobFailed
from poolhand.pool.slots.process_answer import RaisedFault, contents_of, raised_fault
from poolhand.rules.outcome import Failed, Snoozed, StopRequest, judge_error

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HERE = __name__


class Parent(Exception):
    """An error class that a rule names."""


class Two(Parent):
    """Keeps only one of its two arguments."""

    def __init__(self, first: int, second: int, retry_after: object = None) -> None:
        super().__init__(first)
        self.second, self.retry_after = second, retry_after


# Errors that hold values which cannot be pickled.


class Enough(GiveUp):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first + second} is enough")
        self.lock = Lock()


class Later(RetryLater):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(timedelta(seconds=first + second))
        self.lock = Lock()


class Asleep(Snooze):
    def __init__(self, until: object, second: int) -> None:
        super().__init__(until)  # type: ignore[arg-type]
        self.lock = Lock()


class Broken(Exception):
    def __getattribute__(self, name: str) -> object:
        raise ValueError(name)


def received(error: BaseException) -> BaseException:
    """Return the error that the parent builds from an error of its child."""
    try:
        content = pickle.dumps(error)
    except Exception:
        content = b""
    answer = False, content, pickle.loads(pickle.dumps(raised_fault(error)))  # noqa: S301
    found = contents_of(answer, "job-1")[1]
    assert found is not None
    return found


@pytest.mark.parametrize(
    "give_up_on", [Two, Parent, f"{HERE}.Two", f"{HERE}.Parent"], ids=["it", "base", "name", "both"]
)
def test_give_up_on_matches_an_error_that_cannot_be_rebuilt(give_up_on: type[Parent] | str) -> None:
    error = received(Two(1, 2))
    assert type(error) is JobFailed
    assert Retry(give_up_on=(give_up_on,)).gives_up_on(error)
    assert not Retry(give_up_on=(Enough, "other.Two")).gives_up_on(error)


def test_give_up_on_matches_the_cause_of_an_error_from_a_child() -> None:
    error = LookupError("none")
    error.__cause__ = Two(1, 2)
    found = received(error)
    assert type(found) is LookupError
    assert Retry(give_up_on=(Two,)).gives_up_on(found)


def test_a_directive_that_cannot_be_rebuilt_is_applied() -> None:
    gives_up = judge_error(received(Enough(1, 2)), StopRequest.NOTHING, "job-1")
    assert isinstance(gives_up, Failed)
    assert gives_up.permanent
    assert str(gives_up.error) == "3 is enough [PH-DIR-003]"
    later = judge_error(received(Later(1, 2)), StopRequest.NOTHING, "job-1")
    assert isinstance(later, Failed)
    assert (later.on_purpose, later.retry_after) == (True, 3.0)
    assert judge_error(received(Asleep(NOON, 2)), StopRequest.NOTHING, "job-1") == Snoozed(NOON)
    assert judge_error(received(Asleep(5, 2)), StopRequest.NOTHING, "job-1") == Snoozed(5.0)


def test_retry_after_of_an_error_that_cannot_be_rebuilt_is_used() -> None:
    outcome = judge_error(received(Two(1, 2, retry_after=7)), StopRequest.NOTHING, "job-1")
    assert isinstance(outcome, Failed)
    assert outcome.retry_after == 7.0


def test_an_invalid_directive_from_a_child_is_a_failure() -> None:
    assert type(received(Asleep("noon", 2))) is JobFailed
    assert type(received(Two(1, 2, retry_after="soon"))) is JobFailed


def test_a_class_of_the_main_script_is_named_main() -> None:
    kind = type("Own", (Exception,), {"__module__": "__mp_main__"})
    fault = raised_fault(kind())
    assert fault.type == "__main__.Own"
    assert fault.kinds[0] == "__main__.Own"


def test_an_error_that_raises_when_inspected_is_described() -> None:
    assert isinstance(raised_fault(Broken()), RaisedFault)
