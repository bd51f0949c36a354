"""Deadlock: whether a job that others wait for can ever end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from poolhand.rules.desk import Desk
from poolhand.rules.entry import E
from poolhand.rules.job import Status

Running = Callable[[], Iterable[E]]
Awaited = Mapping[E, Iterable[E]]


def hopeless(entry: E, desk: Desk[E], running: Running[E], awaited: Awaited[E]) -> bool:
    """Tell whether a job can never go on, as things stand.

    A running job goes on by itself unless it waits for jobs of its own pool (`awaited`). A waiting
    one goes on when its session, its key or a slot can come free, which takes a job that goes on.
    """
    seen: set[E] = set()

    def goes_on(one: E) -> bool:
        if one in seen:
            return False
        seen.add(one)
        if _is_free(one, desk, awaited):
            return True
        return any(goes_on(other) for other in _needs(one, desk, running, awaited))

    return not goes_on(entry)


def _is_free(one: E, desk: Desk[E], awaited: Awaited[E]) -> bool:
    """Tell whether nothing that others do can hold a job up."""
    match one.job.status:
        case Status.RUNNING:
            return not awaited.get(one)
        case Status.QUEUED | Status.SCHEDULED:
            return desk.has_slot or desk.paused
        case Status.BLOCKED:
            return False
        case _:
            return True


def _needs(one: E, desk: Desk[E], running: Running[E], awaited: Awaited[E]) -> Iterable[E]:
    """Return those of which one must go on before this one can."""
    match one.job.status:
        case Status.RUNNING:
            return awaited.get(one, ())
        case Status.BLOCKED if one.job.blocked_on == "session":
            holder = desk.sessions.holder(one.job)
            return () if holder is None else (holder,)
        case Status.BLOCKED:
            return desk.holders_of_key(one.job.key, running())
        case _:
            return running()
