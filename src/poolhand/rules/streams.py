"""Streams of the log that belong to one job, and go with it."""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from poolhand.rules.values.plain import PlainView

MOST_DATA = 256 * 1024  # bytes of JSON in one event
EVENTS, JOURNAL, INBOX = "job/", "journal/", "inbox/"
SESSIONS, EXECUTIONS, ROLLBACKS = "session/", "executions/", "rollbacks/"
OF_SESSIONS = (SESSIONS, EXECUTIONS, ROLLBACKS)
ERASED = "erased/"
ERASED_FOR = 30 * 86_400.0  # seconds: longer than any turn runs
LONGEST_PART = 300
TOLD_TOPIC = "told"  # the signal that something was written to the events of some job


class StreamKind(StrEnum):
    """What an event of a job is; `restarted` comes where another attempt begins to tell."""

    STATE = "state"
    PROGRESS = "progress"
    LOG = "log"
    CHUNK = "chunk"
    RESTARTED = "restarted"


class JobEvent(PlainView, frozen=True):
    """Something that a job told, or that happened to it; numbers of a job have no gaps.

    `data` is what was emitted, the message and details of progress, or the name of a state. An
    event belongs to the attempt of that number.
    """

    number: int
    at: datetime
    kind: StreamKind
    attempt: int
    data: Any = None


def events_of(job_id: str) -> str:
    """Return the stream of what a job tells."""
    return EVENTS + job_id


def journal_of(job_id: str) -> str:
    """Return the stream of what a job has finished, and need not do again."""
    return JOURNAL + job_id


def inbox_of(job_id: str) -> str:
    """Return the stream of what was submitted to a turn while it waited."""
    return INBOX + job_id


def session_of(tenant: str | None, session: str) -> str:
    """Return the key of a session's document, and the stream of its revisions."""
    return sessions_of(tenant) + part(session)


def sessions_of(tenant: str | None) -> str:
    """Return how the keys of all sessions of a tenant begin."""
    return f"{SESSIONS}{part(tenant or '')}/"


def executions_of(tenant: str | None, session: str) -> str:
    """Return the stream of the attempts at all turns of a session."""
    return f"{EXECUTIONS}{part(tenant or '')}/{part(session)}"


def rollbacks_of(tenant: str | None, session: str) -> str:
    """Return the stream of the turns of a session whose writes are taken back."""
    return f"{ROLLBACKS}{part(tenant or '')}/{part(session)}"


def streams_of_session(tenant: str | None, session: str) -> tuple[str, ...]:
    """Return all streams of a session."""
    return streams_of_document(session_of(tenant, session))


def streams_of_document(key: str) -> tuple[str, ...]:
    """Return the streams that go with a document: those of a session."""
    if not key.startswith(SESSIONS):
        return ()
    whose = key.removeprefix(SESSIONS)
    return key, f"{EXECUTIONS}{whose}", f"{ROLLBACKS}{whose}"


def erasure_of(key: str) -> str:
    """Return the key of the document that says up to which version another one was erased."""
    # What is erased leaves no name behind.
    return ERASED + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def part(name: str) -> str:
    """Return a name as a part of a path that can be an entry of an index, however long it is."""
    quoted = quote(name, safe="")
    if len(quoted) <= LONGEST_PART:
        return quoted
    return f"{quoted[: LONGEST_PART - 65]}~{hashlib.sha256(name.encode()).hexdigest()}"


def streams_of(job_id: str) -> tuple[str, ...]:
    """Return all streams of a job."""
    return events_of(job_id), journal_of(job_id), inbox_of(job_id)
