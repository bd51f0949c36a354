"""The sessions and idempotency keys of a SQL store.

A session has one turn at a time, and belongs to the user of its first accepted turn. A key stands
for one job.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Sequence

import msgspec

from poolhand.rules.job import Job, Status
from poolhand.rules.queue.gates import Sessions, wrong_owner
from poolhand.rules.queue.idempotency import IdempotencyKeys
from poolhand.rules.streams import SESSIONS, session_of
from poolhand.stores.sql.rows import MOVING, SESSION, JobRow, sought
from poolhand.stores.sql.tables import Insert, Tables
from poolhand.stores.sql.unit_of_work import TURNS, UnitOfWork

HOLDERS = "SELECT line, holder FROM poolhand_sessions WHERE pool = ? AND line IN (?*)"
# Turns wait in the order of their seq.
NEXT_TURNS = """
SELECT gate, min(seq) FROM poolhand_waits WHERE pool = ? AND place = 2 AND gate IN (?*)
GROUP BY gate
"""
LAST = "SELECT max(seq) FROM poolhand_waits WHERE pool = ? AND place = 2 AND gate = ?"
HOLD = Insert(
    "poolhand_sessions",
    "pool bigint, line text, holder bigint",
    key=("pool", "line"),
)
FREE = "DELETE FROM poolhand_sessions WHERE pool = ? AND line IN (?*)"


class StoredSessions(Sessions[JobRow]):
    """The turns of a pool's sessions; loaded on demand, written when the unit of work closes."""

    def __init__(self, unit: UnitOfWork, pool: int) -> None:
        super().__init__()
        self._unit = unit
        self._pool = pool
        self._holders: dict[str, int | None] = {}
        self._next_turns: dict[str, int | None] = {}
        self._changed: dict[str, None] = {}
        unit.writers.append(self._write)

    def foresee(self, jobs: Iterable[Job], ending: bool) -> None:
        """Load the sessions of jobs in one go: their holders and, if jobs end, their next turns."""
        lines = list(dict.fromkeys(_line(job) for job in jobs if job.session is not None))
        if lines:
            self._look_up(lines)
            if ending:
                next_turns = self._look_ahead(lines)
                self._unit.load([seq for seq in next_turns.values() if seq is not None])

    def holder(self, job: Job) -> JobRow | None:
        seq = None if job.session is None else self._holder(_line(job))
        return None if seq is None else self._unit.row(seq)

    def last(self, job: Job) -> JobRow | None:
        if job.session is None:
            return None
        self._unit.write_waits()
        (seq,) = self._unit.tables.execute(LAST, (self._pool, _line(job))).fetchone()
        return None if seq is None else self._unit.row(seq)

    def enter(self, entry: JobRow) -> bool:
        if entry.job.session is None:
            return True
        line = _line(entry.job)
        holder = self._holder(line)
        if holder is None:
            self._hold(line, entry.seq)
        elif holder != entry.seq:
            entry.rank, entry.turn, entry.gate = 0, entry.seq, line
            self._unit.put(entry, SESSION)
            if line in self._next_turns:
                self._next_turns[line] = min(entry.seq, self._next_turns[line] or entry.seq)
            return False
        return True

    def leave(self, entry: JobRow) -> JobRow | None:
        if entry.job.session is None:
            return None
        line = _line(entry.job)
        if self._holder(line) != entry.seq:
            return None
        return self.hand_on(line)

    def hand_on(self, line: str) -> JobRow | None:
        """Give a session to its next turn and return that turn; None if no turn waits."""
        seq = self._next_turns[line] if line in self._next_turns else self._look_ahead([line])[line]
        self._hold(line, seq)
        if seq is None:
            return None
        successor = self._unit.row(seq)
        self.remove(successor)
        return successor

    def remove(self, entry: JobRow) -> None:
        """Remove an entry that waits for its session."""
        if entry.gate is not None:
            self._next_turns.pop(entry.gate, None)
        entry.gate = None
        self._unit.put(entry, MOVING)

    def _hold(self, line: str, seq: int | None) -> None:
        self._holders[line] = seq
        self._changed[line] = None

    def _holder(self, line: str) -> int | None:
        if line not in self._holders:
            self._look_up([line])
        return self._holders[line]

    def _look_up(self, lines: list[str]) -> None:
        new = [line for line in lines if line not in self._holders]
        self._holders.update(dict.fromkeys(new))
        self._holders.update(dict(self._unit.tables.among(HOLDERS, new, (self._pool,))))

    def _look_ahead(self, lines: list[str]) -> dict[str, int | None]:
        found: dict[str, int | None] = dict.fromkeys(lines)
        self._unit.write_waits()
        found.update(dict(self._unit.tables.among(NEXT_TURNS, lines, (self._pool,))))
        self._next_turns.update(found)
        return found

    def _write(self) -> None:
        held = [(line, self._holders[line]) for line in self._changed]
        self._changed.clear()
        rows = [(self._pool, line, seq) for line, seq in held if seq is not None]
        if rows:
            self._unit.also.append((HOLD, rows))
        free = [line for line, seq in held if seq is None]
        # `among` is a generator: consume it, or the DELETE is never sent.
        list(self._unit.tables.among(FREE, free, (self._pool,)))


