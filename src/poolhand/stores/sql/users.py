"""The users that sessions belong to in a SQL store: the user of the first accepted turn."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Sequence

from poolhand.rules.job import Job
from poolhand.rules.queue.on_busy import stranger
from poolhand.rules.streams import SESSIONS, session_of
from poolhand.stores.sql.rows import sought
from poolhand.stores.sql.tables import Insert, Tables
from poolhand.stores.sql.unit_of_work import UnitOfWork

USERS = "SELECT session, owner FROM poolhand_session_users WHERE session IN (?*)"
# Locked, so that no transaction deletes the user of a session while a turn is admitted; in one
# order, so that transactions do not deadlock.
HELD = f"{USERS} /*pg ORDER BY session FOR KEY SHARE */"
ALONE = f"{USERS} /*pg ORDER BY session FOR UPDATE */"
# Without a key: if two transactions begin a session at once, the second one fails and is repeated.
BEGUN = Insert("poolhand_session_users", {"session": "text", "owner": "text"})
FORGET = "DELETE FROM poolhand_session_users WHERE session IN (?*) RETURNING session"
WRITTEN = "SELECT key FROM poolhand_documents WHERE key IN (?*)"
KEPT = "SELECT session, tenant FROM poolhand_jobs WHERE session IN (?*) GROUP BY session, tenant"


class SessionUsers:
    """The users of the sessions in one write, loaded together."""

    def __init__(self, books: UnitOfWork) -> None:
        self._books = books
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
            self._users |= _found(self._books.tables, HELD, asked)

    def stranger(self, jobs: Iterable[Job]) -> Job | None:
        """Return the first job whose session belongs to another user."""
        return stranger(jobs, ChainMap(self._begun, self._users))

    def begin(self, job: Job) -> None:
        """Record an accepted turn: a session without a user now belongs to the turn's user."""
        if job.session is None:
            return
        key = session_of(job.tenant, job.session)
        if key not in self._users and key not in self._begun:
            self._begun[key] = job.user
            if not self._writes:
                self._writes = True
                self._books.writers.append(self._write)

    def undo(self) -> None:
        """Discard what was accepted since the unit of work was last closed."""
        self._begun.clear()
        self._writes = False

    def _write(self) -> None:
        if self._begun:
            # Sorted, so that concurrent transactions do not deadlock.
            self._books.also.append((BEGUN, sorted(self._begun.items())))
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
