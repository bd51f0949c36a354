"""The intake of a pool: from a call to a place at the desk, or a refusal."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from poolhand.context import running
from poolhand.errors import Draining, NoFreeSlot, PoolFull, Refused, UsageError
from poolhand.observe import events
from poolhand.pool.options import Terms
from poolhand.pool.work import Work, where_to_run
from poolhand.rules.backpressure import FailFast
from poolhand.rules.desk import Admitted, Joined, Parked, RefusedEntry, Rejected
from poolhand.rules.ids import Ids

if TYPE_CHECKING:
    from poolhand.pool.engine import Engine


class Intake:
    """Makes work out of calls, brings it to the desk and carries out the verdict."""

    def __init__(self, engine: Engine, ids: Ids) -> None:
        self.closed = False
        self._engine = engine
        self._pool = engine.config.name
        self._policy = engine.config.backpressure
        self._events = engine.events
        self._tally = engine.tally
        self._desk = engine.desk
        self._clock = engine.clock
        self._new_id = ids.new

    def offer(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        terms: Terms,
    ) -> Work:
        """Take a call in; return its work, which may be somebody's with the same key."""
        run_in = where_to_run(fn, terms.options.run_in)
        if self.closed:
            raise self._refusal(Draining)
        now = self._clock.now()
        call = partial(fn, *args, **kwargs) if args or kwargs else fn
        return self._admit(self._work(call, run_in, terms, now), now)

    def rerun(self, job_id: str) -> Work:
        """Run a dead job again, as a new job with the same call and options."""
        if self.closed:
            raise self._refusal(Draining)
        dead = self._engine.dead.take(job_id)
        if dead is None or dead.call is None:
            raise UsageError(f"job {job_id!r} is no dead job of pool {self._pool!r}")
        now = self._clock.now()
        again = self._work(dead.call, dead.run_in, dead.terms.rerun(), now)
        again.context = dead.context
        return self._admit(again, now)

    def close(self) -> None:
        """Refuse new work, and the submitters that wait for a place."""
        self.closed = True
        while (work := self._desk.parked.first) is not None:
            self._desk.unpark(work)
            work.failure = (self._refusal(Draining), None)
            work.wake()

    @property
    def blocked_submitters(self) -> int:
        return sum(len(work.waiters or ()) for work in self._desk.parked)

    def welcome(self) -> None:
        """Tell the submitters of parked jobs that they have got in."""
        admitted = self._desk.admitted[:]
        self._desk.admitted.clear()
        for work in admitted:
            self._accept(work)
            work.wake()

    def leave(self, work: Work, future: Future[None]) -> None:
        """Let one submitter of a parked job go; the last one takes the job along."""
        work.drop_waiter(future)
        if not work.waiters and work.place is self._desk.parked:
            self._desk.unpark(work)

    def turn_away(self, work: Work) -> Refused:
        """Let a parked job go whose submitter cannot wait, unless others wait for it too."""
        if not work.waiters:
            self._desk.unpark(work)
        return self.full()

    def full(self) -> Refused:
        """Return the refusal of a pool that has no room."""
        return self._refusal(NoFreeSlot if isinstance(self._policy, FailFast) else PoolFull)

    def _work(self, call: Callable[[], Any], run_in: str, terms: Terms, now: float) -> Work:
        at = self._clock.wall(now)
        work = Work(call, run_in, terms, self._engine, self._new_id(), now, at)
        inside = running.get()
        if inside is not None:
            work.job = replace(work.job, submitted_by=inside.submitter)
        if terms.is_timed:
            work.job, work.window = terms.timed(work.job, now, at)
        return work

    def _admit(self, work: Work, now: float) -> Work:
        desk = self._desk
        verdict = desk.admit(work, now, work.terms.options.rerun_failed)
        if verdict is desk.taken:
            self._accept(work)
            if desk.running < desk.limit:
                self._engine.pump(now)
            return work
        match verdict:
            case Admitted(victim=victim):
                self._accept(work)
                if victim is not None:
                    self._engine.reject(victim, now)
                self._engine.pump(now)
            case Joined(entry=owner):
                if self._events.live:
                    self._events.emit(events.JobJoined(self._pool, owner.snapshot()))
                return owner
            case Parked():
                if self._events.live:
                    parked = events.SubmitterParked(self._pool, work.snapshot(), desk.parked.size)
                    self._events.emit(parked)
            case Rejected():
                self._accept(work)
                self._engine.reject(work, now)
            case RefusedEntry():
                raise self.full()
        return work

    def _accept(self, work: Work) -> None:
        """Note that a job is ours."""
        self._tally.submitted += 1
        if self._events.live:
            self._events.emit(events.JobSubmitted(self._pool, work.snapshot()))
        if work.window is not None:
            self._engine.set_alarm()

    def _refusal(self, kind: type[Refused]) -> Refused:
        policy = str(self._policy)
        if self._events.live:
            self._events.emit(events.SubmitRefused(self._pool, kind.code, policy))
        if kind is Draining:
            text = f"pool {self._pool!r} is draining and takes no new work"
            return Draining(text, policy="draining")
        return kind(
            f"pool {self._pool!r} is full ({self._desk.running} running, "
            f"{self._desk.waiting} waiting, {policy}); try again later or give it more room",
            retry_after=self._engine.average_seconds(),
            policy=policy,
        )
