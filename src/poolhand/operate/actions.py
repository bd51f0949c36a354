"""The operator: all views of a store and all actions on it, shared by CLI, TUI and code."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any

from msgspec.structs import replace

from poolhand.contract import Filter, Store
from poolhand.durable.client.explain import explained, glances, pool_named
from poolhand.durable.streams.events import last_number, look
from poolhand.durable.streams.job_api import Execution
from poolhand.errors import UsageError
from poolhand.farm.records import ControlAnswer, FarmRecord
from poolhand.misuse import explain_misuse
from poolhand.operate import bulk
from poolhand.operate.arguments import TENANT, TEXT, check, listed_ids
from poolhand.operate.bulk import ExportPage, OnProgress, Retries
from poolhand.operate.farms import FarmControl, WorkersView, farm_of, farms_of, parts_of, workers_of
from poolhand.operate.schedules import Declared, ScheduleControl, ScheduleView, noted_schedules
from poolhand.operate.sessions import (
    ErasedView,
    SessionsView,
    SessionView,
    erase_session,
    history_of,
    session_of,
    sessions_of,
    tenants_of,
)
from poolhand.operate.views import (
    AuditView,
    ControlResult,
    JobsView,
    JobView,
    PayloadView,
    PoolView,
    Summary,
    audit_view,
    job_view,
    payload_of,
    pool_view,
)
from poolhand.rules.audit import STREAM
from poolhand.rules.job import Status
from poolhand.rules.scaling.pool_size import SLOTS
from poolhand.rules.streams import JobEvent
from poolhand.rules.validation import OptionRule, nearest, shown
from poolhand.runtime import Runtime

ALL = Filter()
LOOK_AGAIN = 0.2
SHORTEST_ID = 4  # characters that an abbreviated job id needs
MOST_NAMED = 5  # ids listed in an error

_SLOTS = OptionRule(SLOTS.fits, f"{SLOTS.text} (pause a pool to start no job)")


@explain_misuse
class Operator:
    """Reads an open store and acts on it; the audit log records every action and its actor.

    `by` is the name of the actor. For an unknown job, pool or farm methods return None, or an
    answer with the reason "not_found". If a farm does not answer, they raise Unavailable.
    """

    def __init__(self, store: Store, runtime: Runtime, declared: Declared | None = None) -> None:
        self._store = store
        self._runtime = runtime
        self._retries = Retries(store, runtime)
        self._farm_control = FarmControl(store, runtime)
        self._schedule_control = ScheduleControl(store, runtime, declared)

    async def jobs(
        self, which: Filter = ALL, after: int | None = None, limit: int = 100
    ) -> JobsView:
        """Return a page of jobs, newest first."""
        check(which=which, limit=limit, after=0 if after is None else after)
        page = await self._store.find(which, after, limit)
        now, here = self._runtime.wall(), self._runtime.identity()
        why = await glances(self._store, page.jobs, now, here)
        return JobsView(tuple(map(job_view, page.jobs, why)), page.after)

    async def dead(
        self, which: Filter = ALL, after: int | None = None, limit: int = 100
    ) -> JobsView:
        """Return a page of dead letters: failed jobs that have not been retried."""
        check(which=which)
        return await self.jobs(replace(which, dead=True), after, limit)

    async def job(self, id: str) -> JobView | None:
        """Return one job, with the reason why it waits."""
        check(id=id)
        (stored,) = await self._store.get([id])
        if stored is None:
            return None
        pool = await pool_named(self._store, stored.job.pool)
        now, here = self._runtime.wall(), self._runtime.identity()
        return job_view(stored, await explained(self._store, stored, pool, now, here))

    async def count(self, which: Filter = ALL) -> dict[Status, int]:
        """Count jobs by status."""
        check(which=which)
        return dict(await self._store.count(which))

    async def cancel(self, ids: Iterable[str], by: str) -> list[ControlResult]:
        """Cancel waiting jobs, and request running ones to stop."""
        check(by=by)
        here = self._runtime.identity()
        return await bulk.cancel(self._store, listed_ids(ids), by, here)

    async def cancel_all(
        self, which: Filter, by: str, progress: OnProgress | None = None
    ) -> Summary:
        """Cancel all unfinished jobs that match the filter; calls `progress` after each batch.

        It works in batches, each in a transaction of its own. Jobs submitted meanwhile are not
        cancelled.
        """
        check(by=by, which=which, progress=progress)
        return await bulk.cancel_all(self._store, which, by, progress)

    async def count_live(self, which: Filter = ALL) -> dict[Status, int]:
        """Count by status the jobs that `cancel_all` would cancel."""
        check(which=which)
        return dict(await self._store.count(bulk.live(which)))

    async def set_aside(self, pool: str | None = None) -> dict[str, int]:
        """Count the jobs of a pool, or of all, that were set aside, by what they wait for."""
        counts = Counter[str]()
        for name, causes in (await self._store.causes()).items():
            if pool in (None, name):
                counts.update(causes)
        return dict(counts)

    async def resolve(self, id: str) -> str:
        """Return the full id of the job with this id or id prefix.

        At least four characters are needed, else it is a UsageError. Without any such job the id is
        returned as it is; several are a UsageError that names them.
        """
        check(id=id)
        (exact,) = await self._store.get([id])
        if exact is not None:
            return id
        if len(id) < SHORTEST_ID:
            raise UsageError(f"id {shown(id)} is too short; give at least {SHORTEST_ID} characters")
        page = await self._store.find(Filter(id_prefix=id), limit=MOST_NAMED + 1)
        found = [one.job.id for one in page.jobs]
        if len(found) > 1:
            more = ", …" if page.after is not None or len(found) > MOST_NAMED else ""
            raise UsageError(
                f"id {shown(id)} matches several jobs: {', '.join(found[:MOST_NAMED])}{more}; "
                "give more characters of it"
            )
        return found[0] if found else id

    async def payload(self, id: str) -> PayloadView | None:
        """Return the arguments and the result of a job, as far as they can be decoded here."""
        check(id=id)
        return await payload_of(self._store, id)

    async def retry(self, ids: Iterable[str], by: str) -> list[ControlResult]:
        """Retry dead jobs, each as a new job that replaces it."""
        check(by=by)
        return await self._retries.some(listed_ids(ids), by)

    async def retry_all(
        self, which: Filter, by: str, progress: OnProgress | None = None
    ) -> Summary:
        """Retry all dead jobs that match the filter; calls `progress` after each batch."""
        check(by=by, which=which, progress=progress)
        return await self._retries.all(which, by, progress)

    async def drop(self, ids: Iterable[str], by: str) -> list[ControlResult]:
        """Delete dead letters that are not to be retried."""
        check(by=by)
        return await bulk.drop(self._store, listed_ids(ids), by)

    async def drop_all(self, which: Filter, by: str, progress: OnProgress | None = None) -> Summary:
        """Delete all dead letters that match the filter; calls `progress` after each batch."""
        check(by=by, which=which, progress=progress)
        return await bulk.drop_all(self._store, which, by, progress)

    async def export_dead(
        self, which: Filter = ALL, after: int | None = None, limit: int = 100
    ) -> ExportPage:
        """Return a page of dead letters with their calls."""
        check(which=which, limit=limit, after=0 if after is None else after)
        return await bulk.export(self._store, which, after, limit)

    async def pools(self) -> list[PoolView]:
        """Return all pools, in the order they first appeared."""
        return [pool_view(row) for row in await self._store.pools()]

    async def pause(self, pool: str, by: str) -> PoolView | None:
        """Pause a pool: no job of it starts; running jobs continue."""
        return await self._set_pool(pool, by, paused=True)

    async def resume(self, pool: str, by: str) -> PoolView | None:
        """Resume a pool: its jobs start again."""
        return await self._set_pool(pool, by, paused=False)

    async def resize(self, pool: str, slots: int | None, by: str) -> PoolView | None:
        """Override the cap that a pool declares; None restores the declared one."""
        if slots is not None:
            _SLOTS.require("slots", slots)
        return await self._set_pool(pool, by, slots=slots, declared=slots is None)

    async def near(self, pool: str) -> str | None:
        """Return the pool name nearest to this one; the name itself if the pool exists."""
        names = [row.spec.name for row in await self._store.pools()]
        return pool if pool in names else nearest(pool, names)

    async def follow(self, id: str, after: int = 0) -> AsyncIterator[JobEvent]:
        """Yield the events of a job after the given number, until the job has ended."""
        check(id=id)
        over = False
        while not over:
            found = await look(self._store, id, after)
            if found is None:
                await asyncio.sleep(LOOK_AGAIN)
                continue
            page, over = found
            for event in page:
                yield event
                after = event.number

    async def sessions(
        self, tenant: str | None = None, after: str = "", limit: int = 100
    ) -> SessionsView:
        """Return a page of the sessions of a tenant; without one, of all tenants."""
        check(limit=limit, tenant=tenant)
        TEXT.require("after", after)
        return await sessions_of(self._store, tenant, after, limit)

    async def session(self, id: str, tenant: str | None = None) -> SessionView | None:
        """Return a session with its state."""
        check(id=id, tenant=tenant)
        return await session_of(self._store, tenant, id)

    async def session_tenants(self, id: str) -> list[str | None]:
        """Return the tenants that have a session of this name; None stands for no tenant."""
        check(id=id)
        return await tenants_of(self._store, id)

    async def session_history(self, id: str, tenant: str | None = None) -> list[Execution]:
        """Return the attempts of all turns of a session, oldest first."""
        check(id=id, tenant=tenant)
        return await history_of(self._store, tenant, id)

    async def erase_session(self, id: str, by: str, tenant: str | None = None) -> ErasedView | None:
        """Cancel the turns of a session, then delete it with its turns and their events."""
        check(by=by, id=id, tenant=tenant)
        return await erase_session(self._store, tenant, id, by)

    async def erase_sessions(self, tenant: str, by: str) -> list[ErasedView]:
        """Erase all sessions of a tenant."""
        check(by=by)
        TENANT.require("tenant", tenant)
        erased: list[ErasedView] = []
        while views := (await sessions_of(self._store, tenant, "", 100)).sessions:
            for one in views:
                gone = await erase_session(self._store, tenant, one.id, by)
                erased += [] if gone is None else [gone]
        return erased

    async def schedules(self) -> list[ScheduleView]:
        """Return all schedules that a worker has registered, ordered by task."""
        return await noted_schedules(self._store, self._runtime)

    async def pause_schedule(self, name: str, by: str) -> ScheduleView | None:
        """Pause a schedule in all processes: none of its moments runs until it is resumed.

        The name is that of its task or, if the task has several schedules, the schedule's id.
        """
        check(by=by, name=name)
        return await self._schedule_control.set_paused(name, True, by)

    async def resume_schedule(self, name: str, by: str) -> ScheduleView | None:
        """Resume a schedule from its next moment on; moments during the pause are skipped."""
        check(by=by, name=name)
        return await self._schedule_control.set_paused(name, False, by)

    async def trigger_schedule(self, name: str, by: str) -> ControlResult | None:
        """Submit a schedule's task once, now, paused or not; `new_id` is the id of the job."""
        check(by=by, name=name)
        return await self._schedule_control.trigger(name, by)

    async def farms(self) -> list[FarmRecord]:
        """Return all farms, ordered by id."""
        return await farms_of(self._store)

    async def farm(self, id: str) -> FarmRecord | None:
        """Return one farm."""
        check(id=id)
        return await farm_of(self._store, id)

    async def workers(self) -> WorkersView:
        """Return all workers: farms with their workers, and workers without a farm."""
        return await workers_of(self._store, self._runtime.identity())

    async def drain_farm(self, farm_id: str, by: str) -> ControlAnswer | None:
        """Stop a farm after its running jobs have finished."""
        check(by=by, farm_id=farm_id)
        return await self._farm_control.drain(farm_id, by) if _is_farm(farm_id) else None

    async def drain_worker(self, worker_id: str, by: str) -> ControlAnswer | None:
        """Stop a worker after its running jobs have finished; the farm replaces it."""
        check(by=by, worker_id=worker_id)
        return None if _is_farm(worker_id) else await self._farm_control.drain(worker_id, by)

    async def restart_farm(self, farm_id: str, by: str) -> ControlAnswer | None:
        """Replace all workers of a farm, one after the other; no job is cut short."""
        check(by=by, farm_id=farm_id)
        return await self._farm_control.restart(farm_id, by) if _is_farm(farm_id) else None

    async def set_bounds(
        self, farm_id: str, minimum: int | None, maximum: int | None, by: str
    ) -> ControlAnswer | None:
        """Set the minimum and maximum number of workers of a farm; None leaves one unchanged."""
        check(by=by, farm_id=farm_id)
        return await self._farm_control.bounds(farm_id, minimum, maximum, by)

    async def snapshot(self, id: str, after: int = 0, limit: int = 100) -> ControlAnswer | None:
        """Return the running jobs of a farm or worker, and a page of its recently finished ones."""
        check(id=id, limit=limit, after=after)
        return await self._farm_control.snapshot(id, after, limit)

    async def audit(self, after: int, limit: int = 100, kind: str = "") -> list[AuditView]:
        """Return the audit lines after a number whose kind begins with `kind`."""
        check(kind=kind, limit=limit, after=after)
        return [audit_view(one) for one in await self._store.read(STREAM, after, limit, kind)]

    async def last_audit(self, limit: int = 100, kind: str = "") -> list[AuditView]:
        """Return the newest audit lines, in order, oldest first."""
        check(kind=kind, limit=limit)
        end = await last_number(self._store, STREAM)
        window = limit
        while True:
            lines = await self._store.read(STREAM, max(0, end - window), window, kind)
            if len(lines) >= limit or window >= end:
                return [audit_view(one) for one in lines[-limit:]]
            window *= 4

    async def _set_pool(self, pool: str, by: str, **changes: Any) -> PoolView | None:
        check(by=by, pool=pool)
        if await pool_named(self._store, pool) is None:
            return None
        await self._store.set_pool(pool, by, **changes)
        row = await pool_named(self._store, pool)
        return None if row is None else pool_view(row)


def _is_farm(id: str) -> bool:
    return parts_of(id) == (id, None)
