"""Maintenance: reap dead owners, promote due jobs, prune old ones.

Every process reaps: a compare-and-swap in the store makes that safe. The rest is done by one
process at a time, the leader, which also frees closed sessions that no job holds, and wakes
closures whose process is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol

from poolhand.contract import Change, Lease, Log, Owner, Put
from poolhand.durable.connection.store_thread import StoreThread
from poolhand.durable.leases.closure_homes import ClosureHomes, is_gone
from poolhand.durable.leases.heartbeat import FAREWELL, LEASE, OWNERS, Heartbeat
from poolhand.durable.streams.execution_log import AttemptLine, logged
from poolhand.durable.streams.numbers import last_number
from poolhand.durable.worker.executor import crashed, stopped
from poolhand.observe.events import OwnerReaped, SessionFreed
from poolhand.rules.audit import STREAM
from poolhand.rules.retention import Keep

LOOK_EVERY = 1.0
LOOKS_APART = 5.0  # a longer gap between two readings does not count as observed time
LOOK_FIRST = 0.01  # avoids a busy loop on jobs that are due now and cannot move
LEADER = "leader"
LEAD_FOR = 15.0
LEAD_AGAIN = 5.0
RECALL_EVERY = 15.0  # it counts all jobs that are parked under a cause
PRUNE_EVERY = 60.0
PRUNE_AT_ONCE = 1000
TRIM_AT_ONCE = 10_000
SWEEPS_APART = 0.05  # lets other work proceed while much is pruned


class OnReaped(Protocol):
    """Receives what the reaper finds."""

    def see(self, leases: Sequence[Lease]) -> None:
        """Receive all leases, at every reading."""

    def inherit(self, changes: Sequence[Change], crashed: bool) -> None:
        """Receive the changes to jobs of a dead owner; after a clean exit `crashed` is False."""


class Reaper:
    """Takes back the claims of dead owners.

    A process of this host is dead when it has ended. Any other is dead when its renewal counter has
    not changed for the length of a lease, by our own clock, since we first saw that value.
    """

    def __init__(self, keeper: StoreThread, heart: Heartbeat, heirs: OnReaped) -> None:
        self._keeper = keeper
        self._heart = heart
        self._heirs = heirs
        self._now = keeper.runtime.monotonic
        self._identity = keeper.runtime.identity()
        self._seen: dict[str, tuple[int, float]] = {}
        self._looked_at = self._now()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Read all leases once, and reap the owners that are dead."""
        leases = await self._keeper.store.leases()
        self._heirs.see(leases)
        now = self._now()
        # While this process could not read, others could not renew either: the store was away, or
        # all processes were suspended.
        blind = max(0.0, now - self._looked_at - LOOKS_APART)
        self._looked_at = now
        self._seen = {lease.owner.id: self._since(lease, now, blind) for lease in leases}
        for lease in leases:
            if lease.owner.id != self._heart.owner.id and self._is_dead(lease, now):
                await self._reap(lease)
        self._keeper.well("reaper")

    def _since(self, lease: Lease, now: float, blind: float) -> tuple[int, float]:
        """Return the renewal counter of a lease, and since when it has had this value."""
        before = self._seen.get(lease.owner.id)
        if before is None or before[0] != lease.renewal:
            return lease.renewal, now
        return lease.renewal, before[1] + blind

    def _is_dead(self, lease: Lease, now: float) -> bool:
        owner = lease.owner
        if lease.buried or is_gone(owner, self._identity) or self._was_ours(owner):
            return True
        return now - self._seen[owner.id][1] >= LEASE

    def _was_ours(self, owner: Owner) -> bool:
        """Return whether an owner belonged to this very process, which has dropped it."""
        theirs = (owner.host, owner.boot, owner.pid, owner.started)
        return theirs == self._identity and bool(owner.boot) and owner.id not in OWNERS

    async def _reap(self, lease: Lease) -> None:
        store, at = self._keeper.store, self._keeper.runtime.wall()
        claims = await store.bury(lease.owner.id, lease.renewal)
        if not claims:
            return
        owner = lease.owner.id
        in_order = await store.get_document(f"{FAREWELL}{owner}") is not None
        if in_order:
            changes = [stopped(claim, at) for claim in claims]
        else:
            changes = [
                logged(crashed(claim, at), AttemptLine(claim.job.attempts, owner), at)
                for claim in claims
            ]
        replaced = await store.replace(changes)
        # Other processes may reap at the same time: each reports only the changes it made.
        made = [one for one, was_made in zip(changes, replaced.made, strict=True) if was_made]
        if made:
            ids = tuple(one.job.id for one in made)
            self._keeper.news.tell(OwnerReaped("", lease.owner.host, lease.owner.pid, ids))
        self._heirs.inherit(made, crashed=not in_order)


