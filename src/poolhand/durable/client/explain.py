"""Explains why a stored job waits, from the facts in its store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from poolhand.contract import Filter, Lease, Owner, PoolRow, Store, Stored
from poolhand.durable.catalogue import workers_with
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.durable.leases.heartbeat import STUCK_NAMED, StuckProcess, stuck_processes
from poolhand.durable.leases.nested_waits import held_by_waits, holds_session
from poolhand.durable.leases.reaper import is_gone
from poolhand.observe.failures import warn
from poolhand.rules.explain import Explanation, Standing, explain, task_of
from poolhand.rules.job import WAITING, Job, Status
from poolhand.rules.queue.strategy import Fifo, Lifo, Priority, Strategy
from poolhand.runtime import Identity

MOST_RIVALS = 1000
SAMPLE = 20
WHEN_OPENED = "when a worker or an app opens this store"
UNSTICK = "a stuck slot is free when its code ends, or when its worker is restarted"


async def pool_named(store: Store, name: str) -> PoolRow | None:
    """Return the pool of that name, None if there is none."""
    return next(iter(await store.pools([name])), None)


def at_a_glance(
    stored: Stored,
    pool: PoolRow | None,
    now: datetime,
    workers: Sequence[Owner] | None = None,
    gone: str | None = None,
) -> Explanation | None:
    """Return what a job waits for, from its own record and its pool alone; None if it does not.

    `workers` are all that live, where they are known; `gone` the ended processes of running jobs.
    """
    job = stored.job
    if stored.submitter_blocked:
        return Explanation("pool_full", "its submitter waits: the pool is full")
    match job.status:
        case Status.SCHEDULED:
            return explain(Standing(job, None, due_in=_until(job.run_at, now)))
        case Status.BLOCKED if job.blocked_on == "session":
            return Explanation("session_busy", f"session {job.session!r} is busy")
        case Status.BLOCKED:
            return Explanation("key_cap", f"key {job.key!r} has all of its places in use")
        case Status.QUEUED if pool is not None and pool.paused:
            return explain(Standing(job, pool.slots, paused=True))
        case Status.QUEUED if workers is not None and not _serve(workers, job.pool):
            return Explanation("no_worker", f"no worker serves pool {job.pool!r}")
        case Status.QUEUED:
            return Explanation("queued", "it waits for a free slot of a worker")
        case Status.RUNNING if gone is not None:
            return Explanation("process_gone", f"{gone}; the job is taken back {WHEN_OPENED}")
        case Status.RUNNING if stored.cancel_requested:
            return Explanation("stopping", "it runs and was asked to stop")
        case _:
            return None


async def glances(
    store: Store, jobs: Sequence[Stored], now: datetime, here: Identity | None = None
) -> list[Explanation | None]:
    """Return what each job waits for, with a few store calls for all of them."""
    names = sorted({one.job.pool for one in jobs})
    pools = {row.spec.name: row for row in await store.pools(names)}
    workers = gone = None
    if any(one.job.status in (Status.QUEUED, Status.RUNNING) for one in jobs):
        leases = await store.leases()
        workers, gone = [one.owner for one in living(leases, here)], gone_processes(leases, here)
    return [at_a_glance(one, pools.get(one.job.pool), now, workers, gone) for one in jobs]


def gone_processes(leases: Sequence[Lease], here: Identity | None) -> str | None:
    """Name the processes of all running jobs if all of them are known to be gone, else None.

    A process that lives and has the store open takes back the jobs of the others by itself.
    """
    holders = [one.owner for one in leases if one.held and not one.expired]
    if here is None or not holders or not all(_is_gone(one, here) for one in holders):
        return None
    named = " or ".join(f"pid {one.pid} on {one.host}" for one in holders[:STUCK_NAMED])
    more = ", …" if len(holders) > STUCK_NAMED else ""
    return f"its process ({named}{more}) is gone"


def living(leases: Sequence[Lease], here: Identity | None) -> list[Lease]:
    """Return the leases of live workers, without ended processes of this host."""
    working = [one for one in leases if one.owner.works and not one.expired]
    return [one for one in working if here is None or not _is_gone(one.owner, here)]


def _is_gone(owner: Owner, here: Identity) -> bool:
    # This process is alive, whatever identity a runtime of a test gives it.
    mine = (owner.host, owner.boot, owner.pid, owner.started) == here
    return not mine and is_gone(owner, here)


def _serve(workers: Sequence[Owner], pool: str) -> bool:
    return any(one.serves(pool) for one in workers)


async def explained(
    store: Store,
    stored: Stored,
    pool: PoolRow | None,
    now: datetime,
    here: Identity | None = None,
) -> Explanation:
    """Explain why a job is where it is and, where that can be known, for about how long.

    `here` is the identity of this process, with which ended processes of its host are detected.
    """
    job = stored.job
    gone = None
    if job.status is Status.RUNNING:
        gone = gone_processes(await store.leases(), here)
    glance = at_a_glance(stored, pool, now, gone=gone)
    if stored.submitter_blocked or pool is None:
        return glance or explain(Standing(job, None))
    match job.status:
        case Status.BLOCKED if job.blocked_on == "session":
            return await _behind_session(store, job) or glance or explain(Standing(job, None))
        case Status.BLOCKED:
            return await _behind_key(store, job, pool)
        case Status.QUEUED if not pool.paused:
            return await _in_queue(store, job, pool, here)
        case Status.SCHEDULED if (task := task_of(job.waits_for)) and not pool.paused:
            known = await known_task(store, task, await store.leases(), job.pool)
            return known or glance or explain(Standing(job, None))
        case Status.RUNNING if glance is None:
            return explain(Standing(job, pool.slots, ran=_since(job.started_at, now)))
        case _:
            return glance or explain(Standing(job, None))


async def _behind_session(store: Store, job: Job) -> Explanation | None:
    which = Filter(pool=job.pool, session=job.session, statuses=(*WAITING, Status.RUNNING))
    turns = await _rivals(store, which, job)
    holders = [one for one in turns or () if holds_session(one)]
    if turns is None or not holders:
        return None
    ahead = sum(one.status is Status.BLOCKED and one.id < job.id for one in turns)
    average = await _average(store, job.pool)
    return explain(Standing(job, None, ahead=ahead, holder=holders[0].id, average=average))


async def _behind_key(store: Store, job: Job, pool: PoolRow) -> Explanation:
    which = Filter(pool=job.pool, key=job.key, statuses=(Status.BLOCKED,))
    rivals = await _rivals(store, which, job)
    ahead = None if rivals is None else sum(_goes_before(one, job, pool) for one in rivals)
    average = None if ahead is None else await _average(store, job.pool)
    most = pool.spec.max_per_key
    return explain(Standing(job, pool.slots, ahead=ahead, average=average, max_per_key=most))


async def _unserved(store: Store, pool: str, here: Identity | None) -> Explanation | None:
    """Return that no worker serves a full pool; None if one does."""
    leases = living(await store.leases(), here)
    if _serve([one.owner for one in leases], pool):
        return None
    return Explanation("no_worker", f"it is full, and {unserved(pool, bool(leases), store.place)}")


async def _in_queue(store: Store, job: Job, pool: PoolRow, here: Identity | None) -> Explanation:
    leases = living(await store.leases(), here)
    if not _serve([one.owner for one in leases], job.pool):
        return Explanation("no_worker", unserved(job.pool, bool(leases), store.place))
    if (waits := await held_by_waits(store, job)) is not None:
        text = f"it waits for a slot; all are held by jobs that wait ({waits})"
        return Explanation("held_by_waits", text)
    serving = [one for one in leases if one.owner.serves(job.pool)]
    stuck = await stuck_processes(store, serving)
    if pool.slots is None or pool.running < pool.slots:
        text = f"it waits for a free slot of a worker{_others(pool)}"
        full = [str(one) for one in stuck if one.is_full]
        if full:
            return Explanation("stuck_slots", f"{text}; {'; '.join(full)}; {UNSTICK}")
        return Explanation("queued", text)
    return await _behind_cap(store, job, pool, stuck)


async def _behind_cap(
    store: Store, job: Job, pool: PoolRow, processes: Sequence[StuckProcess]
) -> Explanation:
    stuck = [one for process in processes for one in process.jobs if one.pool == job.pool]
    if stuck:
        named = ", ".join(map(str, stuck[:STUCK_NAMED]))
        return Explanation(
            "stuck_slots",
            f"all {pool.slots} slots of the pool are taken{_others(pool)}; {len(stuck)} of them by "
            f"code that runs on after its attempt is over: {named}; {UNSTICK}",
        )
    which = Filter(pool=job.pool, statuses=(Status.QUEUED,))
    rivals = await _rivals(store, which, job) if _is_ranked(pool.spec.queue) else None
    if rivals is None:
        text = f"all {pool.slots} slots of the pool are taken{_others(pool)}"
        return Explanation("behind_others" if pool.queued > 1 else "pool_cap", text)
    ahead = sum(_goes_before(one, job, pool) for one in rivals)
    average = await _average(store, job.pool)
    return explain(Standing(job, pool.slots, ahead=ahead, average=average))


async def known_task(
    store: Store, task: str, leases: Sequence[Lease], pool: str
) -> Explanation | None:
    """Explain why workers that have a task do not run a job of a pool; None if none has it."""
    having, ambiguous = await workers_with(store, task, leases)
    if not having and ambiguous:
        text = f"its task {task!r} may mean {' or '.join(ambiguous)}; submit it by its full name"
        return Explanation("ambiguous_task", f"{text}, or rename all but one")
    if not having:
        return None
    if not any(one.serves(pool) for one in having):
        return Explanation(
            "no_worker",
            f"no worker that has the task {task!r} serves pool {pool!r}; declare that pool in its "
            f"app, or give a worker pools=[{pool!r}]",
        )
    return Explanation("queued", f"it waits for a free slot of a worker that has the task {task!r}")


def unserved(pool: str, others: bool, place: str) -> str:
    """Return a text that no worker serves a pool, and what to do; `others` serve other pools.

    The text names the store: workers may be connected to another one of the same name.
    """
    if not others:
        return f"no worker is connected to this store ({place}); start one"
    return (
        f"no worker that is connected to this store ({place}) serves pool {pool!r}; start one "
        f"whose app has a task in it or declares it, or give a worker pools=[{pool!r}]"
    )


async def _rivals(store: Store, which: Filter, job: Job) -> list[Job] | None:
    """Return the other jobs that match, of the same tenant's session; None if there are many."""
    page = await store.find(which, limit=MOST_RIVALS)
    if page.after is not None:
        return None
    others = [one.job for one in page.jobs if one.job.id != job.id]
    return others if which.session is None else [o for o in others if o.tenant == job.tenant]


