"""The engine of a pool: it drives the desk and the slots."""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

from poolhand.errors import UsageError
from poolhand.observe import events
from poolhand.observe.failures import FailureLog, warn_stuck
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.admission import PoolAdmission
from poolhand.pool.engine.dead_letters import DeadLetters
from poolhand.pool.engine.deadlocks import PoolWaits
from poolhand.pool.engine.reports import (
    AuditLog,
    AuditRun,
    Failure,
    Outbox,
    Tally,
    UnreadFailures,
    is_logged_unread,
)
from poolhand.pool.engine.views import explain_work
from poolhand.pool.engine.work import COMPLETED, STARTED, Work
from poolhand.pool.monitor.watchdog import Watchdog
from poolhand.pool.slots.attempt import STUCK, Alarm, Attempt, PoolClock
from poolhand.pool.slots.fault import error_of
from poolhand.pool.slots.slots import Slots, fault_of_end
from poolhand.rules import audit, lifecycle
from poolhand.rules.explain import Explanation
from poolhand.rules.job import Ids, Job
from poolhand.rules.outcome import NO_RETRY, Outcome, unreadable
from poolhand.rules.queue.backpressure import capacity, drop_name, drop_reason
from poolhand.rules.queue.desk import Desk
from poolhand.rules.queue.idempotency import IdempotencyKeys
from poolhand.runtime import Runtime

ASKED = "asked"


def _desk(config: PoolConfig, keys: IdempotencyKeys[Work]) -> Desk[Work]:
    slots, most = config.max_concurrent, config.max_per_key
    return Desk(config.queue, config.backpressure, slots, keys, most)