def session_in(line: str) -> str:
    """Return the session name that a line encodes."""
    return str(msgspec.json.decode(line)[1])


def _line(job: Job) -> str:
    """Return the line of a job's session: its tenant and name as JSON."""
    return msgspec.json.encode((job.tenant, job.session)).decode()


USERS = "SELECT session, owner FROM poolhand_session_users WHERE session IN (?*)"
# Locked, so that no transaction deletes the user of a session while a turn is admitted; in one
# order, so that transactions do not deadlock.
HELD = f"{USERS} /*pg ORDER BY session FOR KEY SHARE */"
ALONE = f"{USERS} /*pg ORDER BY session FOR UPDATE */"
# Without a key: if two transactions begin a session at once, the second one fails and is repeated.
BEGUN = Insert("poolhand_session_users", "session text, owner text")
FORGET = "DELETE FROM poolhand_session_users WHERE session IN (?*) RETURNING session"
WRITTEN = "SELECT key FROM poolhand_documents WHERE key IN (?*)"
KEPT = "SELECT session, tenant FROM poolhand_jobs WHERE session IN (?*) GROUP BY session, tenant"


class SessionUsers:
    """The users of the sessions in one write, loaded together."""

    def __init__(self, unit: UnitOfWork) -> None:
        self._unit = unit
        self._users: dict[str, str | None] = {}
        self._begun: dict[str, str | None] = {}
        self._asked: set[str] = set()
        self._writes = False

    def load(self, jobs: Iterable[Job]) -> None:
        """Load the users of the jobs' sessions; without sessions no query is sent."""
        keys = {session_of(job.tenant, job.session) for job in jobs if job.session is not None}
        asked = sorted(keys - self._asked)
        if asked:
            self._asked.update(asked)
            self._users |= _found(self._unit.tables, HELD, asked)

    def wrong_owner(self, jobs: Iterable[Job]) -> Job | None:
        """Return the first job whose session belongs to another user."""
        return wrong_owner(jobs, ChainMap(self._begun, self._users))

    def begin(self, job: Job) -> None:
        """Record an accepted turn: a session without a user now belongs to the turn's user."""
        if job.session is None:
            return
        key = session_of(job.tenant, job.session)
        if key not in self._users and key not in self._begun:
            self._begun[key] = job.user
            if not self._writes:
                self._writes = True
                self._unit.writers.append(self._write)

    def undo(self) -> None:
        """Discard what was accepted since the unit of work was last closed."""
        self._begun.clear()
        self._writes = False

    def _write(self) -> None:
        if self._begun:
            # Sorted, so that concurrent transactions do not deadlock.
            self._unit.also.append((BEGUN, sorted(self._begun.items())))
            self._users |= self._begun
            self._begun.clear()


