"""Maintenance: reap dead owners, promote due jobs, prune old ones.

Every process reaps: a compare-and-swap in the store makes that safe. The rest is done by one
process at a time, the leader, which also frees closed sessions that no job holds, and wakes
closures whose process is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from poolhand.contract import Change, Lease, Owner, Put, Store
from poolhand.durable.leases.heartbeat import CLEAN_EXIT, LEASE, OWNERS, Heartbeat
from poolhand.durable.streams.events import last_number
from poolhand.durable.streams.job_api import logged
from poolhand.durable.worker.executor import crashed, stopped
from poolhand.observe.events import OwnerReaped, SessionFreed
from poolhand.rules.audit import STREAM
from poolhand.rules.explain import home_cause, home_of
from poolhand.rules.lifecycle import Keep
from poolhand.runtime import Identity, is_running

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
WOKEN_BY = "poolhand"
LOOKS_WITHOUT = 2  # the next reading of the leases may have begun before the home enrolled
MOST_MISSED = 1000

# Return whether this process holds a closure, whichever store it uses: ids are unique.
CLOSURE_HOLDERS: list[Callable[[str], bool]] = []


class Reaper:
    """Takes back the claims of dead owners.

    A process of this host is dead when it has ended. Any other is dead when its renewal counter has
    not changed for the length of a lease, by our own clock, since we first saw that value.
    `on_reaped` gets the changes to jobs of a dead owner, and whether it crashed.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        homes: ClosureHomes,
        on_reaped: Callable[[Sequence[Change], bool], None],
    ) -> None:
        self._thread = heartbeat.thread
        self._heartbeat = heartbeat
        self._homes = homes
        self._on_reaped = on_reaped
        self._now = self._thread.runtime.monotonic
        self._identity = self._thread.runtime.identity()
        self._seen: dict[str, tuple[int, float]] = {}
        self._looked_at = self._now()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Read all leases once, and reap the owners that are dead."""
        leases = await self._thread.store.leases()
        self._homes.look(leases)
        now = self._now()
        # While this process could not read, others could not renew either: the store was away, or
        # all processes were suspended.
        blind = max(0.0, now - self._looked_at - LOOKS_APART)
        self._looked_at = now
        self._seen = {lease.owner.id: self._since(lease, now, blind) for lease in leases}
        for lease in leases:
            if lease.owner.id != self._heartbeat.owner.id and self._is_dead(lease, now):
                await self._reap(lease)
        self._thread.well("reaper")

    def _since(self, lease: Lease, now: float, blind: float) -> tuple[int, float]:
        """Return the renewal counter of a lease, and since when it has had this value."""
        before = self._seen.get(lease.owner.id)
        if before is None or before[0] != lease.renewal:
            return lease.renewal, now
        return lease.renewal, before[1] + blind

    def _is_dead(self, lease: Lease, now: float) -> bool:
        owner = lease.owner
        if lease.expired or is_gone(owner, self._identity) or self._was_ours(owner):
            return True
        return now - self._seen[owner.id][1] >= LEASE

    def _was_ours(self, owner: Owner) -> bool:
        """Return whether an owner belonged to this very process, which has dropped it."""
        theirs = (owner.host, owner.boot, owner.pid, owner.started)
        return theirs == self._identity and bool(owner.boot) and owner.id not in OWNERS

    async def _reap(self, lease: Lease) -> None:
        store, at = self._thread.store, self._thread.runtime.wall()
        claims = await store.expire_owner(lease.owner.id, lease.renewal)
        if not claims:
            return
        # The last one put back is first in the queue: in this order the oldest claim is.
        claims.reverse()
        owner = lease.owner.id
        in_order = await store.get_document(f"{CLEAN_EXIT}{owner}") is not None
        if in_order:
            changes = [stopped(claim, at) for claim in claims]
        else:
            changes = [logged(crashed(one, at), one.job.attempts, owner, at) for one in claims]
        replaced = await store.replace(changes)
        # Other processes may reap at the same time: each reports only the changes it made.
        made = [one for one, was_made in zip(changes, replaced.made, strict=True) if was_made]
        if made:
            ids = tuple(one.job.id for one in made)
            self._thread.relay.emit(OwnerReaped("", lease.owner.host, lease.owner.pid, ids))
        self._on_reaped(made, not in_order)


class Leader:
    """Promotes and prunes while it leads; the leader is stored in a document that expires."""

    def __init__(self, heartbeat: Heartbeat, homes: ClosureHomes, keep: Keep) -> None:
        self._thread = heartbeat.thread
        self._heartbeat = heartbeat
        self._homes = homes
        self._keep = keep
        self._now = self._thread.runtime.monotonic
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
                self._thread.well("leader")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._due.wait()
            self._due.clear()

    async def resign(self) -> None:
        """Let another process lead at once."""
        store, me = self._thread.store, self._heartbeat.owner.id.encode()
        found = await store.get_document(LEADER)
        if found is not None and found[0] == me:
            await store.put([Put(LEADER, None, found.version)])

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
            self._thread.well("leader")
        return now < self._leads_until

    async def _write_down(self) -> bool:
        store, me = self._thread.store, self._heartbeat.owner.id.encode()
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
            await self._homes.recall(self._thread.store)

    async def _promote(self) -> float:
        """Promote due jobs; return the seconds until the next may be due."""
        promoted = await self._thread.store.promote()
        if promoted.next_in is None:
            return LOOK_EVERY
        return min(LOOK_EVERY, max(LOOK_FIRST, promoted.next_in))

    async def _prune(self) -> bool:
        """Prune what is old, when that is due; return whether more is waiting."""
        now = self._now()
        if now < self._prunes_at:
            return False
        store = self._thread.store
        for pool, session in await store.unheld(free=True):
            self._thread.relay.emit(SessionFreed(pool, session))
        jobs = await store.prune(self._keep, PRUNE_AT_ONCE)
        before = self._thread.runtime.wall() - timedelta(seconds=self._keep.audit)
        lines = await trim_audit(store, before, self._keep.max_audit)
        if jobs >= PRUNE_AT_ONCE or lines >= TRIM_AT_ONCE:
            return True
        self._prunes_at = now + PRUNE_EVERY
        return False


async def trim_audit(store: Store, before: datetime, most: int | None = None) -> int:
    """Delete up to one sweep of audit records that are too old or too many; return how many."""
    lines = await store.read(STREAM, limit=TRIM_AT_ONCE)
    surplus = 0
    if most is not None and lines:
        surplus = await last_number(store, STREAM, lines[-1].number) - most
    old = [line.number for line in lines if line.at < before or line.number <= surplus]
    return await store.trim(STREAM, old[-1] + 1) if old else 0


class ClosureHomes:
    """Decides whether the home process of a closure is gone, from the leases and local processes.

    A closure can run only in the process that submitted it, its home. Any other worker that claims
    it parks it under a cause of that process, which claims it from there.

    The store thread's loop updates it with every reading of the leases; workers query it on their
    loops. `cause` is the cause under which closures of this process are parked.
    """

    def __init__(self, here: Identity) -> None:
        self.cause = home_cause(here)
        self._here = here
        self._looks = 0
        self._owners: frozenset[Identity] = frozenset()
        self._missed: dict[Identity, int] = {}

    def look(self, leases: Sequence[Lease]) -> None:
        """Note which owners hold leases now."""
        owners = (lease.owner for lease in leases if not lease.expired)
        self._owners = frozenset((one.host, one.boot, one.pid, one.started) for one in owners)
        for found in self._owners.intersection(list(self._missed)):
            self._missed.pop(found, None)
        self._looks += 1

    def hold(self, home: Identity, id: str) -> bool:
        """Return whether a closure that the caller does not hold may still run at its home."""
        if home == self._here:
            return any(holds(id) for holds in list(CLOSURE_HOLDERS))
        return not self.is_gone(home)

    def is_gone(self, home: Identity) -> bool:
        """Return whether a process will not come back for its closures.

        A process of this host that has only closed the store may open it again. For other hosts
        only the leases count.
        """
        if is_gone(Owner("", *home), self._here):
            return True
        return home not in self._owners and not self._is_near(home) and self._is_missing(home)

    async def recall(self, store: Store) -> None:
        """Wake the closures whose home is gone; the worker that claims them next fails them."""
        causes = {cause for counts in (await store.causes()).values() for cause in counts}
        for cause in sorted(causes):
            home = home_of(cause)
            if home is not None and home != self._here and self.is_gone(home):
                await store.wake(cause, WOKEN_BY)

    def _is_missing(self, home: Identity) -> bool:
        """Return whether a home was absent from readings that began after it was first missed."""
        if home not in self._missed and len(self._missed) >= MOST_MISSED:
            self._missed.pop(next(iter(self._missed)), None)
        return self._looks >= self._missed.setdefault(home, self._looks) + LOOKS_WITHOUT

    def _is_near(self, home: Identity) -> bool:
        """Return whether the processes of a home's host can be checked from here."""
        return home[0] == self._here[0] and bool(home[1] and self._here[1])


def is_gone(owner: Owner, here: Identity) -> bool:
    """Return whether an owner was a process of this host that has ended; False for other hosts."""
    host, boot, _, _ = here
    if owner.host != host or not (owner.boot and boot):
        return False
    return owner.boot != boot or not is_running(owner.pid, owner.started)
