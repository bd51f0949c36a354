"""Admission to an in-memory pool: from a call to a place at the desk, or a refusal."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from poolhand.context import running
from poolhand.errors import Draining, IdempotencyConflict, NoFreeSlot, PoolFull, Refused
from poolhand.misuse import SUBMIT_OPTIONS, check_no_option
from poolhand.observe import events
from poolhand.pool.config import draining_text
from poolhand.pool.engine.work import Work
from poolhand.pool.options import SubmitTerms, module_of, name_of, where_to_run
from poolhand.pool.slots.process_parent import pack
from poolhand.rules.explain import next_free
from poolhand.rules.job import Ids, Status
from poolhand.rules.queue.backpressure import FailFast
from poolhand.rules.queue.desk import Admitted, Joined, Parked, RefusedEntry, Rejected, Verdict
from poolhand.rules.queue.idempotency import function_digest, key_conflict

if TYPE_CHECKING:
    from poolhand.pool.engine.engine import Engine


class PoolAdmission:
    """Creates work from calls, offers it to the desk and executes the verdict."""

    def __init__(self, engine: Engine, ids: Ids) -> None:
        self.closed = False
        self._engine = engine
        self._pool = engine.config.name
        self._policy = engine.config.backpressure
        self._run_in = engine.config.run_in
        self._events = engine.events
        self._outbox = engine.outbox
        self._tally = engine.tally
        self._desk = engine.desk
        self._clock = engine.clock
        self._alarm = engine.alarm
        self._loop = engine.loop
        self._thread = engine.thread
        self._ids = ids

    def offer(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        terms: SubmitTerms,
        may_wait: bool,
    ) -> Work:
        """Submit a call and return its work, which may be an existing one with the same key.

        The work may be parked, if its submitter may wait.
        """
        run_in = where_to_run(fn, terms.options.run_in, self._run_in)
        if kwargs and not SUBMIT_OPTIONS.isdisjoint(kwargs):
            check_no_option(fn, kwargs)
        if get_ident() != self._thread or not self._loop.is_running():
            self._engine.check_here()
        if self.closed:
            raise self._refusal(Draining)
        now = self._clock.now()
        call: Callable[[], Any] | bytes = partial(fn, *args, **kwargs) if args or kwargs else fn
        if run_in == "process":
            # Pack here, so that the submitter learns at once that a call cannot be sent.
            call = pack(fn, args, kwargs)
        name = getattr(fn, "__qualname__", None) or name_of(fn)
        work = self._work(call, run_in, terms, name, now)
        if terms.options.idempotency_key is not None:
            work.called = module_of(fn), name, function_digest(fn, args, kwargs)
        return self._admit(work, now, may_wait)

    def again(self, dead: Work) -> Work:
        """Submit a dead job again, as a new job with the same call, options and context."""
        if self.closed:
            raise self._refusal(Draining)
        assert dead.call is not None
        now = self._clock.now()
        again = self._work(dead.call, dead.run_in, dead.terms.rerun(), dead.name, now)
        again.context = dead.context
        if dead.options.idempotency_key is not None:
            again.called = dead.called
        return self._admit(again, now, may_wait=True)

    def close(self) -> None:
        """Refuse new work and wake the blocked submitters."""
        self.closed = True
        for work in self._desk.withdraw_all():
            work.wake()

    @property
    def last(self) -> tuple[str, int]:
        """The head and the number of the last id that was assigned."""
        return self._ids.last

    @property
    def blocked_submitters(self) -> int:
        return sum(len(work.waiters or ()) for work in self._desk.blocked_submitters)

    def park(self, work: Work) -> Future[None]:
        """Return the future that the submitter of a parked job waits for."""
        future = work.add_waiter()
        self._engine.set_alarm()
        if self._events.live:
            count = self.blocked_submitters
            self._outbox.put(events.SubmitterParked(self._pool, work.snapshot(), count))
            self._engine.done()
        return future

    def welcome(self) -> None:
        """Wake the submitters of parked jobs that were admitted."""
        admitted = self._desk.admitted[:]
        self._desk.admitted.clear()
        for work in admitted:
            self._accept(work, blocked=True)
            work.wake()

    def leave(self, work: Work, future: Future[None]) -> None:
        """Drop one submitter of a parked job; without submitters the job is removed."""
        work.drop_waiter(future)
        if not work.waiters and work.place is self._desk.blocked_submitters:
            self._withdraw(work)

    def withdraw(self, work: Work) -> None:
        """Cancel a job that was admitted at the moment its submitter gave up.

        It has no other ticket, unless another submitter uses the same key.
        """
        if work.accepted and work.options.idempotency_key is None:
            self._engine.cancel(work, "submitter")
        elif work.accepted:
            work.caller_left()

    def drained(self) -> Refused:
        """Return the error for a submit to a draining pool."""
        return self._refusal(Draining)

    def full(self) -> Refused:
        """Return the error for a submit to a full pool."""
        return self._refusal(NoFreeSlot if isinstance(self._policy, FailFast) else PoolFull)

    def _withdraw(self, work: Work) -> None:
        """Remove a parked job; the one behind it may be able to start at once."""
        now = self._clock.now()
        self._desk.withdraw(work, now)
        self._engine.set_alarm()
        self._engine.pump(now)
        self._engine.done()

    def _work(
        self,
        call: Callable[[], Any] | bytes,
        run_in: str,
        terms: SubmitTerms,
        name: str,
        now: float,
    ) -> Work:
        work = Work(call, run_in, terms, self._engine, name, now)
        work.number = self._ids.next(now)
        work.head = self._ids.head
        inside = running.get()
        if inside is not None:
            work.job = replace(work.job, submitted_by=inside.submitter)
        if terms.is_timed:
            work.job, work.window = terms.timed(work.job, now, self._clock.wall())
        return work

    def _admit(self, work: Work, now: float, may_wait: bool) -> Work:
        desk = self._desk
        if self._alarm.at <= now:
            # Handle due timers first, or a place that is about to become free would count as taken.
            self._engine.pump(now)
        verdict = desk.admit(work, now, work.terms.options.rerun_failed)
        if verdict is desk.taken:
            self._accept(work)
            if desk.running < desk.limit:
                self._engine.pump(now)
        else:
            work = self._carry_out(verdict, work, now, may_wait)
        if self._outbox.waiting:
            self._engine.done()
        return work

    def _carry_out(self, verdict: Verdict[Work], work: Work, now: float, may_wait: bool) -> Work:
        match verdict:
            case Admitted(victim=victim):
                self._accept(work)
                if victim is not None:
                    self._engine.reject(victim, now, work.id)
                self._engine.pump(now)
            case Joined(entry=owner):
                if not work.is_same_call(owner):
                    raise self._conflict(work, owner)
                if owner.place is self._desk.blocked_submitters and not may_wait:
                    raise self.full()
                owner.shared = True
                if self._events.live:
                    self._outbox.put(events.JobJoined(self._pool, owner.snapshot()))
                return owner
            case Parked():
                if not may_wait:
                    self._withdraw(work)
                    raise self.full()
            case Rejected():
                self._accept(work, status=Status.REJECTED)
                self._engine.reject(work, now)
            case RefusedEntry():
                raise self.full()
        return work

    def _accept(self, work: Work, blocked: bool = False, status: Status = Status.QUEUED) -> None:
        """Record that a job was accepted."""
        work.accepted = True
        self._tally.submitted += 1
        if self._events.live:
            job = work.snapshot()
            self._outbox.put(events.JobSubmitted(self._pool, job))
            tracer = self._events.tracer
            if tracer is not None:
                assert work.context is not None
                job = job if status is Status.QUEUED else replace(job, status=status)
                tracer.submitted(job, work.context, self._clock.wall(), blocked)
        if work.window is not None:
            self._engine.set_alarm()

    def _conflict(self, work: Work, owner: Work) -> IdempotencyConflict:
        key = work.options.idempotency_key or ""
        # Without a snapshot of the owner: that would count as a look at its failure.
        error = key_conflict(work.full_name, key, owner.id, owner.full_name)
        self._tell_refused(error.code, str(self._policy))
        return error

    def _tell_refused(self, code: str, policy: str) -> None:
        if not self._events.live:
            return
        self._outbox.put(events.SubmitRefused(self._pool, code, policy))
        tracer = self._events.tracer
        if tracer is not None:
            tracer.refused(self._pool, self._engine.pool_id, code)
        self._engine.done()

    def _refusal(self, kind: type[Refused]) -> Refused:
        policy = "draining" if kind is Draining else str(self._policy)
        self._tell_refused(kind.code, policy)
        if kind is Draining:
            return Draining(draining_text(self._pool), policy=policy)
        return kind(
            f"pool {self._pool!r} is full ({self._desk.running} running, "
            f"{self._desk.waiting} waiting, {policy}); try again later or enlarge the pool",
            retry_after=next_free(self._engine.slots.average_seconds(), self._desk.slots),
            policy=policy,
        )
