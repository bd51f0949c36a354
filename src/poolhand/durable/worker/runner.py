"""The claim runner: runs the claims of a worker in slots of this process."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, CancelledError
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from poolhand.contract import Change, Claim
from poolhand.durable.calls.capture import close_output
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.leases.stuck_slots import StuckSlots
from poolhand.durable.streams.execution_log import AttemptLine, logged
from poolhand.durable.worker.announcing import Announcer
from poolhand.durable.worker.attention import LoopWatch
from poolhand.durable.worker.executor import (
    AttemptEnd,
    Executor,
    StoredAttempt,
    Unrunnable,
    hand_back,
    is_own_loss,
    loss_of,
    stopped,
)
from poolhand.durable.worker.guard import LoopGuard
from poolhand.durable.worker.hand import SettledClaim
from poolhand.durable.worker.line import DispatcherLine
from poolhand.durable.worker.running_claim import RunningClaim
from poolhand.durable.worker.set_aside import StoreLookup
from poolhand.durable.worker.settings import WorkerSettings
from poolhand.errors import PoolhandError
from poolhand.observe import events
from poolhand.observe.stalls import warn_stuck
from poolhand.pool.config import PoolConfig
from poolhand.pool.engine.drain import STOP_GRACE
from poolhand.pool.engine.outbox import Outbox
from poolhand.pool.engine.self_cancelled import fault_of_end
from poolhand.pool.slots.attempt import Attempt
from poolhand.pool.slots.clock import PoolClock
from poolhand.pool.slots.fault import error_of, fault_of
from poolhand.pool.slots.slots import Slots
from poolhand.rules import lifecycle
from poolhand.rules.job import HARD_TIMEOUT, Fault, Status
from poolhand.rules.outcome import Cancelled, Failed, Outcome
from poolhand.rules.retry import NO_RETRY

CANCEL_GRACE = 5.0
LAST_WORDS = 2.0


class ClaimRunner:
    """Runs claims in its slots, on one event loop; its dispatcher claims and writes.

    Every claim ends in exactly one change; after a lost lease its outcome here is discarded.
    """

    def __init__(
        self,
        station: StoreConnection,
        executor: Executor,
        configs: Mapping[str, PoolConfig],
        terms: WorkerSettings,
    ) -> None:
        self.label = "worker"
        self.events = station.events
        self.stopped = False
        self.loop: AbstractEventLoop = asyncio.get_running_loop()
        self.running: dict[int, RunningClaim] = {}
        self.stuck = StuckSlots(station.keeper, station.heart, lambda: len(self.slots.all))
        self.handed_back = 0
        self.wedged = False
        self._terms = terms
        self._quota = terms.quota
        self._offered = 0
        self.station = station
        self.changed = asyncio.Event()
        self._executor = executor
        self._configs = configs
        runtime = station.keeper.runtime
        self._random = runtime.random
        self._clock = PoolClock(runtime)
        lookup = StoreLookup(station, executor.codes.candidates, lambda: self.line.catalogue)
        told = self.loop, self.events, configs, self._tell
        self.announcing = Announcer(*told, lookup, self._clock)
        self._context = copy_context()
        self._outbox = Outbox(self.events)
        self.attention = LoopWatch(self, self.loop, runtime, terms.rests)
        self.slots: Slots[RunningClaim] = Slots(
            "worker", self, self.loop, runtime, self._clock, self.events
        )
        self.slots.prepare_children(terms.before)
        self.slots.resize(terms.slots)
        self.line = DispatcherLine(station, self._choose, self)
        self.tray = self.line.tray
        self._refusing = False
        self.guard = LoopGuard(self)

    def begin(self) -> None:
        """Start to claim."""
        for slot in self.slots.all:
            self._offer(slot.index)
        self.line.begin()

    def _choose(self) -> tuple[tuple[str, ...] | None, frozenset[str], frozenset[str]]:
        """Return pools and causes to claim by, and causes to skip; on the store thread."""
        pools, executor = self._terms.pools, self._executor
        causes = executor.causes()
        if executor.is_home:
            causes |= {self.station.homes.cause}
        return executor.pools() if pools is None else pools, causes, executor.refused

    def now(self) -> float:
        return self._clock.now()

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
        self.announcing.failures.close()
        self.attention.end()
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
                self.announcing.lost(work.job)
                self._stop(work, CANCEL_GRACE)
        self.done()

    def give_up(self) -> None:
        """Stop jobs whose leases may soon expire; hand them back if they have not expired."""
        for work in list(self.running.values()):
            if not (work.lost or work.returned):
                work.returned = True
                self.announcing.lost(work.job)
                self._stop(work, CANCEL_GRACE)
        self.done()

    def cancel(self, tokens: Sequence[int]) -> None:
        """Stop the jobs for which cancellation was requested."""
        for token in tokens:
            work = self.running.get(token)
            if work is not None and not work.wished:
                work.wished = True
                config = self._configs.get(work.job.pool)
                self._stop(work, CANCEL_GRACE if config is None else config.cancel_grace)
        self.done()

    def _stop(self, work: RunningClaim, grace: float) -> None:
        self.slots.cancel(work.place, grace, self._clock.now())

    # Called by the slots.

    def marked(self, attempt: Attempt[RunningClaim], mark: str) -> None:
        work = attempt.work
        if mark != "cancel":
            work.job = lifecycle.mark(work.job, mark)
        self._tell(events.JobMarked(work.job.pool, work.job, mark))

    def completed(self, attempt: Attempt[RunningClaim], value: Any, now: float) -> None:
        work = attempt.work
        end = self._end(attempt, None, now)
        change = self._executor.complete(work.errand, work.claim, value, end)
        if isinstance(change, Failed):
            self.slots.recount(attempt)
            self.failed(attempt, change, now)
        else:
            change = self._logged(change, work, value)
            self._finish(work, SettledClaim(change, None, work.errand.own(value)))
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
        self._tell(events.SlotStuck(work.job.pool, work.job, attempt.slot.id))
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
        self._tell(events.SlotFreed(work.job.pool, attempt.slot.id))
        if work.token in self.running:
            self._return(attempt)
        elif not work.lost:
            self.tray.release(work.token)
            self.stuck.discard(work.token)
        self._vacate(attempt)

    def vanished(self, attempt: Attempt[RunningClaim], why: str) -> None:
        job = attempt.work.job
        self._tell(events.WorkerVanished(job.pool, job, attempt.slot.id, why))

    def done(self) -> None:
        if self._outbox.waiting:
            self._outbox.hand_out()
        self.changed.set()

    # Called by the dispatcher.

    def receive(self) -> None:
        """Process what the dispatcher has delivered."""
        claims, news = self.line.claims, self.line.news
        while claims:
            self._start(claims[0], self._clock.now())
            # Pop last: `at_work` counts `claims` and `running`, and the claim must be in one of
            # them at any moment.
            claims.popleft()
        while news:
            delivery = news.popleft()
            for one in delivery.written:
                self.announcing.written(one)
            for one in delivery.refused:
                self.announcing.lost(one.change.job)
        self.done()

    def _start(self, claim: Claim, now: float) -> None:
        held = self.station.homes.hold
        errand = hand_back(claim) if self._refusing else self._executor.prepare(claim, held)
        if isinstance(errand, Change):
            self.tray.free(claim.slot)
            self.tray.put(SettledClaim(errand, begun=False))
            return
        work = errand if isinstance(errand, Unrunnable) else self._work(errand)
        if isinstance(work, Unrunnable):
            self.tray.free(claim.slot)
            self._despair(work)
            return
        self.running[claim.token] = work
        self.attention.pay()
        self._offered -= 1
        attempt = self.slots.start(work, now, claim.slot)
        self._tell(events.JobStarted(work.job.pool, work.job, attempt.slot.id))

    def _work(self, errand: StoredAttempt) -> RunningClaim | Unrunnable:
        try:
            errand = self._terms.timed(errand)
            return RunningClaim(errand, self, self._context, self.station)
        except Exception as error:
            return Unrunnable(errand.claim, Failed(error, permanent=True))

    def _despair(self, hopeless: Unrunnable) -> None:
        outcome = hopeless.outcome
        end = AttemptEnd(self._clock.wall(), 0.0, self._random.random(), fault_of(outcome.error))
        change = self._executor.settle(hopeless.claim, outcome, None, end)
        self.tray.put(SettledClaim(change, error_of(change.job, outcome)))

    # Steps.

    def _settle(
        self, attempt: Attempt[RunningClaim], outcome: Outcome, now: float, stuck: bool = False
    ) -> None:
        work = attempt.work
        if self._gives_back(attempt, outcome):
            self._return(attempt)
            return
        fault = fault_of_end(attempt, outcome)
        end = self._end(attempt, fault, now, stuck)
        if is_own_loss(outcome, work.job) and not work.wished:
            change = self._executor.lost(work.claim, work.errand.brief, end)
        else:
            policy = NO_RETRY if work.wished else work.errand.brief.policy
            change, outcome = self._executor.settle_surely(work.claim, outcome, policy, end)
        change = self._logged(change, work)
        failed = isinstance(outcome, Failed)
        self._finish(work, SettledClaim(change, error_of(change.job, outcome), failed=failed))

    def _logged(self, change: Change, work: RunningClaim, value: Any = None) -> Change:
        if work.job.session is None:
            return change
        tried = AttemptLine(work.job.attempts, self.station.heart.owner.id, work.errand.call)
        return logged(change, tried, self._clock.wall(), value)

    def _gives_back(self, attempt: Attempt[RunningClaim], outcome: Outcome) -> bool:
        """Return whether an attempt ended only because this process stopped it."""
        work = attempt.work
        if work.wished:
            return False
        if isinstance(outcome, Cancelled):
            return work.returned or work.swept or self.guard.ending
        # Code often turns a cancellation into an error of its own.
        spontaneous = isinstance(outcome, Failed) and not outcome.permanent and not outcome.mark
        return work.returned and spontaneous

    def _end(
        self,
        attempt: Attempt[RunningClaim],
        fault: Fault | None,
        now: float,
        stuck: bool = False,
    ) -> AttemptEnd:
        ran = now - attempt.began
        return AttemptEnd(self._clock.wall(), ran, self._random.random(), fault, stuck)

    def _return(self, attempt: Attempt[RunningClaim]) -> None:
        """Hand a claim back as if it had not begun; fail it if it began and must not run again."""
        work = attempt.work
        work.given_back = True
        change = stopped(work.claim, self._clock.wall(), attempt.entered)
        if change.job.status is Status.FAILED:
            self._finish(work, SettledClaim(self._logged(change, work), loss_of(change.job)))
        else:
            self.handed_back += not work.lost
            self._finish(work, SettledClaim(change))

    def _finish(self, work: RunningClaim, done: SettledClaim) -> None:
        """Pass the change of a claim to the dispatcher, unless the claim is lost."""
        close_output(work.shelf)
        # First: the dispatcher may check at this moment whether anything is left to be written.
        if not work.lost:
            self.tray.put(done)
        else:
            self.station.keeper.post(self.station.chronicle.over, (work.token,))
        del self.running[work.token]
        work.call = None

    def _vacate(self, attempt: Attempt[RunningClaim]) -> None:
        if not self.running:
            self.attention.relax()
        self._offer(attempt.slot.index)
        self.done()

    def _offer(self, slot: int) -> None:
        """Let a slot be claimed for, while the quota is not used up."""
        if self._quota == 0:
            return
        if self._quota is not None:
            self._quota -= 1
        self._offered += 1
        self.tray.free(slot)

    @property
    def spent(self) -> bool:
        """Whether the quota is used up and nothing runs any more."""
        return self._quota == 0 and not self._offered and not self.running

    def reclaim(self) -> None:
        self.slots.reclaim()

    async def go_down(self) -> None:
        """Hand back what runs, as long as the loop waits for it."""
        self.station.keeper.post(self.line.hand.close)
        self.stop_now(0.0)
        with suppress(TimeoutError, PoolhandError, CancelledError):
            async with asyncio.timeout(STOP_GRACE):
                while self.running:
                    self.changed.clear()
                    await self.changed.wait()
        self.tray.send()
        with suppress(PoolhandError, CancelledError):
            await self.station.keeper.ask(lambda: self.line.finish(LAST_WORDS))

    def _tell(self, event: events.Event) -> None:
        if self.events.live:
            self._outbox.put(event)
