"""The claim runner: runs the claims of a worker in slots of this process."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, CancelledError
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from poolhand.contract import Change, Claim
from poolhand.durable.calls.capture import close_output
from poolhand.durable.catalogue import PublishedTasks
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.leases.heartbeat import StuckSlots
from poolhand.durable.streams.job_api import logged
from poolhand.durable.worker.announcer import Announcer, TaskLookup
from poolhand.durable.worker.dispatcher import Dispatcher, SettledClaim
from poolhand.durable.worker.executor import (
    AttemptEnd,
    Executor,
    PreparedClaim,
    Unrunnable,
    hand_back,
    is_own_loss,
    loss_of,
    stopped,
)
from poolhand.durable.worker.running_claim import RunningClaim
from poolhand.errors import PoolhandError
from poolhand.observe import events
from poolhand.observe.failures import LOG, warn_stuck
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.drain import STOP_GRACE
from poolhand.pool.engine.reports import Outbox
from poolhand.pool.monitor.watchdog import LoopGuard, LoopWatch
from poolhand.pool.slots.attempt import Attempt, PoolClock
from poolhand.pool.slots.fault import error_of, fault_of
from poolhand.pool.slots.slots import Slots, fault_of_end
from poolhand.rules import lifecycle
from poolhand.rules.job import HARD_TIMEOUT, Fault, Status
from poolhand.rules.outcome import NO_RETRY, Cancelled, Failed, Outcome

if TYPE_CHECKING:
    from poolhand.durable.worker.worker import WorkerSettings

CANCEL_GRACE = 5.0
LAST_WORDS = 2.0


class ClaimRunner:
    """Runs claims in its slots, on one event loop; its dispatcher claims and writes.

    Every claim ends in exactly one change; after a lost lease its outcome here is discarded.
    """

    def __init__(
        self,
        connection: StoreConnection,
        executor: Executor,
        configs: Mapping[str, PoolConfig],
        settings: WorkerSettings,
        catalogue: PublishedTasks | None = None,
    ) -> None:
        self.label = "worker"
        self.events = connection.events
        self.stopped = self.wedged = self._refusing = False
        self.loop: AbstractEventLoop = asyncio.get_running_loop()
        self.running: dict[int, RunningClaim] = {}
        self.stuck = StuckSlots(connection.heartbeat, lambda: len(self.slots.all))
        self.handed_back = 0
        self._settings = settings
        self._quota = settings.quota
        self._offered = 0
        self.connection = connection
        self.changed = asyncio.Event()
        self._executor, self._configs = executor, configs
        runtime = connection.thread.runtime
        self._random = runtime.random
        self._clock = PoolClock(runtime)
        self.now = self._clock.now
        lookup = TaskLookup(connection, executor.codes.candidates, catalogue)
        self.announcer = Announcer(self.loop, self.events, configs, self._emit, lookup, self._clock)
        self._context = copy_context()
        self._outbox = Outbox(self.events)
        self.loop_watch = LoopWatch(self, self.loop, runtime, settings.rests)
        self.slots: Slots[RunningClaim] = Slots(
            "worker", self, self.loop, runtime, self._clock, self.events
        )
        self.slots.prepare_children(settings.before)
        self.slots.resize(settings.slots)
        self.dispatcher = Dispatcher(connection, self, catalogue)
        self.guard = LoopGuard(self.loop, self._swept, self.go_down)

    def begin(self) -> None:
        """Start to claim."""
        for slot in self.slots.all:
            self._offer(slot.index)
        self.dispatcher.begin()

    def choose(self) -> tuple[tuple[str, ...] | None, frozenset[str], frozenset[str]]:
        """Return pools and causes to claim by, and causes to skip; on the store thread."""
        pools, executor = self._settings.pools, self._executor
        causes = executor.causes()
        if executor.is_home:
            causes |= {self.connection.homes.cause}
        return executor.pools() if pools is None else pools, causes, executor.refused

    def grow(self, slots: int) -> None:
        """Have at least so many slots."""
        before = {slot.index for slot in self.slots.all}
        if slots > len(before):
            self.slots.resize(slots)
            for slot in self.slots.all:
                if slot.index not in before:
                    self._offer(slot.index)

    def close(self) -> None:
        """Release threads and processes."""
        self.stopped = True
        self.guard.leave()
        self.announcer.failures.close()
        self.loop_watch.end()
        self.slots.close()

    def refuse(self) -> None:
        """Start no more jobs; claims that still arrive are handed back."""
        self._refusing = True

    def stop_now(self, grace: float) -> None:
        """Stop what runs and hand it back, as if it had not begun."""
        self._refusing = True
        for work in list(self.running.values()):
            if not work.lost:
                work.returned = True
                self._stop(work, grace)
        self.done()

    # Called by the store thread.

    def lose(self, tokens: Sequence[int]) -> None:
        """Stop the jobs whose claims are lost."""
        for token in tokens:
            work = self.running.get(token)
            if work is not None and not work.lost:
                work.lost = True
                self.announcer.lost(work.job)
                self._stop(work, CANCEL_GRACE)
        self.done()

    def give_up(self) -> None:
        """Stop jobs whose leases may soon expire; hand them back if they have not expired."""
        for work in list(self.running.values()):
            if not (work.lost or work.returned):
                work.returned = True
                self.announcer.lost(work.job)
                self._stop(work, CANCEL_GRACE)
        self.done()

    def cancel(self, tokens: Sequence[int]) -> None:
        """Stop the jobs for which cancellation was requested."""
        for token in tokens:
            work = self.running.get(token)
            if work is not None and not work.cancel_requested:
                work.cancel_requested = True
                config = self._configs.get(work.job.pool)
                self._stop(work, CANCEL_GRACE if config is None else config.cancel_grace)
        self.done()

    def _stop(self, work: RunningClaim, grace: float) -> None:
        self.slots.cancel(work.place, grace, self.now())

    # Called by the slots.

    def marked(self, attempt: Attempt[RunningClaim], mark: str) -> None:
        work = attempt.work
        if mark != "cancel":
            work.job = lifecycle.mark(work.job, mark)
        self._emit(events.JobMarked(work.job.pool, work.job, mark))

    def completed(self, attempt: Attempt[RunningClaim], value: Any, now: float) -> None:
        work = attempt.work
        end = self._end(now - attempt.began, None)
        change = self._executor.complete(work.prepared, work.claim, value, end)
        if isinstance(change, Failed):
            self.slots.recount(attempt)
            self.failed(attempt, change, now)
        else:
            change = self._logged(change, work, value)
            self._finish(work, SettledClaim(change, None, work.prepared.own(value)))
            self._vacate(attempt)

    def failed(self, attempt: Attempt[RunningClaim], outcome: Outcome, now: float) -> None:
        if attempt.work.stay_here(attempt, self._executor):
            self.slots.start(attempt.work, now, attempt.slot.index)
        else:
            self._settle(attempt, outcome, now)
            self._vacate(attempt)

    def gave_up(self, attempt: Attempt[RunningClaim], outcome: Outcome, now: float) -> None:
        work = attempt.work
        is_late = isinstance(outcome, Failed) and outcome.mark == HARD_TIMEOUT
        # A killed child is gone after a moment.
        self.wedged = self.wedged or (is_late and work.run_in != "process")
        self._emit(events.SlotStuck(work.job.pool, work.job, attempt.slot.id))
        if work.run_in != "process" and not (self._refusing or work.lost):
            warn_stuck(work.job, attempt.slot.id, self.events)
        # A job is handed back only when its code has ended: no other worker may run it before.
        if not self._gives_back(attempt, outcome):
            if not work.lost:
                self.stuck.add(work.token, work.job, work.run_in == "thread")
            self._settle(attempt, outcome, now, stuck=True)
        self.done()

    def recovered(self, attempt: Attempt[RunningClaim], now: float) -> None:
        work = attempt.work
        self._emit(events.SlotFreed(work.job.pool, attempt.slot.id))
        if work.token in self.running:
            self._return(attempt)
        elif not work.lost:
            self.dispatcher.release(work.token)
            self.stuck.discard(work.token)
        self._vacate(attempt)

    def vanished(self, attempt: Attempt[RunningClaim], why: str) -> None:
        job = attempt.work.job
        self._emit(events.WorkerVanished(job.pool, job, attempt.slot.id, why))

    def done(self) -> None:
        if self._outbox.waiting:
            self._outbox.flush()
        self.changed.set()

    # Called by the dispatcher.

    def receive(self) -> None:
        """Process what the dispatcher has delivered."""
        claims, deliveries = self.dispatcher.claims, self.dispatcher.deliveries
        while claims:
            self._start(claims[0], self.now())
            # Pop last: `at_work` counts `claims` and `running`, and the claim must be in one of
            # them at any moment.
            claims.popleft()
        while deliveries:
            delivery = deliveries.popleft()
            for one in delivery.written:
                self.announcer.written(one)
            for one in delivery.refused:
                self.announcer.lost(one.change.job)
        self.done()

    def _start(self, claim: Claim, now: float) -> None:
        held = self.connection.homes.hold
        prepared = hand_back(claim) if self._refusing else self._executor.prepare(claim, held)
        if isinstance(prepared, Change):
            self.dispatcher.free(claim.slot)
            self.dispatcher.settle(SettledClaim(prepared, begun=False))
            return
        work = prepared if isinstance(prepared, Unrunnable) else self._work(prepared)
        if isinstance(work, Unrunnable):
            self.dispatcher.free(claim.slot)
            self._fail_unrunnable(work)
            return
        self.running[claim.token] = work
        self.loop_watch.begin()
        self._offered -= 1
        attempt = self.slots.start(work, now, claim.slot)
        self._emit(events.JobStarted(work.job.pool, work.job, attempt.slot.id))

    def _work(self, prepared: PreparedClaim) -> RunningClaim | Unrunnable:
        try:
            prepared = prepared.timed(self._settings.soft_timeout, self._settings.hard_timeout)
            return RunningClaim(prepared, self, self._context, self.connection)
        except Exception as error:
            return Unrunnable(prepared.claim, Failed(error, permanent=True))

    def _fail_unrunnable(self, unrunnable: Unrunnable) -> None:
        outcome = unrunnable.outcome
        end = self._end(0.0, fault_of(outcome.error))
        change = self._executor.settle(unrunnable.claim, outcome, None, end)
        self.dispatcher.settle(SettledClaim(change, error_of(change.job, outcome)))

    # Steps.

    def _settle(
        self, attempt: Attempt[RunningClaim], outcome: Outcome, now: float, stuck: bool = False
    ) -> None:
        work = attempt.work
        if self._gives_back(attempt, outcome):
            self._return(attempt)
            return
        end = self._end(now - attempt.began, fault_of_end(attempt, outcome), stuck)
        if is_own_loss(outcome, work.job) and not work.cancel_requested:
            change = self._executor.lost(work.claim, work.prepared.record, end)
        else:
            policy = NO_RETRY if work.cancel_requested else work.prepared.record.policy
            change, outcome = self._executor.settle_surely(work.claim, outcome, policy, end)
        change = self._logged(change, work)
        failed = isinstance(outcome, Failed)
        self._finish(work, SettledClaim(change, error_of(change.job, outcome), failed=failed))

    def _logged(self, change: Change, work: RunningClaim, value: Any = None) -> Change:
        if work.job.session is None:
            return change
        owner, call = self.connection.heartbeat.owner.id, work.prepared.call
        return logged(change, work.job.attempts, owner, self._clock.wall(), call, value)

    def _gives_back(self, attempt: Attempt[RunningClaim], outcome: Outcome) -> bool:
        """Return whether an attempt ended only because this process stopped it."""
        work = attempt.work
        if work.cancel_requested:
            return False
        if isinstance(outcome, Cancelled):
            return work.returned or work.swept or self.guard.ending
        # Code often turns a cancellation into an error of its own.
        spontaneous = isinstance(outcome, Failed) and not outcome.permanent and not outcome.mark
        return work.returned and spontaneous

    def _end(self, ran: float, fault: Fault | None, stuck: bool = False) -> AttemptEnd:
        return AttemptEnd(self._clock.wall(), ran, self._random.random(), fault, stuck)

    def _return(self, attempt: Attempt[RunningClaim]) -> None:
        """Hand a claim back as if it had not begun; fail it if it began and must not run again."""
        work = attempt.work
        work.given_back = True
        change = stopped(work.claim, self._clock.wall(), attempt.entered)
        if change.job.status is Status.FAILED:
            logged_change = self._logged(change, work)
            self._finish(work, SettledClaim(logged_change, loss_of(change.job), failed=True))
        else:
            self.handed_back += not work.lost
            self._finish(work, SettledClaim(change))

    def _finish(self, work: RunningClaim, done: SettledClaim) -> None:
        """Pass the change of a claim to the dispatcher, unless the claim is lost."""
        close_output(work.attempt_values)
        # First: the dispatcher may check at this moment whether anything is left to be written.
        if not work.lost:
            self.dispatcher.settle(done)
        else:
            self.connection.thread.post(self.connection.event_writer.over, (work.token,))
        del self.running[work.token]
        work.call = None

    def _vacate(self, attempt: Attempt[RunningClaim]) -> None:
        if not self.running:
            self.loop_watch.rest()
        self._offer(attempt.slot.index)
        self.done()

    def _offer(self, slot: int) -> None:
        """Let a slot be claimed for, while the quota is not used up."""
        if self._quota == 0:
            return
        if self._quota is not None:
            self._quota -= 1
        self._offered += 1
        self.dispatcher.free(slot)

    @property
    def spent(self) -> bool:
        """Whether the quota is used up and nothing runs any more."""
        return self._quota == 0 and not self._offered and not self.running

    def _swept(self, culprit: Attempt[RunningClaim]) -> None:
        """Hand back the jobs beside one that has cancelled every task of the loop; then go on."""
        LOG.warning(
            "job %s cancelled every task of its event loop; the other jobs that ran there are "
            "handed back, and the worker continues",
            culprit.snapshot().id,
        )
        for work in self.running.values():
            attempt = work.place
            if attempt is None or attempt.task is None:
                continue
            work.swept = attempt is not culprit
            # A task cancelled before its first step does not report its end.
            attempt.task.add_done_callback(lambda _: self.slots.reclaim())

    async def go_down(self) -> None:
        """Hand back what runs, as long as the loop waits for it."""
        self.connection.thread.post(self.dispatcher.close)
        self.stop_now(0.0)
        with suppress(TimeoutError, PoolhandError, CancelledError):
            async with asyncio.timeout(STOP_GRACE):
                while self.running:
                    self.changed.clear()
                    await self.changed.wait()
        self.dispatcher.send()
        with suppress(PoolhandError, CancelledError):
            await self.connection.thread.ask(lambda: self.dispatcher.finish(LAST_WORDS))

    def _emit(self, event: events.Event) -> None:
        if self.events.live:
            self._outbox.put(event)
