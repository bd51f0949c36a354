"""Operations on schedules: list, pause, resume, and trigger once now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from poolhand.contract import (
    Added,
    Admission,
    JobBatch,
    JobRequest,
    LogLine,
    Owner,
    Put,
    Refusal,
    Store,
)
from poolhand.durable.catalogue import contents_of
from poolhand.durable.client.job_request import JobRequests
from poolhand.durable.scheduled_call import (
    CALLS,
    DOCUMENTS,
    KEEP,
    PAUSES,
    SchedulePause,
    ScheduleRecord,
)
from poolhand.errors import UsageError
from poolhand.operate.farms import is_at_work
from poolhand.operate.views import ControlResult
from poolhand.rules import audit
from poolhand.rules.explain import meant
from poolhand.rules.plain import PlainView
from poolhand.runtime import Runtime

AT_ONCE = 100
STALE = timedelta(hours=1)  # a schedule whose next moment passed longer ago is declared nowhere

Declared = Callable[[str], JobRequest | None]


class ScheduleView(PlainView, frozen=True):
    """A schedule that a worker has registered.

    `last` is the last moment that was submitted, at first that of its registration. `arguments`
    are those of its task, as text. If `next` is long past, no code declares the schedule any more,
    or no worker runs; a paused schedule has no `next`. `note` says why an active schedule does not
    run; it is empty if it does.
    """

    id: str
    task: str
    when: str
    zone: str | None
    missed: str
    last: datetime
    next: datetime | None
    arguments: str = ""
    paused: bool = False
    note: str = ""


async def noted_schedules(store: Store, runtime: Runtime) -> list[ScheduleView]:
    """Return all schedules, ordered by task, each with a note if it does not run."""
    here, now = runtime.identity(), runtime.wall()
    workers = [one.owner for one in await store.leases() if is_at_work(one, here)]
    views = await schedules_of(store)
    notes = {view.id: note for view, note in await idle_schedules(store, views, workers)}
    return [replace(view, note=notes.get(view.id) or _stale(view, now)) for view in views]


async def idle_schedules(
    store: Store, views: Sequence[ScheduleView], workers: Sequence[Owner]
) -> list[tuple[ScheduleView, str]]:
    """Return the active schedules whose jobs none of these workers would run, with the reason."""
    active = [view for view in views if not view.paused and view.next is not None]
    if not workers:
        return [(view, "no worker is connected") for view in active]
    having = await _published(store, workers)
    found = []
    for view in active:
        names = meant(view.task, having)
        if not names:
            found.append((view, "no connected worker has the task"))
        elif not any(one.serves(pool) for name in names for one, pool in having[name]):
            pools = ", ".join(sorted({repr(pool) for name in names for _, pool in having[name]}))
            found.append((view, f"no connected worker that has the task serves its pool {pools}"))
    return found


async def _published(store: Store, workers: Sequence[Owner]) -> dict[str, list[tuple[Owner, str]]]:
    """Return, for each task of these workers, the workers that have it and its pool there."""
    contents = await contents_of(store, workers)
    found: dict[str, list[tuple[Owner, str]]] = {}
    for one in workers:
        for record in contents[one.catalogue].tasks if one.catalogue is not None else ():
            found.setdefault(record.name, []).append((one, record.pool))
    return found


def _stale(view: ScheduleView, now: datetime) -> str:
    if view.next is None or view.next >= now - STALE:
        return ""
    return "no connected worker declares it"


async def schedules_of(store: Store) -> list[ScheduleView]:
    """Return all schedules, ordered by task."""
    views: list[ScheduleView] = []
    after = ""
    while keys := await store.scan(DOCUMENTS, after, AT_ONCE):
        for key in keys:
            view = await _schedule(store, key.removeprefix(DOCUMENTS))
            views += [] if view is None else [view]
        after = keys[-1]
    return views


class ScheduleControl:
    """Pauses, resumes and triggers schedules.

    `declared` returns the job request of a schedule that this process declares.
    """

    def __init__(self, store: Store, runtime: Runtime, declared: Declared | None) -> None:
        self._store = store
        self._runtime = runtime
        self._requests = JobRequests(runtime)
        self._declared = declared

    async def set_paused(self, name: str, paused: bool, by: str) -> ScheduleView | None:
        """Pause or resume a schedule, for all processes."""
        found = await self._find(name)
        if found is None or found.paused == paused:
            return found
        now = self._runtime.wall()
        kind = audit.SCHEDULE_PAUSE if paused else audit.SCHEDULE_RESUME
        record = audit.acted(kind, ("", ""), by, found.id, now)
        value = msgspec.json.encode(SchedulePause(paused, now, by))
        # Workers that declare the schedule renew this document. It stays after a resume, too, so
        # that moments during the pause do not count as missed.
        put = Put(f"{PAUSES}{found.id}", value, ttl=KEEP.total_seconds())
        line = LogLine(audit.STREAM, kind, msgspec.json.encode(record))
        await self._store.put([put], log=[line])
        return await _schedule(self._store, found.id)

    async def trigger(self, name: str, by: str) -> ControlResult | None:
        """Submit the task of a schedule once, now, paused or not."""
        found = await self._find(name)
        if found is None:
            return None
        request = replace(await self._request(found, by), triggers=found.id)
        (result,) = await self._store.add([JobBatch((request,))])
        return _answer(found.id, result)

    async def _request(self, found: ScheduleView, by: str) -> JobRequest:
        request = None if self._declared is None else self._declared(found.id)
        if request is not None:
            # Keep the job id: a signed call is valid for that id only.
            return replace(request, job=replace(request.job, submitted_by=by))
        kept = await self._store.get_document(f"{CALLS}{found.id}")
        if kept is None:
            raise UsageError(
                f"schedule {found.id!r} cannot be triggered yet: no worker of this version of "
                "poolhand has run it; start one with `poolhand work module:app`"
            )
        if not kept[0]:
            raise UsageError(
                f"schedule {found.id!r} belongs to an app that signs its calls, and no keys are "
                "here; in a process that has them run "
                f"`await app.operator().trigger_schedule({found.id!r}, by=…)`"
            )
        return self._requests.copy(msgspec.msgpack.decode(kept[0], type=JobRequest), by)

    async def _find(self, name: str) -> ScheduleView | None:
        """Return the schedule with that id, or the only one of the task with that name.

        Schedules that a deploy has replaced are ignored if others are left.
        """
        views = await schedules_of(self._store)
        exact = [one for one in views if one.id == name]
        found = exact or [one for one in views if one.task == name]
        if len(found) > 1:
            found = [one for one in found if not await self._is_stale(one.id)] or found
        if len(found) > 1:
            ids = ", ".join(f"{one.id!r} ({one.arguments or 'no arguments'})" for one in found)
            raise UsageError(f"task {name!r} has {len(found)} schedules; name one of them: {ids}")
        return found[0] if found else None

    async def _is_stale(self, id: str) -> bool:
        """Return whether a schedule's next moment passed so long ago that no code declares it."""
        found = await _record(self._store, id)
        # Read from the record: the view of a paused schedule has no next moment.
        coming = None if found is None else found.next
        return coming is not None and coming < self._runtime.wall() - STALE


