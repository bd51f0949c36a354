"""The doctor: checks a store and its workers, and says how to fix what is wrong."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime, timedelta

from poolhand.contract import Filter, Lease, Owner, PoolRow, Store
from poolhand.durable.calls.declaration import is_other_file
from poolhand.durable.catalogue import contents_of
from poolhand.durable.client.explain import known_task
from poolhand.durable.leases.heartbeat import StuckProcess, stuck_processes
from poolhand.durable.leases.reaper import is_gone
from poolhand.errors import StoreError
from poolhand.operate import store_findings
from poolhand.operate.format import jobs_wait, listed, many
from poolhand.operate.schedules import idle_schedules, schedules_of
from poolhand.operate.store_findings import Finding, InFile, Level, OnServer
from poolhand.rules.explain import call_of, key_of, task_of
from poolhand.rules.job import Status
from poolhand.rules.queue.stored_desk import SETTINGS, PoolSpec, differences
from poolhand.runtime import Runtime

MISSED = timedelta(seconds=60)  # a moment that is later than this counts as missed


async def pool_conflicts(
    store: Store, pools: Sequence[PoolRow], workers: Sequence[Owner]
) -> list[Finding]:
    """Report pools that connected workers declare with other settings than those in force."""
    contents = await contents_of(store, workers)
    declared = [
        (worker, spec)
        for worker in workers
        if worker.catalogue is not None
        for spec in contents[worker.catalogue].specs()
    ]
    found = []
    for pool in pools:
        mine = [(worker, spec) for worker, spec in declared if spec.name == pool.spec.name]
        if parts := list(_conflicts(pool.spec, mine)):
            text = (
                f"pool {pool.spec.name!r} is declared with different settings: {'; '.join(parts)}"
            )
            fix = (
                "declare it the same in all apps and versions that use this store, then restart "
                "their workers: the last declaration holds for all"
            )
            found.append(Finding("pools", Level.WARN, text, fix))
    return found


async def task_conflicts(store: Store, workers: Sequence[Owner]) -> list[Finding]:
    """Report tasks of one name that connected workers have in different files."""
    contents = await contents_of(store, workers)
    files: dict[str, dict[str, list[str]]] = {}
    for worker in workers:
        for task in contents[worker.catalogue].tasks if worker.catalogue is not None else ():
            known = files.setdefault(task.name, {})
            known.setdefault(task.source, []).append(f"{worker.host} pid {worker.pid}")
    found = []
    for name, known in sorted(files.items()):
        first, *others = known
        if any(is_other_file(name, first, other) for other in others):
            parts = (f"{file} in {listed(who)}" for file, who in known.items())
            text = f"connected workers have the task {name!r} from different files: "
            fix = (
                "each of them runs the jobs of all; if these are two programs, give one of the "
                "tasks another name: @app.task(name=…), or use two stores"
            )
            found.append(Finding("tasks", Level.WARN, text + ", ".join(parts), fix))
    return found


def _conflicts(used: PoolSpec, declared: Sequence[tuple[Owner, PoolSpec]]) -> Iterator[str]:
    """Yield one text per conflicting setting: its values, and the processes that declare them."""
    for setting in SETTINGS:
        others: dict[str, list[str]] = {}
        in_force = ""
        for worker, spec in declared:
            if (pair := differences(used, spec).get(setting)) is not None:
                in_force = pair[0]
                others.setdefault(pair[1], []).append(f"{worker.host} pid {worker.pid}")
        if others:
            texts = (f"{value} is declared by {listed(who)}" for value, who in others.items())
            yield f"{setting} {in_force} is in force, {', '.join(texts)}"


async def schedule_faults(
    store: Store, workers: Sequence[Owner], now: datetime
) -> Iterator[Finding]:
    """Report active schedules whose jobs no connected worker would run, grouped by reason."""
    by_reason: dict[tuple[str, bool], list[tuple[str, str]]] = {}
    for view, reason in await idle_schedules(store, await schedules_of(store), workers):
        missed = view.next is not None and now - view.next > MISSED
        by_reason.setdefault((reason, missed), []).append((view.task, view.id))
    return iter([_idle(reason, missed, some) for (reason, missed), some in by_reason.items()])


def _idle(reason: str, missed: bool, some: Sequence[tuple[str, str]]) -> Finding:
    one = len(some) == 1
    tasks = listed([repr(task) for task, _ in some])
    late = ", and moments were missed" if missed else ""
    text = f"{many(len(some), 'active schedule')} ({tasks}): {reason}{late}"
    fix = (
        f"start a worker whose code declares {'it' if one else 'them'}, or, if "
        f"{'it is' if one else 'one is'} gone for good, `poolhand schedules pause "
        f"{shlex.quote(some[0][1]) if one else 'ID'}`"
    )
    return Finding("schedules", Level.WRONG if missed else Level.WARN, text, fix)


CLOCK_SLACK = 5.0
OVERDUE = 60.0
# After a bad finding of these checks the store cannot be opened, or must not be.
DECIDING = frozenset({"file", "schema", "store", "server", "rights"})


async def examine(store: Store, runtime: Runtime) -> list[Finding]:
    """Run all checks, opening and closing the store.

    A store that is damaged, not accessible or of another schema is not opened: opening it would
    migrate it.
    """
    found = [finding async for finding in _outside(store)]
    if any(finding.level is not Level.OK and finding.check in DECIDING for finding in found):
        return found
    try:
        await store.open()
    except StoreError as error:
        return [*found, _unusable(error)]
    try:
        found.append(await _writable(store))
        found += await _contents(store, runtime)
    except StoreError as error:
        found.append(_unusable(error))
    finally:
        await store.close()
    return found


async def _outside(store: Store) -> AsyncIterator[Finding]:
    """Run the checks that do not open the store."""
    try:
        if isinstance(store, InFile):
            yield store_findings.space(store.path)
            damage = await store.damage()
            has, knows = await store.schema()
            yield store_findings.sound(store.path, damage)
            yield _schema("the file", has, knows)
            yield store_findings.private(store.path, store.permissions)
        elif isinstance(store, OnServer):
            survey = await store.survey()
            for finding in store_findings.usable(store.place, survey):
                yield finding
            yield _schema(store.place, *await store.schema(), survey.since)
            for finding in store_findings.shape(survey):
                yield finding
    except StoreError as error:
        yield _unusable(error)


def _schema(place: str, has: int, knows: int, since: int | None = None) -> Finding:
    if has == knows:
        return Finding("schema", Level.OK, f"the schema is number {has}, the newest")
    if has > knows and since is not None and since <= knows:
        text = f"the schema is number {has}; this poolhand knows {knows} and can use it"
        return Finding("schema", Level.OK, text)
    if has == 0:
        text = f"{place} is not a store of poolhand yet"
        fix = "check the name, or run `poolhand migrate` to make it one"
        return Finding("schema", Level.WRONG, text, fix)
    if has > knows:
        text = f"the schema is number {has}, this poolhand knows {knows}"
        return Finding("schema", Level.WRONG, text, "use the newer version of poolhand")
    text = f"the schema is number {has}, this poolhand needs {knows}"
    return Finding("schema", Level.WARN, text, "run `poolhand migrate`, or start the app")


def _unusable(error: StoreError) -> Finding:
    return Finding("store", Level.WRONG, f"it cannot be used: {error}", _cure(error))


def _cure(error: StoreError) -> str:
    # The error's message says what to do; this adds where it is documented.
    return f"see {error.code} in the error reference, docs/reference/errors.md"


async def _writable(store: Store) -> Finding:
    try:
        await store.check()
    except StoreError as error:
        return _unusable(error)
    return Finding("store", Level.OK, "it accepts jobs")


async def _contents(store: Store, runtime: Runtime) -> list[Finding]:
    now = runtime.wall()
    leases = await store.leases()
    pools = await store.pools()
    here = runtime.identity()
    dead = [lease for lease in leases if lease.expired or is_gone(lease.owner, here)]
    workers = [one.owner for one in leases if one.owner.works and one not in dead]
    causes = await _causes(store, leases)
    return [
        *([] if isinstance(store, OnServer) else [await _clock(store, now)]),
        _owners(leases, dead),
        *(_unserved(pools, workers) or _served(causes)),
        *await pool_conflicts(store, pools, workers),
        *await task_conflicts(store, workers),
        *causes,
        *[_stuck(one) for one in await stuck_processes(store, leases) if one.lease not in dead],
        await _due(store, now),
        *await schedule_faults(store, workers, now),
        _sessions(await store.unheld()),
    ]


async def _clock(store: Store, now: datetime) -> Finding:
    """Compare this machine's clock with the newest job, which cannot be from the future."""
    page = await store.find(Filter(), limit=1)
    ahead = (page.jobs[0].job.submitted_at - now).total_seconds() if page.jobs else 0.0
    if ahead <= CLOCK_SLACK:
        return Finding("clock", Level.OK, "the clock of this machine agrees with the store")
    text = f"the newest job was submitted {ahead:.0f} s from now by the clock of this machine"
    fix = (
        "set the clock (NTP) here and on the machines that submit; until then shown times are wrong"
    )
    return Finding("clock", Level.WRONG, text, fix)


