"""The dispatcher of a worker: claims jobs and writes outcomes for it, on the store thread."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from poolhand.contract import Change, Claim, ClaimRequest, ReplacedJob
from poolhand.durable.catalogue import PublishedTasks
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.worker.executor import hand_back, stopped, unwritable
from poolhand.errors import StoreError
from poolhand.pool.engine.drain import STOP_GRACE
from poolhand.rules.deadlock import WorkerSlots

if TYPE_CHECKING:
    from poolhand.durable.worker.runner import ClaimRunner

POLL = 1.0  # seconds: signals may be lost, so the store is polled this often
RETRY_FIRST, RETRY_MOST = 0.05, 1.0
STEP_ASIDE = 0.05  # seconds, so that workers which can run a handed-back job get to claim it


class SettledClaim(Struct, frozen=True):
    """The change of a claimed job, and its error, for waiters in this process.

    `value` is the return value of a closure, which a store keeps only if it is JSON. `poor`: the
    change replaces one that no store could take. A job that had not `begun` is handed back without
    a report. `failed`: the attempt ended with an error, whatever becomes of the job.
    """

    change: Change
    error: BaseException | None = None
    value: Any = None
    poor: bool = False
    begun: bool = True
    failed: bool = False


class Delivery(Struct, frozen=True):
    """What a dispatcher delivers to its worker beside claims: which outcomes were written."""

    written: Sequence[SettledClaim] = ()
    refused: Sequence[SettledClaim] = ()


class Batch(Struct):
    """What a worker sends: settled claims, free slots, and tokens whose stuck code has ended."""

    done: list[SettledClaim] = []
    free: list[int] = []
    released: list[int] = []


class Dispatcher:
    """Settles finished claims and claims for free slots, both in one write.

    What a worker sends within one turn of its loop is one batch; while a write is in flight, later
    batches collect for the next. A failed write is kept and retried: a finished job is not lost
    because a store is away for a moment.

    `settle`, `free`, `release`, `send` and `begin` run on the worker's loop, all else on the store
    thread's. New claims and written outcomes wait in `claims` and `deliveries` for the worker.
    """

    def __init__(
        self, connection: StoreConnection, runner: ClaimRunner, catalogue: PublishedTasks | None
    ) -> None:
        self.task: Task[None] | None = None
        self.claims: deque[Claim] = deque()
        self.deliveries: deque[Delivery] = deque()
        self.catalogue = catalogue
        self._connection = connection
        self._thread = connection.thread
        self._outcomes = connection.outcomes
        self._runner = runner
        self._outgoing, self._sends_soon = Batch(), False
        self._mail: deque[Batch] = deque()
        self._done: list[SettledClaim] = []
        self._free: list[int] = []
        self._released: list[int] = []
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        self._retry_in = 0.0
        self._one_by_one = self._aside = self._writing = False
        self._claiming = True
        self._closing = self._deserted = False

    # Called by the worker, on its loop.

    def settle(self, done: SettledClaim) -> None:
        """Have the change of a claim written."""
        self._outgoing.done.append(done)
        self._send_soon()

    def free(self, slot: int) -> None:
        """Claim a job for this slot."""
        self._outgoing.free.append(slot)
        self._send_soon()

    def release(self, token: int) -> None:
        """Have the slot of stuck code released, which has ended."""
        self._outgoing.released.append(token)
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._sends_soon:
            self._sends_soon = True
            self._runner.loop.call_soon(self.send)

    def send(self) -> None:
        """Pass the batch to the store thread; it is written even if that wake-up is lost."""
        self._sends_soon = False
        batch = self._outgoing
        if batch.done or batch.free or batch.released:
            # Queue it before it is replaced: a check from the store thread sees it in one place or
            # the other.
            self._mail.append(batch)
            self._outgoing = Batch()
            self._thread.post(self._wake.set)

    def begin(self) -> None:
        """Register the worker with the store thread."""
        self._thread.post(self._begin)

    # Called by the store connection, on the store thread.

    def _begin(self) -> None:
        if not self._thread.closed:
            self._connection.heartbeat.join(self)
            self.task = self._thread.start("worker", self.run)

    async def finish(self, within: float) -> None:
        """Write what is settled, for up to `within` seconds.

        Writes that take longer, and jobs that have not ended, are written when that is possible.
        """
        self.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._ended()
                if not self.at_work:
                    self._connection.heartbeat.part(self)

    @property
    def at_work(self) -> bool:
        """Whether code runs whose end is still to be written."""
        runner, batch = self._runner, self._outgoing
        unsent = batch.done or batch.released
        return bool(self.claims or runner.running or len(runner.stuck) or unsent)

    def tokens(self) -> Sequence[int]:
        """Return the tokens of the running claims."""
        return list(self._runner.running)

    def slots_held(self, awaited: dict[str, list[str]]) -> WorkerSlots:
        """Return the slots and what runs there, given which ids each job awaits."""
        slots = self._runner.slots
        # Copy to a list first: that is atomic, while jobs begin and end on another thread.
        ids = [work.id for work in list(self._runner.running.values())]
        ids += [claim.job.id for claim in list(self.claims)]
        held = {id: tuple(awaited.get(id, ())) for id in ids}
        return WorkerSlots(len(slots.all), self.pools(), held, slots.stuck)

    def pools(self) -> tuple[str, ...] | None:
        """Return the names of the pools that the worker serves, None for all."""
        return self._runner.choose()[0]

    def hint(self) -> None:
        """Signal that there may be something to claim."""
        # Wake even if no slot is free: the free slots may be part of a claim request in flight,
        # which may have been decided before the event that this hint announces.
        if self._claiming:
            self._wake.set()

    def report_reaped(self, changes: Sequence[Change], crashed: bool) -> None:
        """Report jobs of reaped owners as if their attempts had ended here."""
        self._deliver(Delivery([SettledClaim(change, failed=crashed) for change in changes]))

    def lose(self, tokens: Sequence[int]) -> None:
        """Stop the jobs whose claims are lost."""
        self._call(self._runner.lose, tokens)

    def give_up(self) -> None:
        """Stop everything and hand it back, as the lease may soon expire."""
        self._call(self._runner.give_up)

    def cancel(self, tokens: Sequence[int]) -> None:
        """Stop the jobs for which cancellation was requested."""
        self._call(self._runner.cancel, tokens)

    def stop_worker(self) -> None:
        """Stop, and hand back what runs."""
        self.close()
        self._call(self._runner.stop_now, STOP_GRACE)

    async def stop_claiming(self) -> None:
        """Claim no more; claims that a write in flight still returns are handed back from here."""
        self._claiming = False

    def close(self) -> None:
        """End when nothing is left to be written."""
        self._claiming, self._closing = False, True
        self._wake.set()

    async def _ended(self) -> None:
        """Wait until all is written; do not wait for running code."""
        while not self._is_over() and (self._has_mail or not self.at_work):
            self._looked.clear()
            await self._looked.wait()

    def _deliver(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self._call(self._runner.receive)

    def _call(self, call: Callable[..., None], *args: Any) -> None:
        """Make a call on the worker's loop."""
        with suppress(RuntimeError):
            # RuntimeError: the loop is closed, which `run` detects by itself.
            self._runner.loop.call_soon_threadsafe(call, *args)

    async def run(self) -> None:
        while not self._is_over():
            await self._woken()
            if self._runner.loop.is_closed() and not self._deserted:
                self._deserted = True
                self._done += self._left_behind()
                self.close()
            self._fetch()
            if self._done or self._released or (self._free and self._claims):
                await self._write()
            self._looked.set()
        self._connection.heartbeat.part(self)

    def _left_behind(self) -> list[SettledClaim]:
        """Return what is to be written for a worker whose event loop has been closed."""
        self.send()
        self._mail.append(Batch(released=list(self._runner.stuck)))
        at = self._thread.runtime.wall()
        begun = [work.claim for work in self._runner.running.values() if not work.lost]
        changes = [stopped(claim, at) for claim in begun]
        changes += [hand_back(claim) for claim in self.claims]
        return [SettledClaim(change) for change in changes]

    @property
    def _claims(self) -> bool:
        return self._claiming and not self._aside and self._connection.heartbeat.steady

    @property
    def _has_mail(self) -> bool:
        return bool(self._mail or self._done or self._released or self._writing)

    def _is_over(self) -> bool:
        at_work = self.at_work and not self._deserted
        return self._closing and not (self._has_mail or at_work)

    def _fetch(self) -> None:
        while self._mail:
            batch = self._mail.popleft()
            self._done += batch.done
            self._free += batch.free
            self._released += batch.released

    async def _woken(self) -> None:
        if self._retry_in:
            await asyncio.sleep(self._retry_in)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL):
                await self._wake.wait()
        self._wake.clear()

    async def _write(self) -> None:
        most = 1 if self._one_by_one else len(self._done)
        if not self._claiming:
            # The last one put back is first in the queue: in this order the oldest claim is.
            self._done.sort(key=lambda one: one.change.token * one.change.puts_back, reverse=True)
        done, self._done = self._done[:most], self._done[most:]
        if not all(one.begun or one.change.job.waits_for for one in done):
            self._step_aside()
        free, self._free = (self._free, []) if self._claims else ([], self._free)
        # With the last settled claims: until those are written, the store does not know the slots
        # as stuck.
        released, self._released = ([], self._released) if self._done else (self._released, [])
        self._writing = True
        try:
            replaced = await self._exchange(done, free, released)
        except BaseException as error:
            self._free = free + self._free
            self._released = released + self._released
            self._done = self._kept(done, error) + self._done
            self._fail(error)
            return
        finally:
            self._writing = False
        self._retry_in = 0.0
        self._one_by_one = self._one_by_one and bool(self._done)
        if self._done:
            self._wake.set()
        if not self._one_by_one:
            self._thread.well("worker")
        taken = {claim.slot for claim in replaced.claims}
        self._free += [slot for slot in free if slot not in taken]
        self._pass_on(done, replaced)

    def _step_aside(self) -> None:
        """Claim nothing for a moment: jobs handed back must not return to this worker at once."""
        self._aside = True
        self._thread.loop.call_later(STEP_ASIDE, self._step_back)

    def _step_back(self) -> None:
        self._aside = False
        self._wake.set()

    def _fail(self, error: BaseException) -> None:
        """Schedule a retry and report the error."""
        self._retry_in = min(RETRY_MOST, max(RETRY_FIRST, self._retry_in * 2))
        if not isinstance(error, Exception):
            raise error
        self._thread.trouble("worker", error)

    def _kept(self, done: list[SettledClaim], error: BaseException) -> list[SettledClaim]:
        """Return the settled claims to retry after a failure.

        A store that is away comes back. Any other error is caused by one change that cannot be
        written: retrying one by one finds it, so that it does not block the others.
        """
        if isinstance(error, StoreError) or not isinstance(error, Exception):
            return done
        if len(done) == 1:
            (one,) = done
            return (
                [] if one.poor else [SettledClaim(unwritable(one.change, error), error, poor=True)]
            )
        self._one_by_one = True
        return done

    async def _exchange(
        self, done: list[SettledClaim], free: list[int], released: list[int]
    ) -> ReplacedJob:
        connection, store, wanted = self._connection, self._thread.store, None
        if free:
            owner = connection.heartbeat.owner.id
            wanted = ClaimRequest(owner, tuple(free), *self._runner.choose())
        if not done:
            return await store.replace((), wanted, released)
        for one in done:
            if one.value is not None or one.error is not None:
                self._outcomes.expect(one.change.job, one.value, one.error)
        changes = connection.job_api.closing([one.change for one in done])
        changes = await connection.event_writer.closing(changes)
        replaced = await store.replace(changes, wanted, released)
        tokens = [change.token for change in changes]
        connection.event_writer.over(tokens)
        connection.job_api.over(tokens)
        return replaced

    def _pass_on(self, done: list[SettledClaim], replaced: ReplacedJob) -> None:
        """Pass new claims and written outcomes to the worker and to waiters of this process."""
        claims = replaced.claims
        if claims and not self._claiming:
            # Claimed by a write in flight when the worker stopped claiming.
            self._done += [SettledClaim(hand_back(claim), begun=False) for claim in claims]
            self._wake.set()
            claims = ()
        if not done and not claims:
            return
        at = self._thread.runtime.monotonic()
        for claim in claims:
            self._outcomes.meet(claim.job, at)
        written: list[SettledClaim] = []
        refused: list[SettledClaim] = []
        for one, made in zip(done, replaced.made, strict=True):
            job = one.change.job
            (written if made else refused).append(one)
            if not made:
                self._outcomes.retract(job)
            elif job.status.terminal:
                self._outcomes.ended(job)
            else:
                self._outcomes.meet(job, at)
        self.claims += claims
        self._deliver(Delivery(written, refused))
