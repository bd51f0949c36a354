"""Schedules as an operator sees them."""

from __future__ import annotations

from datetime import datetime

import msgspec

from poolhand.farm.scheduler import DOCUMENTS, ScheduleRecord
from poolhand.operate.operable import Operable
from poolhand.rules.view import View

AT_ONCE = 100


class ScheduleView(View, frozen=True):
    """A schedule that a worker has seen; `last` is the moment up to which all is done with.

    One whose `next` moment is long past is declared nowhere any more, or nobody works.
    """

    task: str
    when: str
    zone: str | None
    missed: str
    last: datetime
    next: datetime | None


async def schedules_of(store: Operable) -> list[ScheduleView]:
    """Return all schedules, by task."""
    views: list[ScheduleView] = []
    after = ""
    while keys := await store.scan(DOCUMENTS, after, AT_ONCE):
        for key in keys:
            found = await store.get_document(key)
            view = None if found is None else _view(found[0])
            views += [] if view is None else [view]
        after = keys[-1]
    return views


def _view(data: bytes) -> ScheduleView | None:
    try:
        found = msgspec.json.decode(data, type=ScheduleRecord)
    except msgspec.DecodeError:
        return None  # Written by a newer version.
    return ScheduleView(
        found.task, found.text, found.zone, found.missed, found.past.last, found.next
    )