def users_of(tables: Tables, sessions: Sequence[str]) -> dict[str, str | None]:
    """Return the users of sessions by document key; unknown sessions are left out."""
    return _found(tables, USERS, sessions)


def forget(tables: Tables, keys: Iterable[str]) -> None:
    """Delete the users of deleted sessions; keys of other documents are ignored."""
    sessions = sorted(sought(key) for key in keys if key.startswith(SESSIONS))
    for _ in tables.among(FORGET, sessions):
        pass


def forget_unkept(tables: Tables, jobs: Iterable[tuple[str | None, str | None]]) -> None:
    """Delete the users of sessions, by tenant and name, that have no job and no state left.

    Call it after the jobs have been deleted.
    """
    names = {session_of(tenant, name): (tenant, name) for tenant, name in jobs if name is not None}
    for (key,) in tables.among(WRITTEN, list(names)):
        del names[key]
    if not names:
        return
    # Locked first: a job that is admitted meanwhile is visible once the lock is taken.
    _found(tables, ALONE, sorted(names))
    sessions = sorted({name for _, name in names.values()})
    kept = {(tenant, name) for name, tenant in tables.among(KEPT, sessions)}
    forget(tables, [key for key, whose in names.items() if whose not in kept])


def _found(tables: Tables, text: str, sessions: Sequence[str]) -> dict[str, str | None]:
    return dict(tuple(row) for row in tables.among(text, [sought(key) for key in sessions]))


FIND = """
SELECT k.seq, j.brief FROM poolhand_keys k LEFT JOIN poolhand_jobs j ON j.seq = k.seq
WHERE k.pool = ? AND k.tenant = ? AND k.key = ? ORDER BY k.newcomer DESC LIMIT 1
"""
OWNERS = """
SELECT key, seq, ended FROM poolhand_keys
WHERE pool = ? AND tenant = ? AND newcomer = 0 AND key IN (?*)
"""
WRITE = """
INSERT INTO poolhand_keys VALUES (?, ?, ?, ?, ?, NULL, NULL)
ON CONFLICT (pool, tenant, key, newcomer)
DO UPDATE SET seq = excluded.seq, ended = NULL, until = NULL
"""
RELEASE = "DELETE FROM poolhand_keys WHERE pool = ? AND tenant = ? AND key = ? AND newcomer = 1"
DELETE = "DELETE FROM poolhand_keys WHERE pool = ? AND tenant = ? AND key = ? AND newcomer = 0"
FINISH = Insert(
    "poolhand_keys",
    "pool bigint, tenant text, key text, newcomer smallint, seq bigint, ended bigint, "
    "until double precision",
    key=("pool", "tenant", "key", "newcomer"),
)
FIRST = """
SELECT ended, until FROM poolhand_keys WHERE pool = ? AND ended IS NOT NULL ORDER BY ended LIMIT ?
"""
FORGET_KEYS = "DELETE FROM poolhand_keys WHERE pool = ? AND ended IS NOT NULL AND ended <= ?"
FORGET_AT_ONCE = 100

Own = tuple[int, str, str]  # pool, tenant and key