def _owners(leases: Sequence[Lease], gone: Sequence[Lease]) -> Finding:
    """Report dead owners that hold jobs.

    A dead owner without jobs is no problem: its process ended normally without closing its app, and
    the next process that opens the store removes the record.
    """
    dead = [lease for lease in gone if lease.held]
    holds = sum(lease.held for lease in dead)
    if not dead:
        text = f"{many(len(leases) - len(gone), 'owner')}, none of them known to be dead"
        return Finding("leases", Level.OK, text)
    who = ", ".join(f"{lease.owner.host} pid {lease.owner.pid}" for lease in dead[:3])
    text = f"{many(len(dead), 'dead owner')} ({who}) still holding {many(holds, 'job')}"
    fix = "start a worker: it takes them back at once on this machine, else within 35 s"
    return Finding("leases", Level.WRONG, text, fix)


def _unserved(pools: Sequence[PoolRow], workers: Sequence[Owner]) -> list[Finding]:
    """Report queued jobs that no connected worker would run."""
    waiting = [pool for pool in pools if pool.queued]
    found = [_paused(pool) for pool in waiting if pool.paused]
    open_pools = [pool for pool in waiting if not pool.paused]
    if workers:
        found += [
            _without_worker(pool)
            for pool in open_pools
            if not any(worker.serves(pool.spec.name) for worker in workers)
        ]
    elif open_pools:
        text = f"{jobs_wait(sum(pool.queued for pool in open_pools))} and no worker is connected"
        found.append(Finding("jobs", Level.WRONG, text, "start a worker of the app"))
    return found


