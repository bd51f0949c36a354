"""A worker: slots of this process that run what a store hands out."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from poolhand.contract import Claim
from poolhand.errors import PoolhandError
from poolhand.execute.executor import (
    End,
    Errand,
    Executor,
    Hopeless,
    hand_back,
    is_own_loss,
)
from poolhand.farm.dead_letters import tell_dead
from poolhand.farm.hand import Delivery, Done, Hand
from poolhand.farm.station import Station
from poolhand.farm.stored_work import StoredWork
from poolhand.observe import events
from poolhand.pool.attempt import Attempt
from poolhand.pool.clock import Clock
from poolhand.pool.config import PoolConfig
from poolhand.pool.fault import error_of, fault_of
from poolhand.pool.outbox import Outbox
from poolhand.pool.slots import Slots
from poolhand.pool.watchdog import Watchdog
from poolhand.rules import lifecycle
from poolhand.rules.backoff import NO_RETRY, Retry
from poolhand.rules.job import Job, Status
from poolhand.rules.outcome import Cancelled, Failed, Outcome, unreadable

CANCEL_GRACE = 5.0


class Worker:
    """Runs claims in its slots, on one event loop; its hand on the keeper claims and writes.

    Every claim ends in exactly one change, unless its lease is lost: then whatever becomes of it
    here counts for nothing.
    """

    def __init__(
        self,
        station: Station,
        executor: Executor,
        slots: int,
        pools: tuple[str, ...] | None,
        configs: Mapping[str, PoolConfig],
    ) -> None:
        self.label = "worker"
        self.events = station.events
        self.stopped = False
        self.loop: AbstractEventLoop = asyncio.get_running_loop()
        self.running: dict[int, StoredWork] = {}
        self.handed_back = 0
        self._station = station
        self._executor = executor
        self._configs = configs
        runtime = station.keeper.runtime
        self._random = runtime.random
        self._clock = Clock(runtime)
        self._outbox = Outbox(self.events)
        self._watch = Watchdog.of(self.loop, runtime).join(self)
        self.slots: Slots[StoredWork] = Slots(
            "worker", self, self.loop, runtime, self._clock, self.events
        )
        self.slots.resize(slots)
        self.hand = Hand(station.keeper, station.heart, station.outcomes, pools, self._bring)
        self._done: list[Done] = []
        self._free: list[int] = [slot.index for slot in self.slots.all]
        self._released: list[int] = []
        self._sends_soon = False
        self._handing_back = False
        self._task: Task[None] | None = None
        self.heard: Callable[[Job], None] | None = None
        self.changed = asyncio.Event()

    def begin(self) -> None:
        """Start to claim; on the keeper's loop."""
        self._station.heart.holders.append(self)
        self._station.claimers.append(self.hand)
        self._task = self._station.keeper.start("worker", self.hand.run)
        self.loop.call_soon_threadsafe(self._send)

    async def finish(self, within: float) -> None:
        """Write what is done, for so many seconds at most, then no more; on the keeper's loop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self.hand.written()
        if self._task is not None:
            self._task.cancel()
        self._station.heart.holders.remove(self)
        self._station.claimers.remove(self.hand)

    @property
    def active(self) -> int:
        """How many jobs run whose end decides something."""
        return len(self.running)

    def now(self) -> float:
        return self._clock.now()

    def grow(self, slots: int) -> None:
        """Have at least so many slots."""
        before = {slot.index for slot in self.slots.all}
        if slots > len(before):
            self.slots.resize(slots)
            self._free += [slot.index for slot in self.slots.all if slot.index not in before]
            self._send_soon()

    def close(self) -> None:
        """Let go of threads and processes."""
        self.stopped = True
        self._watch.leave(self)
        self.slots.close()

    def tokens(self) -> Sequence[int]:
        return list(self.running)

    def lose(self, tokens: Sequence[int]) -> None:
        """Stop what runs under leases that are not ours any more; from any thread."""
        self.loop.call_soon_threadsafe(self._lose, tuple(tokens))

    def cancel(self, tokens: Sequence[int]) -> None:
        """Stop what somebody wants to be over; from any thread."""
        self.loop.call_soon_threadsafe(self._cancel, tuple(tokens))

    def stop_now(self, grace: float) -> None:
        """Stop what runs and give it back, as if it had not begun."""
        self._handing_back = True
        for work in list(self.running.values()):
            self._stop(work, grace)
        self.done()

    # What the slots tell.

    def marked(self, attempt: Attempt[StoredWork], mark: str) -> None:
        work = attempt.work
        if mark != "cancel":
            work.job = lifecycle.mark(work.job, mark)
        self._tell(events.JobMarked(work.job.pool, work.job, mark))

    def completed(self, attempt: Attempt[StoredWork], value: Any, now: float) -> None:
        work = attempt.work
        end = self._end(attempt, None, now)
        change = self._executor.complete(work.errand, work.claim, value, end)
        if isinstance(change, Failed):
            self.failed(attempt, change, now)
        else:
            self._finish(work, Done(change, None, value if work.errand.code is None else None))
            self._vacate(attempt)

    def failed(self, attempt: Attempt[StoredWork], outcome: Outcome, now: float) -> None:
        self._settle(attempt, outcome, now)
        self._vacate(attempt)

    def gave_up(self, attempt: Attempt[StoredWork], outcome: Outcome, now: float) -> None:
        work = attempt.work
        self._tell(events.SlotStuck(work.job.pool, work.job, attempt.slot.id))
        if not self._gives_back(work, outcome):
            self._settle(attempt, outcome, now, stuck=True)
        self.done()

    def recovered(self, attempt: Attempt[StoredWork], now: float) -> None:
        work = attempt.work
        self._tell(events.SlotFreed(work.job.pool, attempt.slot.id))
        if work.token in self.running:
            # It was to be given back, which was not safe while its code ran.
            self._finish(work, Done(hand_back(work.claim)))
        elif not work.lost:
            self._released.append(work.token)
        self._vacate(attempt)

    def vanished(self, attempt: Attempt[StoredWork], why: str) -> None:
        job = attempt.work.job
        self._tell(events.WorkerVanished(job.pool, job, attempt.slot.id, why))

    def done(self) -> None:
        if self._outbox.waiting:
            self._outbox.hand_out()
        self.changed.set()

    # What the hand brings.

    def _bring(self, delivery: Delivery) -> None:
        self.loop.call_soon_threadsafe(self._receive, delivery)

    def _receive(self, delivery: Delivery) -> None:
        now = self._clock.now()
        for claim in delivery.claims:
            self._start(claim, now)
        for one in delivery.written:
            self._announce(one)
        for one in delivery.refused:
            self._tell(events.LeaseLost(one.change.job.pool, one.change.job))
        self.done()

    def _start(self, claim: Claim, now: float) -> None:
        if self._handing_back or self.stopped:
            self._free.append(claim.slot)
            self._put(Done(hand_back(claim)))
            return
        errand = self._executor.prepare(claim)
        work = errand if isinstance(errand, Hopeless) else self._work(errand)
        if isinstance(work, Hopeless):
            self._free.append(claim.slot)
            self._give_up_on(work)
            return
        self.running[claim.token] = work
        attempt = self.slots.start(work, now, claim.slot)
        self._tell(events.JobStarted(work.job.pool, work.job, attempt.slot.id))

    def _work(self, errand: Errand) -> StoredWork | Hopeless:
        try:
            return StoredWork(errand, self)
        except PoolhandError as error:
            return Hopeless(errand.claim, Failed(error, permanent=True))

    def _give_up_on(self, hopeless: Hopeless) -> None:
        outcome = hopeless.outcome
        end = End(self._clock.wall(), 0.0, self._random.random(), fault_of(outcome.error))
        change = self._executor.settle(hopeless.claim, outcome, hopeless.policy, end)
        self._put(Done(change, error_of(change.job, outcome)))

    def _announce(self, one: Done) -> None:
        job = one.change.job
        if job.status.waiting:
            self._tell(events.JobRetried(job.pool, job))
            return
        self._tell(events.JobEnded(job.pool, job))
        if self.heard is not None:
            self.heard(job)
        config = self._configs.get(job.pool)
        if job.status is Status.FAILED and config is not None and config.on_dead is not None:
            tell_dead(config.on_dead, job, self.loop, self.events)

    # Steps.

    def _settle(
        self, attempt: Attempt[StoredWork], outcome: Outcome, now: float, stuck: bool = False
    ) -> None:
        work = attempt.work
        if self._gives_back(work, outcome):
            self.handed_back += 1
            self._finish(work, Done(hand_back(work.claim)))
            return
        error = outcome.error if isinstance(outcome, Failed) else None
        end = self._end(attempt, error, now, stuck)
        if is_own_loss(outcome, work.job) and not attempt.unwanted:
            change = self._executor.lost(work.claim, work.errand.brief, end)
        else:
            policy = NO_RETRY if attempt.unwanted else work.errand.brief.policy
            change, outcome = self._change(work, outcome, policy, end)
        self._finish(work, Done(change, error_of(change.job, outcome)))

    def _change(
        self, work: StoredWork, outcome: Outcome, policy: Retry | None, end: End
    ) -> tuple[Any, Outcome]:
        try:
            return self._executor.settle(work.claim, outcome, policy, end), outcome
        except Exception:
            outcome = unreadable(work.id)
            return self._executor.settle(work.claim, outcome, policy, end), outcome

    def _gives_back(self, work: StoredWork, outcome: Outcome) -> bool:
        return self._handing_back and isinstance(outcome, Cancelled) and not work.wished

    def _end(
        self,
        attempt: Attempt[StoredWork],
        error: BaseException | None,
        now: float,
        stuck: bool = False,
    ) -> End:
        fault = None if error is None else fault_of(error)
        ran = now - attempt.began
        return End(self._clock.wall(), ran, self._random.random(), fault, stuck)

    def _finish(self, work: StoredWork, done: Done) -> None:
        """Hand a claim back to the keeper, unless it is not ours any more."""
        del self.running[work.token]
        work.call = None
        if not work.lost:
            self._put(done)

    def _vacate(self, attempt: Attempt[StoredWork]) -> None:
        self._free.append(attempt.slot.index)
        self._send_soon()
        self.done()

    def _put(self, done: Done) -> None:
        self._done.append(done)
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._sends_soon:
            self._sends_soon = True
            self.loop.call_soon(self._send)

    def _send(self) -> None:
        """Give the keeper what has gathered in this turn of the loop."""
        self._sends_soon = False
        done, self._done = self._done, []
        free, self._free = self._free, []
        released, self._released = self._released, []
        self._station.keeper.post(self.hand.take, done, free, released)

    def _lose(self, tokens: tuple[int, ...]) -> None:
        for token in tokens:
            work = self.running.get(token)
            if work is not None and not work.lost:
                work.lost = True
                self._tell(events.LeaseLost(work.job.pool, work.job))
                self._stop(work, CANCEL_GRACE)
        self.done()

    def _cancel(self, tokens: tuple[int, ...]) -> None:
        for token in tokens:
            work = self.running.get(token)
            if work is not None and not work.wished:
                work.wished = True
                config = self._configs.get(work.job.pool)
                self._stop(work, CANCEL_GRACE if config is None else config.cancel_grace)
        self.done()

    def _stop(self, work: StoredWork, grace: float) -> None:
        self.slots.cancel(work.place, grace, self._clock.now())

    def _tell(self, event: events.Event) -> None:
        if self.events.live:
            self._outbox.put(event)