class StoredKeys(IdempotencyKeys[JobRow]):
    """The job that each idempotency key stands for; `finished` counts keys of finished jobs.

    Keys of jobs that end are written in one batch, before the next query that depends on them.
    """

    __slots__ = ("_ending", "_known", "_pool", "_unit", "finished")

    def __init__(self, unit: UnitOfWork, pool: int, ttl: float, most: int) -> None:
        super().__init__(ttl, most)
        self.finished = 0
        self._unit = unit
        self._pool = pool
        self._known: dict[Own, tuple[int, int | None] | None] = {}
        self._ending: list[tuple[int | str | float, ...]] = []

    def foresee(self, jobs: Iterable[Job]) -> None:
        """Look up the keys of jobs that are about to end, one query per tenant."""
        keys: dict[str, list[str]] = {}
        for job in jobs:
            if job.idempotency_key is not None:
                _, tenant, key = self._own(job)
                keys.setdefault(tenant, []).append(key)
        for tenant, some in keys.items():
            self._look_up(tenant, list(dict.fromkeys(some)))

    def find(self, job: Job, now: float) -> JobRow | None:
        if job.idempotency_key is None:
            return None
        self._forget(now)
        found = self._unit.tables.execute(FIND, self._own(job)).fetchone()
        # A key whose job is missing (e.g. only some tables were restored) counts as unused.
        row = None if found is None else self._unit.find(found[0])
        if row is not None and not row.fresh:
            # The call record, to compare calls.
            row.call_record = found[1]
        return row

    def reserve(self, entry: JobRow) -> None:
        if entry.job.idempotency_key is not None:
            self._unit.tables.execute(WRITE, (*self._own(entry.job), 1, entry.seq))

    def release(self, entry: JobRow) -> None:
        if entry.job.idempotency_key is not None:
            self._unit.tables.execute(RELEASE, self._own(entry.job))

    def hold(self, entry: JobRow) -> None:
        if entry.job.idempotency_key is None:
            return
        own = self._own(entry.job)
        self.write()
        before = self._owner(own)
        self.finished -= before is not None and before[1] is not None
        self._unit.tables.execute(WRITE, (*own, 0, entry.seq))
        self._known[own] = (entry.seq, None)

    def finish(self, entry: JobRow, now: float) -> None:
        if entry.job.idempotency_key is None:
            return
        own = self._own(entry.job)
        owner = self._owner(own)
        if owner is None or owner[0] != entry.seq:
            return
        if entry.job.status is Status.REJECTED:
            self.write()
            self._unit.tables.execute(DELETE, own)
            self._known[own] = None
            return
        ended = self._unit.numbers.next(TURNS)
        self._ending.append((*own, 0, entry.seq, ended, now + self._ttl))
        self._known[own] = (entry.seq, ended)
        self.finished += 1

    def drop(self, entry: JobRow) -> None:
        if entry.job.idempotency_key is None:
            return
        self.write()
        own = self._own(entry.job)
        owner = self._owner(own)
        if owner is not None and owner[0] == entry.seq and owner[1] is not None:
            self._unit.tables.execute(DELETE, own)
            self._known[own] = None
            self.finished -= 1

    def forget(self, now: float) -> None:
        """Delete keys that have expired, and the oldest beyond the limit."""
        self._forget(now)

    def save(self, now: float) -> None:
        """Write the keys of jobs that have ended, then delete expired and surplus keys."""
        if self._ending:
            self._forget(now)

    def write(self) -> None:
        """Write the keys of jobs that have ended."""
        if self._ending:
            self._unit.tables.insert(FINISH, self._ending)
            self._ending = []

    def _forget(self, now: float) -> None:
        self.write()
        tables, pool = self._unit.tables, self._pool
        while self.finished:
            found = tables.execute(FIRST, (pool, FORGET_AT_ONCE)).fetchall()
            surplus = self.finished - self._most
            gone = 0
            while gone < len(found) and (found[gone][1] <= now or gone < surplus):
                gone += 1
            if not gone:
                return
            tables.execute(FORGET_KEYS, (pool, found[gone - 1][0]))
            self._known.clear()
            self.finished -= gone
            if gone < len(found):
                return

    def _owner(self, own: Own) -> tuple[int, int | None] | None:
        """Return the seq of the job that a key stands for, and the number of its end."""
        if own not in self._known:
            self._look_up(own[1], [own[2]])
        return self._known[own]

    def _look_up(self, tenant: str, keys: list[str]) -> None:
        pool = self._pool
        unknown = [key for key in keys if (pool, tenant, key) not in self._known]
        self._known.update({(pool, tenant, key): None for key in unknown})
        for key, seq, ended in self._unit.tables.among(OWNERS, unknown, (pool, tenant)):
            self._known[pool, tenant, key] = (seq, ended)

    def _own(self, job: Job) -> Own:
        tenant = "" if job.tenant is None else f"={job.tenant}"
        return self._pool, tenant, job.idempotency_key or ""
