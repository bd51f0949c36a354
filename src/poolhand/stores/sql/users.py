"""Whose sessions are, in a SQL store: of the user of the first turn that was accepted."""

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
# While a turn comes in, nobody may forget whose session it is; in one order, as all take them.
HELD = f"{USERS} /*pg ORDER BY session FOR KEY SHARE */"
ALONE = f"{USERS} /*pg ORDER BY session FOR UPDATE */"
# Without a key: of two who begin a session at the same time the second must begin anew.
BEGUN = Insert("poolhand_session_users", {"session": "text", "owner": "text"})
FORGET = "DELETE FROM poolhand_session_users WHERE session IN (?*) RETURNING session"
WRITTEN = "SELECT key FROM poolhand_documents WHERE key IN (?*)"
KEPT = "SELECT session, tenant FROM poolhand_jobs WHERE session IN (?*) GROUP BY session, tenant"


class SessionUsers:
    """The users of the sessions that one write has to do with, looked up together."""

    def __init__(self, books: UnitOfWork) -> None:
        self._books = books
        self._users: dict[str, str | None] = {}
        self._begun: dict[str, str | None] = {}
        self._asked: set[str] = set()
        self._writes = False

    def load(self, jobs: Iterable[Job]) -> None:
        """Look up whose the sessions of jobs are; nothing is asked for those without one."""
        keys = {session_of(job.tenant, job.session) for job in jobs if job.session is not None}
        asked = sorted(keys - self._asked)
        if asked:
            self._asked.update(asked)
            self._users |= _found(self._books.tables, HELD, asked)

    def stranger(self, jobs: Iterable[Job]) -> Job | None:
        """Return the first job whose session is another user's."""
        return stranger(jobs, ChainMap(self._begun, self._users))

    def begin(self, job: Job) -> None:
        """Note that a turn was accepted: a session without a user is its user's from now on."""
        if job.session is None:
            return
        key = session_of(job.tenant, job.session)
        if key not in self._users and key not in self._begun:
            self._begun[key] = job.user
            if not self._writes:
                self._writes = True
                self._books.writers.append(self._write)

    def undo(self) -> None:
        """Forget what was accepted since the books were last closed."""
        self._begun.clear()
        self._writes = False

    def _write(self) -> None:
        if self._begun:
            # Sorted: who comes at the same time waits for us, or we for him, but not both.
            self._books.also.append((BEGUN, sorted(self._begun.items())))
            self._users |= self._begun
            self._begun.clear()


def users_of(tables: Tables, sessions: Sequence[str]) -> dict[str, str | None]:
    """Return the users of sessions, by the keys of their documents; new ones are left out."""
    return _found(tables, USERS, sessions)


def forget(tables: Tables, keys: Iterable[str]) -> None:
    """Forget whose sessions were that are gone; other keys mean nothing here."""
    sessions = sorted(sought(key) for key in keys if key.startswith(SESSIONS))
    for _ in tables.among(FORGET, sessions):
        pass


def forget_unkept(tables: Tables, jobs: Iterable[tuple[str | None, str | None]]) -> None:
    """Forget whose sessions were, by tenant and name, of which neither a job nor a state is left.

    Jobs that are gone must be so by now.
    """
    names = {session_of(tenant, name): (tenant, name) for tenant, name in jobs if name is not None}
    for (key,) in tables.among(WRITTEN, list(names)):
        del names[key]
    if not names:
        return
    # Before the jobs are looked for: one that comes in now is there when its session is had.
    _found(tables, ALONE, sorted(names))
    sessions = sorted({name for _, name in names.values()})
    kept = {(tenant, name) for name, tenant in tables.among(KEPT, sessions)}
    forget(tables, [key for key, whose in names.items() if whose not in kept])


def _found(tables: Tables, text: str, sessions: Sequence[str]) -> dict[str, str | None]:
    return dict(tuple(row) for row in tables.among(text, [sought(key) for key in sessions]))