def _served(causes: Sequence[Finding]) -> Iterator[Finding]:
    """Report that nothing waits for a worker, unless jobs are parked for one."""
    if not causes:
        yield Finding("jobs", Level.OK, "every waiting job has a worker that can run it")


def _paused(pool: PoolRow) -> Finding:
    name = pool.spec.name
    text = f"{jobs_wait(pool.queued)} in pool {name!r}, which is paused"
    fix = f"`poolhand pools resume {shlex.quote(name)}` lets them run"
    return Finding("jobs", Level.WARN, text, fix)


def _without_worker(pool: PoolRow) -> Finding:
    name = pool.spec.name
    text = f"{jobs_wait(pool.queued)} in pool {name!r}, which no worker that is connected serves"
    fix = (
        "start a worker whose app has a task in that pool or declares it, or give one "
        f"pools=[{name!r}]"
    )
    return Finding("jobs", Level.WRONG, text, fix)


def _stuck(process: StuckProcess) -> Finding:
    fix = (
        "they are free when the code ends, or when that worker is restarted; ask stop_requested() "
        'in threads, or use run_in="process", which can be killed'
    )
    return Finding("slots", Level.WARN, str(process), fix)


async def _causes(store: Store, leases: Sequence[Lease]) -> list[Finding]:
    """Report the causes (task, key or signature) under which jobs are parked."""
    found = [
        await _cause(store, leases, pool, cause, count)
        for pool, counts in (await store.causes()).items()
        for cause, count in counts.items()
    ]
    return [finding for finding in found if finding is not None]


async def _cause(
    store: Store, leases: Sequence[Lease], pool: str, cause: str, count: int
) -> Finding | None:
    waiting = f"{jobs_wait(count)} in pool {pool!r}"
    if (task := task_of(cause)) is not None:
        known = await known_task(store, task, leases, pool)
        if known is not None:
            return Finding("tasks", Level.WARN, f"{waiting}: {known.text}")
        text = f"{waiting} for the task {task!r}, which no worker that is connected has"
        fix = "start a worker whose code registers it, or cancel them"
        return Finding("tasks", Level.WRONG, text, fix)
    if (key := key_of(cause)) is not None:
        text = f"{waiting} for a worker that has the key {key!r}"
        fix = "add the key to the key ring of the workers, or cancel them"
        return Finding("keys", Level.WARN, text, fix)
    if (called := call_of(cause)) is not None:
        text = f"{waiting} for a worker whose task {called!r} accepts their arguments"
        fix = (
            "start a worker of the version that submitted them, deploy one that accepts both "
            "(give new parameters a default), or cancel them"
        )
        return Finding("tasks", Level.WARN, text, fix)
    return None


async def _due(store: Store, now: datetime) -> Finding:
    page = await store.find(Filter(statuses=(Status.SCHEDULED,)), limit=1000)
    late = [
        one.job
        for one in page.jobs
        if one.job.run_at is not None and (now - one.job.run_at).total_seconds() > OVERDUE
    ]
    if not late:
        return Finding("schedule", Level.OK, "no job is overdue")
    text = f"{many(len(late), 'job')} should have been queued over {OVERDUE:.0f} s ago"
    return Finding(
        "schedule", Level.WRONG, text, "start a worker of the app: workers queue jobs that are due"
    )


def _sessions(unheld: Sequence[tuple[str, str]]) -> Finding:
    if not unheld:
        return Finding("sessions", Level.OK, "every closed session is held by a job")
    some = ", ".join(f"{session!r} in pool {pool!r}" for pool, session in unheld[:3])
    text = f"{many(len(unheld), 'session')} ({some}) closed although no job holds it"
    fix = "start a worker of the app: it starts their next turns within a minute"
    return Finding("sessions", Level.WRONG, text, fix)
