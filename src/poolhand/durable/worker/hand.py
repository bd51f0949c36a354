"""The dispatcher of a worker: claims jobs and writes outcomes for it, on the store thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from poolhand.contract import Change, Claim, ClaimRequest, ReplacedJob
from poolhand.durable.client.outcomes import Outcomes
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.durable.leases.heartbeat import Heartbeat
from poolhand.durable.streams.event_writer import EventWriter
from poolhand.durable.streams.job_api import JobStoreApi
from poolhand.durable.worker.executor import hand_back, unwritable
from poolhand.errors import StoreError

POLL = 1.0  # seconds: signals may be lost, so the store is polled this often
RETRY_FIRST, RETRY_MOST = 0.05, 1.0
STEP_ASIDE = 0.05  # seconds, so that workers which can run a handed-back job get to claim it


# The pools to claim from (None for all), the causes to claim by, and the causes to skip.
Choose = Callable[[], tuple[tuple[str, ...] | None, frozenset[str], frozenset[str]]]


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
    """A dispatcher's delivery to its worker: new claims, and which settled claims were written."""

    claims: tuple[Claim, ...]
    written: tuple[SettledClaim, ...] = ()
    refused: tuple[SettledClaim, ...] = ()


class ServedPools(Protocol):
    """The worker that a dispatcher serves, which runs on another loop."""

    @property
    def at_work(self) -> bool:
        """Whether code runs whose end is still to be written."""

    @property
    def gone(self) -> bool:
        """Whether the worker's loop is closed: nothing can be delivered any more."""

    def deliver(self, delivery: Delivery) -> None: ...

    def left_behind(self) -> list[SettledClaim]:
        """Return the claims to hand back when the worker's event loop has been closed."""


class Dispatcher:
    """Settles finished claims and claims for free slots, both in one write.

    While a write is in flight, later calls collect for the next. A failed write is kept and
    retried: a finished job is not lost because a store is away for a moment.
    """

    def __init__(
        self,
        keeper: StoreThread,
        heart: Heartbeat,
        outcomes: Outcomes,
        telling: tuple[EventWriter, JobStoreApi],
        choose: Choose,
        served: ServedPools,
    ) -> None:
        self._keeper = keeper
        self._heart = heart
        self._outcomes = outcomes
        self._chronicle, self._ledger = telling
        self._choose = choose
        self._served = served
        self._mail: deque[tuple[Sequence[SettledClaim], Sequence[int], Sequence[int]]] = deque()
        self._done: list[SettledClaim] = []
        self._free: list[int] = []
        self._released: list[int] = []
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        self._retry_in = 0.0
        self._one_by_one = False
        self._aside = False
        self._claiming = True
        self._closing = self._deserted = False
        self._writing = False

    def put(
        self, done: Sequence[SettledClaim], free: Sequence[int], released: Sequence[int]
    ) -> None:
        """Queue settled claims, free slots, and tokens whose stuck code has ended; from any thread.

        Everything queued is written, even if the wake-up of the store thread is lost.
        """
        self._mail.append((done, free, released))
        self._keeper.post(self._wake.set)

    def hint(self) -> None:
        # Wake even if no slot is free: the free slots may be part of a claim request in flight,
        # which may have been decided before the event that this hint announces.
        if self._claiming:
            self._wake.set()

    async def stop_claiming(self) -> None:
        """Claim no more; claims that a write in flight still returns are handed back from here."""
        self._claiming = False

    def close(self) -> None:
        """End when nothing is left to be written."""
        self._claiming, self._closing = False, True
        self._wake.set()

    async def ended(self) -> None:
        """Wait until all is written; do not wait for running code."""
        while not self._is_over() and (self._has_mail or not self._served.at_work):
            self._looked.clear()
            await self._looked.wait()

    async def run(self) -> None:
        while not self._is_over():
            await self._woken()
            if self._served.gone and not self._deserted:
                self._deserted = True
                self._done += self._served.left_behind()
                self.close()
            self._fetch()
            if self._done or (self._free and self._claims):
                await self._write()
            if self._released and not self._done:
                # After the settled claims: until those are written, the store does not know the
                # slots as stuck.
                await self._release()
            self._looked.set()

    @property
    def _claims(self) -> bool:
        return self._claiming and not self._aside and self._heart.steady

    @property
    def _has_mail(self) -> bool:
        return bool(self._mail or self._done or self._released or self._writing)

    def _is_over(self) -> bool:
        at_work = self._served.at_work and not self._deserted
        return self._closing and not (self._has_mail or at_work)

    def _fetch(self) -> None:
        while self._mail:
            done, free, released = self._mail.popleft()
            self._done += done
            self._free += free
            self._released += released

    async def _woken(self) -> None:
        if self._retry_in:
            await asyncio.sleep(self._retry_in)
            return
        try:
            async with asyncio.timeout(POLL):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _write(self) -> None:
        most = 1 if self._one_by_one else len(self._done)
        done, self._done = self._done[:most], self._done[most:]
        if not all(one.begun or one.change.job.waits_for for one in done):
            self._step_aside()
        free, self._free = (self._free, []) if self._claims else ([], self._free)
        self._writing = True
        try:
            replaced = await self._exchange(done, free)
        except BaseException as error:
            self._free = free + self._free
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
            self._keeper.well("worker")
        taken = {claim.slot for claim in replaced.claims}
        self._free += [slot for slot in free if slot not in taken]
        self._tell(done, replaced)

    def _step_aside(self) -> None:
        """Claim nothing for a moment: jobs handed back must not return to this worker at once."""
        self._aside = True
        self._keeper.loop.call_later(STEP_ASIDE, self._step_back)

    def _step_back(self) -> None:
        self._aside = False
        self._wake.set()

    async def _release(self) -> None:
        """Release the slots of stuck code that has ended."""
        released, self._released = self._released, []
        self._writing = True
        try:
            await self._keeper.store.release(released)
        except BaseException as error:
            self._released = released + self._released
            self._fail(error)
        else:
            self._retry_in = 0.0
        finally:
            self._writing = False

    def _fail(self, error: BaseException) -> None:
        """Schedule a retry and report the error."""
        self._retry_in = min(RETRY_MOST, max(RETRY_FIRST, self._retry_in * 2))
        if not isinstance(error, Exception):
            raise error
        self._keeper.trouble("worker", error)

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

    async def _exchange(self, done: list[SettledClaim], free: list[int]) -> ReplacedJob:
        store = self._keeper.store
        wanted = ClaimRequest(self._heart.owner.id, tuple(free), *self._choose()) if free else None
        for one in done:
            if one.value is not None or one.error is not None:
                self._outcomes.expect(one.change.job, one.value, one.error)
        if done:
            changes = self._ledger.closing([one.change for one in done])
            changes = await self._chronicle.closing(changes)
            replaced = await store.replace(changes, wanted)
            tokens = [change.token for change in changes]
            self._chronicle.over(tokens)
            self._ledger.over(tokens)
            return replaced
        claims = () if wanted is None else tuple(await store.claim(wanted))
        return ReplacedJob((), claims)

    def _tell(self, done: list[SettledClaim], replaced: ReplacedJob) -> None:
        claims = replaced.claims
        if claims and not self._claiming:
            # Claimed by a write in flight when the worker stopped claiming.
            self._done += [SettledClaim(hand_back(claim), begun=False) for claim in claims]
            self._wake.set()
            claims = ()
        if not done and not claims:
            return
        at = self._keeper.runtime.monotonic()
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
                self._outcomes.tell(job)
            else:
                self._outcomes.meet(job, at)
        self._served.deliver(Delivery(claims, tuple(written), tuple(refused)))