class Engine:
    """Implements all that a pool does between a submit and an outcome, on one event loop.

    Each step changes the desk, the slots and the counters together, starts the jobs that can
    start, and only then emits events (`done`).
    """

    def __init__(
        self,
        config: PoolConfig,
        pool_id: str,
        loop: AbstractEventLoop,
        runtime: Runtime,
        events: events.Events,
    ) -> None:
        self.config = config
        self.pool_id = pool_id
        self.loop = loop
        self.process = os.getpid()
        self.thread = get_ident()
        self.events = events
        self.outbox = Outbox(events)
        self.tally = Tally()
        self.history: deque[Work] = deque(maxlen=config.history)
        self.on_idle: Callable[[], None] | None = None
        self._keys: IdempotencyKeys[Work] = IdempotencyKeys(config.key_ttl, config.max_keys)
        self.desk = _desk(config, self._keys)
        self.runtime = runtime
        self.clock = PoolClock(runtime)
        unread = UnreadFailures(FailureLog(None, self.clock.now, events), loop, self.thread)
        self.dead = DeadLetters(config, loop, events, self.done, unread)
        self.stopped = self._stopping = False
        self.audit = AuditLog((pool_id, config.name), self.clock)
        self.watch = Watchdog.of(loop, runtime).join(self)
        self.alarm = Alarm(loop, self.clock, self._ring)
        self.wall_at = self.clock.wall_at
        offset = runtime.wall().timestamp() - runtime.monotonic()
        self.intake = PoolAdmission(self, Ids(runtime.salt(), offset))
        self.slots = Slots(config.name, self, loop, runtime, self.clock, events)
        self.slots.resize(config.max_concurrent)
        self.waits = PoolWaits(pool_id, self.desk, self.running, self.stuck_keys, self.outbox, loop)
        self.awaiting = self.waits.awaiting
        self._random = runtime.random

    def pump(self, now: float) -> None:
        """Start the jobs that can start, after removing those that expired."""
        desk = self.desk
        if desk.admitted or desk.late or self.alarm.at <= now:
            self._catch_up(now)
        while desk.running < desk.limit and (work := desk.next(now)) is not None:
            if desk.admitted:
                self._catch_up(now)
            work.began = now
            work.stage = STARTED
            attempt = self.slots.start(work, now)
            if self.events.live:
                started = events.JobStarted(self.config.name, work.snapshot(), attempt.slot.id)
                self.outbox.put(started)
        if desk.late:
            self._catch_up(now)

    def _catch_up(self, now: float) -> None:
        """Accept newly admitted jobs and end expired ones; each can cause the other."""
        desk = self.desk
        while desk.admitted or desk.late or self.alarm.at <= now:
            self.intake.welcome()
            self.set_alarm()
            if desk.late or self.alarm.at <= now:
                self._tick(now)

    def done(self) -> None:
        """End a step: break deadlocks, call `on_idle`, emit the events."""
        if self.waits.open:
            self.waits.check()
        if self.on_idle is not None and self.is_idle:
            self.on_idle()
        if self.outbox.waiting:
            self.outbox.flush()

    def marked(self, attempt: Attempt[Work], mark: str) -> None:
        work = attempt.work
        if mark != "cancel":
            work.job = lifecycle.mark(work.snapshot(), mark)
        if self.events.live:
            self.outbox.put(events.JobMarked(self.config.name, work.snapshot(), mark))

    def completed(self, attempt: Attempt[Work], value: Any, now: float) -> None:
        work = attempt.work
        work.ended = now
        work.value = value
        # Set the stage last: another thread must not see the stage before its value.
        work.stage = COMPLETED
        work.place = work.call = work.context = None
        self.tally.completed += 1
        slot = attempt.slot.index
        run = AuditRun(work.job, work.head, work.number, work.since, work.began, now, slot)
        self.audit.note(run)
        self._publish(work, now)
        self._vacate(attempt, now)

    def failed(self, attempt: Attempt[Work], outcome: Outcome, now: float) -> None:
        self._settle(attempt, outcome, now)
        self._vacate(attempt, now)

    def gave_up(self, attempt: Attempt[Work], outcome: Outcome, now: float) -> None:
        self._settle(attempt, outcome, now)
        if self.events.live:
            stuck = events.SlotStuck(self.config.name, attempt.work.job, attempt.slot.id)
            self.outbox.put(stuck)
        if attempt.work.run_in != "process" and not self._stopping:
            warn_stuck(attempt.work.job, attempt.slot.id, self.events)
        self.pump(now)
        self.done()

    def recovered(self, attempt: Attempt[Work], now: float) -> None:
        if self.events.live:
            self.outbox.put(events.SlotFreed(self.config.name, attempt.slot.id))
        self._vacate(attempt, now)

    def vanished(self, attempt: Attempt[Work], why: str) -> None:
        if self.events.live:
            job = attempt.work.snapshot()
            self.outbox.put(events.WorkerVanished(self.config.name, job, attempt.slot.id, why))

    def _vacate(self, attempt: Attempt[Work], now: float) -> None:
        self.desk.vacate(attempt.work.job.key, now)
        self.pump(now)
        if self.waits.open or self.on_idle is not None or self.outbox.waiting:
            self.done()

    def _settle(self, attempt: Attempt[Work], outcome: Outcome, now: float) -> None:
        work = attempt.work
        at = self.clock.wall()
        retry = NO_RETRY if attempt.unwanted else work.options.retry
        roll = self._random.random()
        ran = now - attempt.began
        self.audit.tried(work, attempt.slot.index)
        try:
            job = lifecycle.settle(work.snapshot(), outcome, retry, at, ran, roll)
        except BaseException:
            outcome = unreadable(work.id)
            job = lifecycle.settle(work.snapshot(), outcome, retry, at, ran, roll)
        if (fault := fault_of_end(attempt, outcome)) is not None:
            job = lifecycle.with_fault(job, fault)
        work.job = job
        work.place = None
        if job.finished_at is not None:
            self._finish(work, error_of(job, outcome), now)
        elif self._stopping:
            self._finish_as(work, self._drained(job), now)
        else:
            assert job.run_at is not None
            self.audit.retried(job, at, now)
            self._give_back(work, (job.run_at - at).total_seconds(), now)
        attempt.work = work.record_for_attempt()

    def _give_back(self, work: Work, seconds: float, now: float) -> None:
        work.since = now
        self.desk.give_back(work, now + seconds, now)
        self.set_alarm()
        if self.events.live:
            self.outbox.put(events.JobRetried(self.config.name, work.job))

    def _finish(
        self, work: Work, error: BaseException | None, now: float, replacement: str | None = None
    ) -> None:
        """Record that a job is over without a value; `replacement` is the job that evicted it."""
        desk = self.desk
        self.audit.ended(work, now, replacement, desk.waiting, capacity(desk.policy))
        work.place = None
        self.tally.count(work.job.status)
        # Attach the failure last: reading the record marks an attached failure as read.
        self._publish(work, now)
        if error is not None and is_logged_unread(work.job):
            apart = self.dead.add(work, error)
            if self.history:
                self.history[-1] = apart
        else:
            work.call = work.context = None
            if error is not None:
                work.failure = Failure(error, error.__traceback__)

    def _finish_as(self, work: Work, job: Job, now: float, replacement: str | None = None) -> None:
        """End a job that has left the queue and the slots, as its new record says."""
        work.job = job
        self._finish(work, error_of(job, None), now, replacement)

    def _publish(self, work: Work, now: float) -> None:
        """Finish the job at the desk, add it to the history, wake its waiters, emit its end."""
        job = work.job
        if job.session is not None or job.idempotency_key is not None:
            self.desk.finish(work, now)
        self.history.append(work)
        if work.waiters is not None:
            work.wake()
        if self.events.live:
            self.outbox.put(events.JobEnded(self.config.name, work.snapshot()))

    def cancel(self, work: Work, by: str = "user") -> None:
        """End a job: at once if it waits, within `cancel_grace` seconds if it runs."""
        now = self.clock.now()
        if isinstance(work.place, Attempt):
            if work.place.live and not work.place.unwanted:
                self.audit.act_on(audit.CANCEL, work.snapshot(), now, by)
            self.slots.cancel(work.place, self.config.cancel_grace, now)
        elif not work.over and work.place is not self.desk.blocked_submitters:
            self.audit.act_on(audit.CANCEL, work.snapshot(), now, by)
            self.desk.remove(work, now)
            self._finish_as(work, lifecycle.cancel(work.snapshot(), self.clock.wall()), now)
            self.pump(now)
        self.done()

    def reject(self, work: Work, now: float, replacement: str | None = None) -> None:
        """Record that the policy rejected a job that has left the queue."""
        policy = self.config.backpressure
        reason, name = drop_reason(policy), drop_name(policy)
        job = lifecycle.reject(work.snapshot(), reason, name, self.clock.wall())
        self._finish_as(work, job, now, replacement)

    def set_alarm(self) -> None:
        at = self.desk.wake_at()
        if at is not None:
            self.alarm.set(at)

    def _ring(self, now: float) -> None:
        self._tick(now)
        self.pump(now)
        self.done()

    def _tick(self, now: float) -> None:
        """Promote due jobs and end expired ones."""
        self.alarm.close()
        for work in self.desk.tick(now):
            self._finish_as(work, lifecycle.expire(work.snapshot(), self.clock.wall()), now)
        self.set_alarm()

    def explain(self, work: Work) -> Explanation:
        return explain_work(self, work)

    def check_here(self) -> None:
        """Raise unless this code runs on the loop of the pool.

        Compares threads, because asking for the running loop costs a system call for every job.
        """
        if not self.is_here:
            raise UsageError(
                f"pool {self.config.name!r} and its tickets belong to another event loop; use them "
                "there, or from another thread with asyncio.run_coroutine_threadsafe(…, loop)"
            )

    @property
    def is_here(self) -> bool:
        """Whether this code runs on the loop of the pool."""
        return get_ident() == self.thread and self.loop.is_running()

    def check_thread(self) -> None:
        """Raise unless this code runs on the thread of the pool's loop."""
        if get_ident() != self.thread:
            raise UsageError(
                f"pool {self.config.name!r} is read on the thread of its event loop; from other "
                "threads ask stats() or size(), or use loop.call_soon_threadsafe"
            )

    @property
    def label(self) -> str:
        return self.config.name

    @property
    def active(self) -> int:
        return self.desk.running - self.slots.stuck

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do, including the user's callbacks."""
        return not self.active and not self.desk.waiting and not self.dead.busy

    def running(self) -> Iterator[Work]:
        """Yield the jobs that are running and not over, with up-to-date records."""
        for slot in self.slots.all:
            if slot.attempt is not None and slot.attempt.live:
                slot.attempt.work.snapshot()
                yield slot.attempt.work

    def stuck_keys(self) -> set[str]:
        """Return the keys of finished jobs whose code still occupies a slot."""
        attempts = (slot.attempt for slot in self.slots.all if slot.state is STUCK)
        return {attempt.work.job.key for attempt in attempts if attempt is not None}

    def read_audit(self) -> list[audit.AuditLine]:
        """Return the latest audit records."""
        running = [(work, work.place.slot.index) for work in self.running()]
        return self.audit.read(self.tally, self.desk, running, self.intake.last)

    def resize(self, size: int, why: str = ASKED) -> None:
        now = self.clock.now()
        before = self.desk.slots
        self.slots.resize(size)
        self.desk.resize(size, now)
        self.audit.act(audit.RESIZE, "user" if why == ASKED else "autoscale", str(size))
        if self.events.live:
            self.outbox.put(events.PoolResized(self.config.name, before or 0, size, why))
        self.pump(now)
        self.done()

    def pause(self) -> None:
        self.desk.paused = True
        self.audit.act(audit.PAUSE, "user")
        if self.events.live:
            self.outbox.put(events.PoolPaused(self.config.name))
        self.done()

    def resume(self) -> None:
        now = self.clock.now()
        self.desk.resume(now)
        self.audit.act(audit.RESUME, "user")
        if self.events.live:
            self.outbox.put(events.PoolResumed(self.config.name))
        self.pump(now)
        self.done()

    def stop_now(self, grace: float) -> None:
        """Reject waiting jobs and cancel running ones."""
        now = self.clock.now()
        self._stopping = self.desk.paused = True
        for work in list(self.desk):
            self.desk.remove(work, now)
            self._finish_as(work, self._drained(work.snapshot()), now)
        for work in list(self.running()):
            self.slots.cancel(work.place, grace, now)
        self.done()

    def _drained(self, job: Job) -> Job:
        return lifecycle.reject(job, "drain_timeout", "draining", self.clock.wall())

    def dispose(self) -> None:
        self.dead.stop()
        self.alarm.close()
        self.abandon()

    def abandon(self) -> None:
        """Release threads and processes, the only resources left once the loop is closed."""
        self.stopped = True
        self.watch.leave(self)
        self.slots.close()
        # No submit can join these keys any more: log failures that only a key still references.
        self._keys.limit(0.0, 0, self.clock.now())
        self.dead.close_log()
