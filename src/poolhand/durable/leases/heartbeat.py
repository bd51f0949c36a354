"""The heartbeat: renews this process's leases; passes on lost claims and cancel requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from poolhand.contract import Owner, Put
from poolhand.durable.catalogue import PUBLISH_EVERY, PublishedTasks
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.errors import StoreError

# Seconds without a renewal, as measured by another process, after which a lease expires.
LEASE = 30.0
RENEW_EVERY = 5.0
# Seconds without a renewal after which jobs are stopped: others may soon run them.
GIVE_UP_AFTER = 20.0
RETRY_EVERY = 1.0
FAREWELL = "farewell/"  # marks the clean exit of an owner whose code may still run
KEEP_FAREWELL = 3600.0


# The owners of this process, one for each store it has open. Another owner with the identity of
# this process belongs to a store connection that was dropped without deregistering.
OWNERS: set[str] = set()


class ClaimHolder(Protocol):
    """An object that runs jobs under the leases of this process."""

    def tokens(self) -> Sequence[int]: ...

    def pools(self) -> tuple[str, ...] | None:
        """Return the names of the pools it serves, None for all."""

    @property
    def catalogue(self) -> PublishedTasks | None:
        """The tasks it has, if it publishes them."""

    def lose(self, tokens: Sequence[int]) -> None:
        """Stop the jobs whose claims are lost."""

    def give_up(self) -> None:
        """Stop everything and hand it back, as the lease may soon expire."""

    def cancel(self, tokens: Sequence[int]) -> None:
        """Stop the jobs for which cancellation was requested."""


class Heartbeat:
    """Holds the one owner that stands for this process; lives on the store thread's loop."""

    def __init__(self, keeper: StoreThread) -> None:
        self._keeper = keeper
        self._now = keeper.runtime.monotonic
        self._wish = asyncio.Event()
        self._renewed_at = self._now()
        self.holders: list[ClaimHolder] = []
        self.owner = self._new_owner()
        self._enrolled: Owner | None = None
        self._publish_at = 0.0

    @property
    def steady(self) -> bool:
        """Whether leases are renewed in time, so that new claims may be made."""
        return self._now() - self._renewed_at < GIVE_UP_AFTER

    def hint(self) -> None:
        self._wish.set()

    def join(self, holder: ClaimHolder) -> None:
        """Renew the leases of a worker, and publish that this process works."""
        self.holders.append(holder)
        self.hint()

    def part(self, holder: ClaimHolder) -> None:
        self.holders.remove(holder)
        self.hint()

    async def enroll(self) -> None:
        """Register this process as an owner."""
        owner = self._described()
        await self._keeper.store.enroll(owner)
        self._enrolled = owner
        self._renewed_at = self._now()
        await self._publish()

    async def leave(self) -> None:
        """Deregister this owner unless it still holds claims.

        Code that still runs was stopped cleanly: its jobs go back uncharged when this process ends.
        """
        store, me = self._keeper.store, self.owner.id
        for lease in await store.leases():
            if lease.owner.id == me and lease.holds:
                await self.say_farewell()
            elif lease.owner.id == me:
                await store.bury(me, lease.renewal)
                OWNERS.discard(me)

    async def say_farewell(self) -> None:
        """Mark a clean exit: jobs that still run at process end are requeued as if not started.

        They are requeued only after the process has ended: no other worker may run a job while its
        code still runs.
        """
        await self._keeper.store.put([Put(f"{FAREWELL}{self.owner.id}", b"", None, KEEP_FAREWELL)])

    async def run(self) -> None:
        pause = RENEW_EVERY
        while True:
            await self._pause(pause)
            try:
                await self.renew()
                pause = RENEW_EVERY
                self._keeper.well("heartbeat")
            except StoreError as error:
                pause = RETRY_EVERY
                self._keeper.trouble("heartbeat", error)

    async def guard(self) -> None:
        """Have everything stopped when renewing fails for long, or does not return."""
        while True:
            left = self._renewed_at + GIVE_UP_AFTER - self._now()
            if left <= 0:
                self._each(lambda holder: holder.give_up())
                left = RETRY_EVERY
            await asyncio.sleep(left)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wish.wait()
        except TimeoutError:
            pass
        self._wish.clear()

    async def renew(self) -> None:
        """Renew all leases of this process; pass on lost claims and cancel requests."""
        began, me = self._now(), self.owner.id
        tokens = [token for holder in self.holders for token in holder.tokens()]
        news = await self._keeper.store.extend(me, tokens)
        # Several renewals may run at once: only the first to see the expiry makes a new owner.
        if not news.alive and self.owner.id == me:
            # The owner expired in the meantime: another worker owns whatever ran here.
            OWNERS.discard(self.owner.id)
            self.owner = self._new_owner()
            await self.enroll()
        else:
            self._renewed_at = began
            if self._enrolled != self._described() or began >= self._publish_at:
                await self.enroll()
        if news.lost:
            self._each(lambda holder: holder.lose(news.lost))
        if news.cancel:
            self._each(lambda holder: holder.cancel(news.cancel))

    def _described(self) -> Owner:
        served = [holder.pools() for holder in self.holders]
        named = {name for names in served if names is not None for name in names}
        pools = None if None in served else tuple(sorted(named))
        catalogue = next((one.digest for one in self._catalogues()), None)
        return replace(self.owner, works=bool(self.holders), pools=pools, catalogue=catalogue)

    async def _publish(self) -> None:
        """Publish the tasks of this process; repeated now and then, as documents expire."""
        at = self._keeper.runtime.wall()
        for catalogue in self._catalogues():
            await self._keeper.store.put([catalogue.document(at)])
        self._publish_at = self._now() + PUBLISH_EVERY

    def _catalogues(self) -> list[PublishedTasks]:
        return [one.catalogue for one in self.holders if one.catalogue is not None]

    def _each(self, tell: Callable[[ClaimHolder], None]) -> None:
        for holder in list(self.holders):
            tell(holder)

    def _new_owner(self) -> Owner:
        runtime = self._keeper.runtime
        owner = Owner(f"owner-{runtime.salt()}", *runtime.identity())
        OWNERS.add(owner.id)
        return owner