async def _average(store: Store, pool: str) -> float | None:
    """Return the mean seconds of the latest completed jobs."""
    page = await store.find(Filter(pool=pool, statuses=(Status.COMPLETED,)), limit=SAMPLE)
    seconds = [one.job.ran for one in page.jobs if one.job.ran is not None]
    return sum(seconds) / len(seconds) if seconds else None


def _is_ranked(strategy: Strategy) -> bool:
    """Return whether the order of two jobs follows from their records alone."""
    return isinstance(strategy, Fifo | Lifo) or (
        isinstance(strategy, Priority) and strategy.aging is None
    )


def _goes_before(other: Job, job: Job, pool: PoolRow) -> bool:
    # Ids sort by arrival; a job that was requeued may be further behind than this says.
    match pool.spec.queue:
        case Lifo():
            return other.id > job.id
        case Priority(aging=None):
            return (-other.priority, other.id) < (-job.priority, job.id)
        case _:
            return other.id < job.id


def _others(pool: PoolRow) -> str:
    others = pool.queued - 1
    return "" if others < 1 else f"; {others} {'other waits' if others == 1 else 'others wait'} too"


def _until(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else (moment - now).total_seconds()


def _since(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else max(0.0, (now - moment).total_seconds())


async def explain_stored(
    store: Store, id: str, now: datetime, here: Identity | None = None
) -> Explanation:
    """Explain why the job of that id is where it is."""
    (stored,) = await store.get([id])
    if stored is None:
        return Explanation("gone", "it is no longer stored")
    pool = await pool_named(store, stored.job.pool)
    return await explained(store, stored, pool, now, here)


AFTER = 10.0  # seconds that a job is awaited before the notice
SEEN_LAST = 5.0  # seconds after which a job that polls no longer return counts as over
HOW = (
    "(`async with app.worker():` in this program or, unless the store is memory://, "
    "`poolhand work module:app`)"
)


class _Candidate(Struct):
    """The awaited queued job of a pool that is watched."""

    id: str
    since: float
    seen_at: float


class UnservedNotice:
    """Logs once for each pool that an awaited job or a submit waits for a missing worker.

    It uses the polls for awaited jobs, on the store thread's loop: it needs no timer, and queries
    the store only when a job has waited long.
    """

    def __init__(self, thread: StoreThread) -> None:
        self._thread = thread
        self._candidates: dict[str, _Candidate] = {}
        self._logged: set[str] = set()

    def met(self, job: Job, at: float) -> None:
        """Note the state of an awaited job at a moment."""
        if job.pool in self._logged:
            return
        one = self._candidates.get(job.pool)
        if job.status is not Status.QUEUED:
            if one is not None and one.id == job.id:
                del self._candidates[job.pool]
        elif one is None or at - one.seen_at > SEEN_LAST:
            self._candidates[job.pool] = _Candidate(job.id, at, at)
        elif one.id == job.id:
            one.seen_at = at

    async def look(self) -> None:
        """Log the pools whose job has waited long enough without a worker."""
        for pool, one in list(self._candidates.items()):
            if one.seen_at - one.since < AFTER:
                continue
            del self._candidates[pool]
            runtime = self._thread.runtime
            why = await explain_stored(
                self._thread.store, one.id, runtime.wall(), runtime.identity()
            )
            what = f"job {one.id} has waited {AFTER:.0f} s in pool {pool!r}"
            if why.reason == "pool_full":
                what = f"a submit has waited {AFTER:.0f} s for room in pool {pool!r}"
                why = await _unserved(self._thread.store, pool, runtime.identity()) or why
            if why.reason == "no_worker":
                self._logged.add(pool)
                warn(f"{what}: {why} {HOW}")
