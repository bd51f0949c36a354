"""Names of log streams: those of a job, deleted with it, and those of a session."""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from poolhand.rules.plain import PlainView

MOST_DATA = 256 * 1024  # bytes of JSON in one event
EVENTS, JOURNAL, INBOX = "job/", "journal/", "inbox/"
SESSIONS, EXECUTIONS, ROLLBACKS = "session/", "executions/", "rollbacks/"
OF_SESSIONS = (SESSIONS, EXECUTIONS, ROLLBACKS)
ERASED = "erased/"
ERASED_FOR = 30 * 86_400.0  # seconds: longer than any turn runs
LONGEST_PART = 300
EVENTS_TOPIC = "told"  # the signal that events of some job were appended


class StreamKind(StrEnum):
    """The kind of a job's event; `restarted` marks the first event of another attempt."""

    STATE = "state"
    PROGRESS = "progress"
    LOG = "log"
    CHUNK = "chunk"
    RESTARTED = "restarted"


class JobEvent(PlainView, frozen=True):
    """An event that a job emitted, or a change of its state; a job's numbers have no gaps.

    `data` is the emitted value, the message and details of progress, or the name of a state.
    `attempt` is the number of the attempt that the event belongs to.
    """

    number: int
    at: datetime
    kind: StreamKind
    attempt: int
    data: Any = None


def events_of(job_id: str) -> str:
    """Return the stream of the events of a job."""
    return EVENTS + job_id


def journal_of(job_id: str) -> str:
    """Return the stream of the steps that a job has completed and need not repeat."""
    return JOURNAL + job_id


def inbox_of(job_id: str) -> str:
    """Return the stream of the messages submitted to a turn while it waited."""
    return INBOX + job_id


def session_of(tenant: str | None, session: str) -> str:
    """Return the key of a session's document, and the stream of its revisions."""
    return sessions_of(tenant) + part(session)


def sessions_of(tenant: str | None) -> str:
    """Return the key prefix of all sessions of a tenant."""
    return f"{SESSIONS}{part(tenant or '')}/"


def executions_of(tenant: str | None, session: str) -> str:
    """Return the stream of the attempts at all turns of a session."""
    return f"{EXECUTIONS}{part(tenant or '')}/{part(session)}"


def rollbacks_of(tenant: str | None, session: str) -> str:
    """Return the stream of the turns of a session whose writes are rolled back."""
    return f"{ROLLBACKS}{part(tenant or '')}/{part(session)}"


def streams_of_session(tenant: str | None, session: str) -> tuple[str, ...]:
    """Return all streams of a session."""
    return streams_of_document(session_of(tenant, session))


def streams_of_document(key: str) -> tuple[str, ...]:
    """Return the streams that are deleted with a document: those of a session."""
    if not key.startswith(SESSIONS):
        return ()
    whose = key.removeprefix(SESSIONS)
    return key, f"{EXECUTIONS}{whose}", f"{ROLLBACKS}{whose}"


def erasure_of(key: str) -> str:
    """Return the key of the document that records up to which version another was erased."""
    # A hash, because an erasure must not leave the name of what was erased.
    return ERASED + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def part(name: str) -> str:
    """Return a name quoted for a path, and shortened with a hash so that it fits an index."""
    quoted = quote(name, safe="")
    if len(quoted) <= LONGEST_PART:
        return quoted
    return f"{quoted[: LONGEST_PART - 65]}~{hashlib.sha256(name.encode()).hexdigest()}"


def streams_of(job_id: str) -> tuple[str, ...]:
    """Return all streams of a job."""
    return events_of(job_id), journal_of(job_id), inbox_of(job_id)