class Leader:
    """Promotes and prunes while it leads; the leader is stored in a document that expires."""

    def __init__(
        self, keeper: StoreThread, heart: Heartbeat, homes: ClosureHomes, keep: Keep
    ) -> None:
        self._keeper = keeper
        self._heart = heart
        self._homes = homes
        self._keep = keep
        self._now = keeper.runtime.monotonic
        self._leads_until = self._asks_at = self._recalls_at = self._prunes_at = 0.0
        self._due = asyncio.Event()

    def hint(self) -> None:
        """Signal that there may be jobs to promote."""
        self._due.set()

    async def run(self) -> None:
        while True:
            pause = LOOK_EVERY
            if await self._leads():
                await self._recall()
                pause = await self._promote()
                if await self._prune():
                    pause = min(pause, SWEEPS_APART)
                self._keeper.well("leader")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._due.wait()
            self._due.clear()

    async def resign(self) -> None:
        """Let another process lead at once."""
        store, me = self._keeper.store, self._heart.owner.id.encode()
        found = await store.get_document(LEADER)
        if found is not None and found[0] == me:
            await store.delete(LEADER, found[1])

    async def _leads(self) -> bool:
        """Return whether this process leads; try to become leader when that is due."""
        now = self._now()
        if now >= self._asks_at:
            if await self._write_down():
                self._leads_until = now + LEAD_FOR
                self._asks_at = now + LEAD_AGAIN
            else:
                # Try again soon: nothing is promoted between the death of a leader and the next
                # one.
                self._asks_at = now + LOOK_EVERY
            self._keeper.well("leader")
        return now < self._leads_until

    async def _write_down(self) -> bool:
        store, me = self._keeper.store, self._heart.owner.id.encode()
        found = await store.get_document(LEADER)
        if found is not None and found[0] != me:
            owners = {lease.owner.id.encode() for lease in await store.leases()}
            if found[0] in owners:
                return False
        version = 0 if found is None else found[1]
        return await store.put([Put(LEADER, me, version, LEAD_FOR)]) is not None

    async def _recall(self) -> None:
        """Wake closures whose process is gone, when that is due."""
        now = self._now()
        if now >= self._recalls_at:
            self._recalls_at = now + RECALL_EVERY
            await self._homes.recall(self._keeper.store)

    async def _promote(self) -> float:
        """Promote due jobs; return the seconds until the next may be due."""
        promoted = await self._keeper.store.promote()
        if promoted.next_in is None:
            return LOOK_EVERY
        return min(LOOK_EVERY, max(LOOK_FIRST, promoted.next_in))

    async def _prune(self) -> bool:
        """Prune what is old, when that is due; return whether more is waiting."""
        now = self._now()
        if now < self._prunes_at:
            return False
        store = self._keeper.store
        for pool, session in await store.unheld(free=True):
            self._keeper.news.tell(SessionFreed(pool, session))
        jobs = await store.prune(self._keep, PRUNE_AT_ONCE)
        before = self._keeper.runtime.wall() - timedelta(seconds=self._keep.audit)
        lines = await trim_audit(store, before, self._keep.max_audit)
        if jobs >= PRUNE_AT_ONCE or lines >= TRIM_AT_ONCE:
            return True
        self._prunes_at = now + PRUNE_EVERY
        return False


async def trim_audit(store: Log, before: datetime, most: int | None = None) -> int:
    """Delete up to one sweep of audit records that are too old or too many; return how many."""
    lines = await store.read(STREAM, limit=TRIM_AT_ONCE)
    surplus = 0
    if most is not None and lines:
        surplus = await last_number(store, STREAM, lines[-1].number) - most
    old = [line.number for line in lines if line.at < before or line.number <= surplus]
    return await store.trim(STREAM, old[-1] + 1) if old else 0
