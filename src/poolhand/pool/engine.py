"""The engine of a pool: it drives the desk and the slots."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from poolhand.observe import events
from poolhand.observe.events import Events
from poolhand.pool.alarm import Alarm
from poolhand.pool.attempt import Attempt
from poolhand.pool.clock import Clock
from poolhand.pool.config import PoolConfig
from poolhand.pool.dead import DeadLetters
from poolhand.pool.fault import error_of, fault_of
from poolhand.pool.intake import Intake
from poolhand.pool.slots import Slots
from poolhand.pool.standing import explain_work
from poolhand.pool.tally import Tally
from poolhand.pool.waits import Awaits
from poolhand.pool.work import COMPLETED, STARTED, Work
from poolhand.rules import lifecycle
from poolhand.rules.backpressure import drop_name, drop_reason
from poolhand.rules.desk import Desk
from poolhand.rules.explain import Explanation
from poolhand.rules.ids import Ids
from poolhand.rules.job import Job, Status
from poolhand.rules.keys import Keys
from poolhand.rules.outcome import Failed, Outcome
from poolhand.runtime import Runtime


class Engine:
    """Everything a pool does between a submit and an outcome, on one event loop."""

    def __init__(
        self,
        config: PoolConfig,
        pool_id: str,
        loop: AbstractEventLoop,
        runtime: Runtime,
        events: Events,
    ) -> None:
        self.config = config
        self.loop = loop
        self.events = events
        self.tally = Tally()
        self.history: deque[Work] = deque(maxlen=config.history)
        self.dead = DeadLetters(config, loop, events)
        self._stopping = False
        self.on_idle: Callable[[], None] | None = None
        self.desk: Desk[Work] = Desk(
            config.queue,
            config.backpressure,
            config.max_concurrent,
            Keys(config.key_ttl, config.max_keys),
            config.max_per_key,
        )
        ids = Ids(runtime.salt())
        self.clock = Clock(runtime, ids)
        self.intake = Intake(self, ids)
        self.slots = Slots(config.name, self, loop, runtime, self.clock)
        self.slots.resize(config.max_concurrent)
        self.awaits = Awaits(pool_id, self.desk, self.running, self.events)
        self.awaiting = self.awaits.awaiting
        self.wall_at = self.clock.wall_at
        self._random = runtime.random
        self._wake = Alarm(loop, self.clock, self._tick)

    def pump(self, now: float) -> None:
        """Start what can start."""
        desk = self.desk
        while desk.running < desk.limit and (work := desk.next(now)) is not None:
            if desk.admitted:
                # Before it starts: it may be one of those that have just got in.
                self.intake.welcome()
            work.stage = STARTED
            work.began = now
            attempt = self.slots.start(work, now)
            if self.events.live:
                self.events.emit(
                    events.JobStarted(self.config.name, work.snapshot(), attempt.slot.id)
                )
        if desk.admitted:
            self.intake.welcome()

    def marked(self, attempt: Attempt, mark: str) -> None:
        work = attempt.work
        if mark != "cancel":
            work.job = lifecycle.mark(work.snapshot(), mark)
        if self.events.live:
            self.events.emit(events.JobMarked(self.config.name, work.snapshot(), mark))

    def completed(self, attempt: Attempt, value: Any, now: float) -> None:
        work = attempt.work
        work.stage = COMPLETED
        work.ended = now
        work.value = value
        work.place = work.call = work.context = None
        self.tally.completed += 1
        self._publish(work, now)
        self._vacate(attempt, now)

    def failed(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        self._settle(attempt, outcome, now)
        self._vacate(attempt, now)

    def gave_up(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        self._settle(attempt, outcome, now)
        if self.events.live:
            work = attempt.work
            self.events.emit(events.SlotStuck(self.config.name, work.job, attempt.slot.id))
        self._after_change()

    def recovered(self, attempt: Attempt, now: float) -> None:
        if self.events.live:
            self.events.emit(events.SlotFreed(self.config.name, attempt.slot.id))
        self._vacate(attempt, now)

    def _vacate(self, attempt: Attempt, now: float) -> None:
        self.desk.vacate(attempt.work.job.key, now)
        self.pump(now)
        if self.awaits.open or self.on_idle is not None:
            self._after_change()

    def _settle(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        work = attempt.work
        at = self.clock.wall(now)
        retry, roll = work.options.retry, self._random.random()
        job = lifecycle.settle(work.snapshot(), outcome, retry, at, now - attempt.began, roll)
        if isinstance(outcome, Failed):
            job = lifecycle.with_fault(job, fault_of(outcome.error))
        work.job = job
        work.place = None
        if job.run_at is not None:
            self._give_back(work, (job.run_at - at).total_seconds(), now)
        else:
            self._finish(work, error_of(job, outcome), now)

    def _give_back(self, work: Work, seconds: float, now: float) -> None:
        if self._stopping:
            work.job = self._drained(work.job, now)
            self._finish(work, error_of(work.job, None), now)
            return
        work.since = now
        self.desk.give_back(work, now + seconds, now)
        self.set_alarm()
        if self.events.live:
            self.events.emit(events.JobRetried(self.config.name, work.job))

    def _finish(self, work: Work, error: BaseException | None, now: float) -> None:
        """Record that a job is over without a value."""
        work.place = None
        if error is not None:
            work.failure = (error, error.__traceback__)
        self.tally.count(work.job.status)
        if work.job.status is Status.FAILED:
            self.dead.add(work)
        else:
            work.call = work.context = None
        self._publish(work, now)

    def _publish(self, work: Work, now: float) -> None:
        """Tell everybody that a job is over."""
        job = work.job
        if job.session is not None or job.idempotency_key is not None:
            self.desk.finish(work, now)
        self.history.append(work)
        if work.waiters is not None:
            work.wake()
        if self.events.live:
            self.events.emit(events.JobEnded(self.config.name, work.snapshot()))

    def cancel(self, work: Work) -> None:
        """End a job: at once when it waits, within `cancel_grace` seconds when it runs."""
        now = self.clock.now()
        if isinstance(work.place, Attempt):
            self.slots.cancel(work.place, self.config.cancel_grace, now)
        elif not work.over and work.place is not self.desk.parked:
            self._withdraw(work, lifecycle.cancel(work.snapshot(), self.clock.wall(now)), now)
            self.pump(now)
            self._after_change()

    def _withdraw(self, work: Work, job: Job, now: float) -> None:
        """Take a waiting job out of its place; `job` says what became of it."""
        self.desk.remove(work, now)
        work.job = job
        self._finish(work, error_of(work.job, None), now)

    def reject(self, work: Work, now: float) -> None:
        """Record that the policy turned a job away which has no place any more."""
        policy = self.config.backpressure
        reason, name = drop_reason(policy), drop_name(policy)
        work.job = lifecycle.reject(work.snapshot(), reason, name, self.clock.wall(now))
        self._finish(work, error_of(work.job, None), now)

    def _tick(self, now: float) -> None:
        """Promote what is due, end what has expired."""
        for work in self.desk.tick(now):
            work.job = lifecycle.expire(work.snapshot(), self.clock.wall(now))
            self._finish(work, error_of(work.job, None), now)
        self.set_alarm()
        self.pump(now)
        self._after_change()

    def set_alarm(self) -> None:
        at = self.desk.wake_at()
        if at is not None:
            self._wake.set(at)

    def _after_change(self) -> None:
        if self.awaits.open:
            self.awaits.check()
        if self.on_idle is not None and self.is_idle:
            self.on_idle()

    def explain(self, work: Work) -> Explanation:
        return explain_work(self, work)

    @property
    def active(self) -> int:
        return self.desk.running - self.slots.stuck

    @property
    def is_idle(self) -> bool:
        return not self.active and not self.desk.waiting

    def running(self) -> Iterator[Work]:
        """Iterate over the jobs that run and are not over."""
        for slot in self.slots.all:
            if slot.attempt is not None and slot.attempt.live:
                slot.attempt.work.snapshot()
                yield slot.attempt.work

    def average_seconds(self) -> float | None:
        """Return how long an attempt takes, None before the first has ended."""
        ended = sum(slot.completed + slot.failed for slot in self.slots.all)
        return None if not ended else sum(slot.busy_for for slot in self.slots.all) / ended

    def resize(self, size: int) -> None:
        now = self.clock.now()
        before = self.desk.slots
        self.slots.resize(size)
        self.desk.resize(size, now)
        if self.events.live:
            self.events.emit(events.PoolResized(self.config.name, before or 0, size))
        self.pump(now)
        self._after_change()

    def pause(self) -> None:
        self.desk.paused = True
        if self.events.live:
            self.events.emit(events.PoolPaused(self.config.name))

    def resume(self) -> None:
        self.desk.paused = False
        if self.events.live:
            self.events.emit(events.PoolResumed(self.config.name))
        self.pump(self.clock.now())
        self._after_change()

    def stop_now(self, grace: float) -> None:
        """Reject what waits and cancel what runs."""
        now = self.clock.now()
        self._stopping = self.desk.paused = True
        for work in list(self.desk):
            self._withdraw(work, self._drained(work.snapshot(), now), now)
        for work in list(self.running()):
            self.slots.cancel(work.place, grace, now)
        self._after_change()

    def _drained(self, job: Job, now: float) -> Job:
        return lifecycle.reject(job, "drain_timeout", "draining", self.clock.wall(now))

    def dispose(self) -> None:
        self.slots.close()
        self._wake.close()
