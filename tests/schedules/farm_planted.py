"""Planted bugs of the farm: each is wrong in a way one could write, and was once."""

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
    """A worker that leaves does not wait for code whose job is over but which still runs."""

    def wrong(_: Any) -> Any:
        return property(lambda one: bool(one._runner.running or _unsent(one)))

    return replaced(Dispatcher, "at_work", wrong)


def late_claims_dropped() -> AbstractContextManager[None]:
    """What was claimed while a worker stopped to claim is forgotten."""

    def wrong(right: Any) -> Any:
        def pass_on(one: Any, done: Any, answer: Any) -> None:
            right(one, done, answer if one._claiming else replace(answer, claims=()))

        return pass_on

    return replaced(Dispatcher, "_pass_on", wrong)


def letters_left() -> AbstractContextManager[None]:
    """A worker that leaves does not look whether something lies in the mail."""

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
    """A store thread that is closed does not answer those whose question was not begun."""

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
