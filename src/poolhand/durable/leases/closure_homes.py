"""Homes: the processes that closures live in, and whether they still do.

A closure can run only where it was submitted. Whoever else claims it sets it aside for that
process, which claims it from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from poolhand.contract import Jobs, Lease, Owner
from poolhand.rules.causes import home_cause, home_of
from poolhand.runtime import Identity, is_running

WOKEN_BY = "poolhand"
LOOKS_WITHOUT = 2  # the next look may be on its way already, from before a home came in
MOST_MISSED = 1000


class HomeReader(Protocol):
    """Who holds closures in this process."""

    def holds(self, id: str) -> bool: ...


# Those of this process, whichever store they use: ids are unique.
HOUSEHOLDS: list[HomeReader] = []


class ClosureHomes:
    """Judges whether the process a closure lives in is gone, by what can be seen from here.

    Fed on the keeper's loop with every look at the leases, asked by workers on theirs. `cause` is
    what closures wait for that live here.
    """

    def __init__(self, here: Identity) -> None:
        self.cause = home_cause(here)
        self._here = here
        self._looks = 0
        self._owners: frozenset[Identity] = frozenset()
        self._missed: dict[Identity, int] = {}

    def look(self, leases: Sequence[Lease]) -> None:
        """Note who holds leases now."""
        owners = (lease.owner for lease in leases if not lease.buried)
        self._owners = frozenset((one.host, one.boot, one.pid, one.started) for one in owners)
        for found in self._owners.intersection(list(self._missed)):
            self._missed.pop(found, None)
        self._looks += 1

    def hold(self, home: Identity, id: str) -> bool:
        """Tell whether a closure that is not held by who asks may still run at its home."""
        if home == self._here:
            return any(one.holds(id) for one in list(HOUSEHOLDS))
        return not self.is_gone(home)

    def is_gone(self, home: Identity) -> bool:
        """Tell whether a process will not come back for its closures.

        One of this host that has only let go of the store may come back to it. Of another host
        only the leases tell.
        """
        if is_gone(Owner("", *home), self._here):
            return True
        return home not in self._owners and not self._is_near(home) and self._is_missing(home)

    async def recall(self, store: Jobs) -> None:
        """Wake the closures whose home is gone: whoever claims them next says that."""
        causes = {cause for counts in (await store.causes()).values() for cause in counts}
        for cause in sorted(causes):
            home = home_of(cause)
            if home is not None and home != self._here and self.is_gone(home):
                await store.wake(cause, WOKEN_BY)

    def _is_missing(self, home: Identity) -> bool:
        """Tell whether looks that began after a home was first asked for did not find it."""
        if home not in self._missed and len(self._missed) >= MOST_MISSED:
            self._missed.pop(next(iter(self._missed)), None)
        return self._looks >= self._missed.setdefault(home, self._looks) + LOOKS_WITHOUT

    def _is_near(self, home: Identity) -> bool:
        """Tell whether a process can be looked for from here."""
        return home[0] == self._here[0] and bool(home[1] and self._here[1])


def is_gone(owner: Owner, here: Identity) -> bool:
    """Tell whether an owner was a process of this host that has ended; of others that is False."""
    host, boot, _, _ = here
    if owner.host != host or not (owner.boot and boot):
        return False
    return owner.boot != boot or not is_running(owner.pid, owner.started)
