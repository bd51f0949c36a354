"""The lanes of a fair round-robin pool in a SQL store, one per key."""

from __future__ import annotations

from poolhand.rules.queue import fair
from poolhand.rules.queue.ready import MOST_RESTING
from poolhand.rules.queue.strategy import FairRoundRobin
from poolhand.stores.sql.bounds import MOST
from poolhand.stores.sql.tables import Insert
from poolhand.stores.sql.unit_of_work import UnitOfWork

ONE = "SELECT rank, no, queued FROM poolhand_lanes WHERE pool = ? AND key = ?"
BEST = """
SELECT key, rank, no, queued FROM poolhand_lanes WHERE pool = ? AND queued > 0
ORDER BY rank, no LIMIT ?
"""
WRITE = Insert(
    "poolhand_lanes",
    {"pool": "bigint", "key": "text", "rank": "bigint", "no": "bigint", "queued": "bigint"},
    key=("pool", "key"),
)
FORGET = "DELETE FROM poolhand_lanes WHERE pool = ? AND queued = 0 AND rank <= ?"
TOO_MANY = f"""
DELETE FROM poolhand_lanes WHERE pool = ? AND key IN (
    SELECT key FROM poolhand_lanes WHERE pool = ? AND queued = 0
    ORDER BY rank DESC LIMIT {MOST} OFFSET ?
)
"""  # noqa: S608
CLEAR = "DELETE FROM poolhand_lanes WHERE pool = ?"


class StoredLane:
    """The lane of one key: its rank, its number, and how many of its jobs are queued."""

    __slots__ = ("key", "no", "queued", "rank")

    def __init__(self, key: str, rank: int, no: int, queued: int) -> None:
        self.key = key
        self.rank = rank
        self.no = no
        self.queued = queued


class StoredLanes:
    """The lanes of one pool, loaded on demand.

    An empty lane keeps its rank until the round has passed it. From then on it counts as forgotten,
    though only `sweep` deletes its row.
    """

    def __init__(self, books: UnitOfWork, pool: int, strategy: FairRoundRobin) -> None:
        self.round = 0
        self.opened = 0
        self._books = books
        self._pool = pool
        self._strategy = strategy
        self._lanes: dict[str, StoredLane] = {}
        self._changed: dict[str, StoredLane] = {}

    def join(self, key: str) -> int:
        """Count one more queued job of a key; return the number of its lane."""
        lane = self._find(key)
        if not lane.queued:
            lane.rank = fair.rejoin(self.round, lane.rank)
        lane.queued += 1
        self._changed[key] = lane
        return lane.no

    def leave(self, key: str) -> None:
        """Count one queued job of a key less, without charging its lane."""
        lane = self._find(key)
        lane.queued -= 1
        self._changed[key] = lane

    def charge(self, key: str) -> None:
        """Charge the lane of a key for a job that starts without having been queued."""
        lane = self._find(key)
        lane.rank = fair.rejoin(self.round, lane.rank) + self._strategy.step(key)
        self._changed[key] = lane

    def refund(self, key: str) -> None:
        """Refund the lane of a key for a job that was not started."""
        lane = self._find(key)
        lane.rank -= self._strategy.step(key)
        self._changed[key] = lane

    def pick(self, limit: int) -> list[int]:
        """Return the numbers of the lanes to serve next; charge each lane for its turns."""
        self.write()
        found = self._books.tables.execute(BEST, (self._pool, limit))
        best = [StoredLane(*row) for row in found]
        step = self._strategy.step
        facts = [fair.LaneFacts(one.rank, one.no, one.queued, step(one.key)) for one in best]
        picks = fair.picks(facts, self.round, limit)
        for place in picks.turns:
            best[place].queued -= 1
        for lane, rank in zip(best, picks.ranks, strict=True):
            if rank != lane.rank:
                lane.rank = rank
                self._lanes[lane.key] = self._changed[lane.key] = lane
        self.round = picks.round
        return [best[place].no for place in picks.turns]

    def clear(self) -> None:
        """Delete all lanes."""
        self.round = self.opened = 0
        self._lanes.clear()
        self._changed.clear()
        self._books.tables.execute(CLEAR, (self._pool,))

    def write(self) -> None:
        """Write the changed lanes."""
        if self._changed:
            rows = [
                (self._pool, one.key, one.rank, one.no, one.queued)
                for one in self._changed.values()
            ]
            self._books.tables.insert(WRITE, rows)
            self._changed.clear()

    def sweep(self) -> None:
        """Delete the lanes that the round has passed, and empty lanes beyond the limit."""
        self.write()
        self._lanes.clear()
        self._books.tables.execute(FORGET, (self._pool, self.round))
        self._books.tables.execute(TOO_MANY, (self._pool, self._pool, MOST_RESTING))

    def _find(self, key: str) -> StoredLane:
        lane = self._lanes.get(key)
        if lane is None:
            row = self._books.tables.execute(ONE, (self._pool, key)).fetchone()
            if row is not None:
                lane = self._lanes[key] = StoredLane(key, *row)
        if lane is None or (not lane.queued and fair.is_passed(self.round, lane.rank)):
            self.opened += 1
            lane = self._lanes[key] = StoredLane(key, self.round, self.opened, 0)
        return lane
