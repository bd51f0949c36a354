"""Planted bugs of the farm: plausible faults, some of them real ones of the past."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from msgspec.structs import replace

from poolhand.durable.connection.store_thread import StoreThread
from poolhand.durable.worker.dispatcher import Dispatcher
from poolhand.durable.worker.runner import ClaimRunner
from tests.schedules.planted import replaced


def _unsent(one: Any) -> bool:
    return bool(one._outgoing.done or one._outgoing.released)


def stuck_forgotten() -> AbstractContextManager[None]:
    """A leaving worker does not wait for code that still runs after its job is over."""

    def wrong(_: Any) -> Any:
        return property(lambda one: bool(one._runner.running or _unsent(one)))

    return replaced(Dispatcher, "at_work", wrong)


def late_claims_dropped() -> AbstractContextManager[None]:
    """Jobs that were claimed while a worker stopped claiming are forgotten."""

    def wrong(right: Any) -> Any:
        def pass_on(one: Any, done: Any, answer: Any) -> None:
            right(one, done, answer if one._claiming else replace(answer, claims=()))

        return pass_on

    return replaced(Dispatcher, "_pass_on", wrong)


def letters_left() -> AbstractContextManager[None]:
    """A leaving worker does not check its mailbox."""

    def wrong(_: Any) -> Any:
        def is_over(one: Any) -> bool:
            return bool(one._closing and not one.at_work)

        return is_over

    return replaced(Dispatcher, "_is_over", wrong)


def stopped_is_cancelled() -> AbstractContextManager[None]:
    """A job that is stopped because its worker leaves counts as cancelled."""

    def wrong(_: Any) -> Any:
        return lambda worker, attempt, outcome: False

    return replaced(ClaimRunner, "_gives_back", wrong)


def askers_forgotten() -> AbstractContextManager[None]:
    """A closed store thread does not answer calls that had not begun."""

    def wrong(right: Any) -> Any:
        def keep(thread: Any, task: Any, replies: Any = ()) -> None:
            right(thread, task)

        return keep

    return replaced(StoreThread, "_keep", wrong)


FARM_PLANTED: dict[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug
    for bug in (
        stuck_forgotten,
        late_claims_dropped,
        letters_left,
        stopped_is_cancelled,
        askers_forgotten,
    )
}
