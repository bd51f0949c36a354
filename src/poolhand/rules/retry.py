"""Retry policies: how often a failed job is retried, and how long it waits before each retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import astuple

from poolhand.misuse import OptionsStruct
from poolhand.rules.validation import (
    COUNT,
    SECONDS,
    OptionRule,
    OptionTable,
    Seconds,
    check_record,
    convert_seconds,
    is_number,
)


def _is_error(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, type) and issubclass(value, BaseException)


def _are_errors(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_error, value))


RAISED_AS = "_poolhand_raised_as"  # on an error: its class names in the process that raised it

ALLOWED: OptionTable = {
    "attempts": COUNT,
    "first": SECONDS,
    "factor": OptionRule(
        lambda value: is_number(value) and value >= 1, "a number of at least 1 and at most 10**18"
    ),
    "cap": SECONDS,
    "jitter": OptionRule(
        lambda value: is_number(value) and 0 <= value <= 1, "a number from 0 to 1"
    ),
    "give_up_on": OptionRule(_are_errors, "a tuple of exception classes, or of their full names"),
}


class Retry(OptionsStruct, frozen=True):
    """Exponential backoff: `first × factor^n` seconds up to `cap`, shortened by up to `jitter`.

    `attempts` counts the first run too. Errors listed in `give_up_on` are permanent: no retry.
    List an exception class or its full name ("package.module.Class").
    """

    attempts: int = 4
    first: float = 5.0
    factor: float = 2.0
    cap: float = 600.0
    jitter: float = 0.5
    give_up_on: tuple[type[BaseException] | str, ...] = ()

    def gives_up_on(self, error: BaseException) -> bool:
        """Return whether an error is listed in `give_up_on`."""
        if not self.give_up_on:
            return False
        names = _raised_as(error)
        return any(
            name_of_error(kind) == one if isinstance(one, str) else issubclass(kind, one)
            for kind in type(error).__mro__
            for one in self.give_up_on
            if issubclass(kind, BaseException)
        ) or any(
            (one if isinstance(one, str) else name_of_error(one)) in names
            for one in self.give_up_on
        )

    if TYPE_CHECKING:

        def __init__(
            self,
            attempts: int = 4,
            first: Seconds = 5.0,
            factor: float = 2.0,
            cap: Seconds = 600.0,
            jitter: float = 0.5,
            give_up_on: tuple[type[BaseException] | str, ...] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        convert_seconds(self, "first", "cap")
        check_record(self, ALLOWED)


def name_of_error(kind: type[BaseException]) -> str:
    """Return the full name of an exception class, "ValueError" for a built-in one."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def _raised_as(error: BaseException) -> tuple[str, ...]:
    """Return the class names of an error that another process raised, else an empty tuple."""
    try:
        found = getattr(error, RAISED_AS, ())
    except Exception:
        return ()
    return found if isinstance(found, tuple) else ()


class RetryRecord(Struct, frozen=True, array_like=True):
    """A Retry that can be stored: exception classes are replaced by their names."""

    attempts: int
    first: float
    factor: float
    cap: float
    jitter: float
    give_up_on: tuple[str, ...] = ()

    def retry(self) -> Retry:
        return Retry(*astuple(self))


def recorded(retry: Retry) -> RetryRecord:
    """Return a policy in the form that can be stored."""
    names = (one if isinstance(one, str) else name_of_error(one) for one in retry.give_up_on)
    return RetryRecord(
        retry.attempts, retry.first, retry.factor, retry.cap, retry.jitter, tuple(names)
    )


NO_RETRY = Retry(attempts=1)


def delay(policy: Retry, attempts: int, roll: float, retry_after: float | None = None) -> float:
    """Return the seconds to wait after `attempts` failures; `roll` is a random number in [0, 1).

    A `retry_after` is never shortened; jitter is only added to it.
    """
    if retry_after is not None:
        return retry_after * (1.0 + 0.1 * policy.jitter * roll)
    try:
        grown = policy.first * float(policy.factor) ** (attempts - 1)
    except OverflowError:
        grown = policy.cap if policy.first else 0.0
    return min(policy.cap, grown) * (1.0 - policy.jitter * roll)