async def _schedule(store: Store, id: str) -> ScheduleView | None:
    record = await _record(store, id)
    if record is None:
        return None
    view = _view(id, record)
    kept = await store.get_document(f"{PAUSES}{id}")
    pause = None if kept is None else kept.read(SchedulePause)
    paused = pause is not None and pause.paused
    return replace(view, paused=True, next=None) if paused else view


async def _record(store: Store, id: str) -> ScheduleRecord | None:
    kept = await store.get_document(f"{DOCUMENTS}{id}")
    return None if kept is None else kept.read(ScheduleRecord)


def _view(id: str, found: ScheduleRecord) -> ScheduleView:
    when = found.text, found.zone, found.missed, found.ran or found.past.last, found.next
    return ScheduleView(id, found.task, *when, found.arguments)


def _answer(id: str, result: tuple[Added, ...] | Refusal) -> ControlResult:
    if isinstance(result, Refusal):
        state = f"{result.running} running, {result.waiting} waiting, {result.policy}"
        text = f"pool {result.pool!r} is full ({state}); try again later or resize the pool"
        return ControlResult(id, False, result.reason, text)
    (added,) = result
    if added.entry is Admission.REJECTED:
        text = f"pool {added.job.pool!r} is full and dropped it ({added.job.rejection_policy})"
        return ControlResult(id, False, "rejected", text)
    return ControlResult(id, True, "submitted", f"submitted as {added.job.id}", added.job.id)
