"""Homes: the processes that closures live in, and whether they still do.

A closure can run only where it was submitted. Whoever else claims it passes it on, for as long as
that process may come to claim it itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from poolhand.contract import Lease, Owner
from poolhand.farm.maintenance import is_gone
from poolhand.runtime import Identity

AT_ONCE = 3  # so often it is passed on at once: most times its home has a free slot
PASS_ON_FOR = 1.0  # then so that it does not spin between those who cannot run it
REST_FOR = 30.0  # its home lives on this host, but has let go of the store
MOST_MET = 1000


class Household(Protocol):
    """Who holds closures in this process."""

    def holds(self, id: str) -> bool: ...


# Those of this process, whichever store they use: ids are unique.
HOUSEHOLDS: list[Household] = []


class Met:
    """How often a closure was met here, and how many looks there were when its home was missed."""

    __slots__ = ("missed_at", "times")

    def __init__(self) -> None:
        self.times = 0
        self.missed_at: int | None = None


class Homes:
    """Judges whether the process a closure lives in is gone, by what can be seen from here.

    Fed on the keeper's loop with every look at the leases, asked by workers on theirs.
    """

    def __init__(self, here: Identity) -> None:
        self._here = here
        self._looks = 0
        self._owners: frozenset[Identity] = frozenset()
        self._met: dict[str, Met] = {}

    def look(self, leases: Sequence[Lease]) -> None:
        """Note who holds leases now."""
        owners = (lease.owner for lease in leases if not lease.buried)
        self._owners = frozenset((one.host, one.boot, one.pid, one.started) for one in owners)
        self._looks += 1

    def wait(self, home: Identity, id: str) -> float | None:
        """Return for how long to pass on a closure that is not held here; None: it is lost."""
        met = self._meet(id)
        if home == self._here:
            is_lost, is_away = not any(one.holds(id) for one in list(HOUSEHOLDS)), False
        else:
            is_lost, is_away = is_gone(Owner("", *home), self._here), self._is_missing(home, met)
        if is_lost or (is_away and not _is_near(home, self._here)):
            self._met.pop(id, None)
            return None
        if is_away:
            # It may only be stopped for a while, and come back to what it holds.
            return REST_FOR
        return 0.0 if met.times <= AT_ONCE else PASS_ON_FOR

    def _meet(self, id: str) -> Met:
        met = self._met.setdefault(id, Met())
        met.times += 1
        if len(self._met) > MOST_MET:
            # It was run where it lives, most likely; met again, it is new.
            self._met.pop(next(iter(self._met)), None)
        return met

    def _is_missing(self, home: Identity, met: Met) -> bool:
        """Tell whether a look that began after the job was met did not find its home."""
        if home in self._owners:
            met.missed_at = None
            return False
        if met.missed_at is None:
            met.missed_at = self._looks
        # The next look may be on its way already, from before the home came in.
        return self._looks >= met.missed_at + 2


def _is_near(home: Identity, here: Identity) -> bool:
    """Tell whether a process can be looked for from here."""
    return home[0] == here[0] and bool(home[1] and here[1])
