"""Closure homes: the processes that hold submitted closures, and whether they still run.

A closure can run only in the process that submitted it, its home. Any other worker that claims it
parks it under a cause of that process, which claims it from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from poolhand.contract import Jobs, Lease, Owner
from poolhand.rules.causes import home_cause, home_of
from poolhand.runtime import Identity, is_running

WOKEN_BY = "poolhand"
LOOKS_WITHOUT = 2  # the next reading of the leases may have begun before the home enrolled
MOST_MISSED = 1000


class HomeReader(Protocol):
    """An object that holds closures in this process."""

    def holds(self, id: str) -> bool: ...


# All of this process, whichever store they use: ids are unique.
HOUSEHOLDS: list[HomeReader] = []


class ClosureHomes:
    """Decides whether the home process of a closure is gone, from the leases and local processes.

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
        owners = (lease.owner for lease in leases if not lease.buried)
        self._owners = frozenset((one.host, one.boot, one.pid, one.started) for one in owners)
        for found in self._owners.intersection(list(self._missed)):
            self._missed.pop(found, None)
        self._looks += 1

    def hold(self, home: Identity, id: str) -> bool:
        """Return whether a closure that the caller does not hold may still run at its home."""
        if home == self._here:
            return any(one.holds(id) for one in list(HOUSEHOLDS))
        return not self.is_gone(home)

    def is_gone(self, home: Identity) -> bool:
        """Return whether a process will not come back for its closures.

        A process of this host that has only closed the store may open it again. For other hosts
        only the leases count.
        """
        if is_gone(Owner("", *home), self._here):
            return True
        return home not in self._owners and not self._is_near(home) and self._is_missing(home)

    async def recall(self, store: Jobs) -> None:
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
