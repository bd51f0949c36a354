"""The call of a schedule: packed once, on the thread of the user, then copied for each moment.

Validators and `__repr__` of arguments are user code, which must not run on the store thread: a slow
one would delay the renewal of leases.
"""

from __future__ import annotations

from contextvars import Context
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from poolhand.contract import JobRequest
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.durable.client.job_request import JobRequests, TaskCall
from poolhand.durable.client.submit import StoreClient
from poolhand.durable.client.task import Task
from poolhand.pool.options import terms
from poolhand.rules.schedule import EPOCH, Past
from poolhand.rules.validation import is_writable, shown

LONGEST_TEXT = 100
DOCUMENTS = "schedule/"
CALLS = "schedule-call/"  # the request that `trigger` copies; empty where calls are signed
PAUSES = "schedule-pause/"  # in documents of their own: an older worker would not keep them
KEEP = timedelta(days=366)


class ScheduleRecord(Struct, frozen=True):
    """A schedule as stored, the same for all processes."""

    task: str
    text: str
    zone: str | None
    missed: str
    past: Past
    next: datetime | None = None
    arguments: str = ""
    # The last moment whose job was submitted, at first the moment of registration; None in records
    # of older versions. Unlike `past` it stays during a pause.
    ran: datetime | None = None


class SchedulePause(Struct, frozen=True):
    """Whether a schedule is paused, since when, or until when it was."""

    paused: bool
    at: datetime
    by: str

    def until(self, now: datetime) -> datetime:
        """Return the moment up to which nothing runs."""
        return now if self.paused else self.at


class ScheduledCall(Struct, frozen=True):
    """A packed call, and its arguments as text. No method runs user code."""

    requests: JobRequests
    code: TaskCode
    request: JobRequest
    text: str

    def request_for(self, key: str, by: str) -> JobRequest:
        """Return the request for one job."""
        return self.requests.copy(self.request, by, key, self.code)

    def as_document(self) -> bytes:
        """Return the request that `trigger` copies; empty if the call must be signed."""
        if self.code.signs:
            return b""
        draft = replace(self.request.job, id="", submitted_at=EPOCH, submitted_by="")
        return msgspec.msgpack.encode(replace(self.request, job=draft))


def pack_call(
    client: StoreClient,
    task: Task[..., Any, Any],
    code: TaskCode,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> ScheduledCall:
    """Pack a call of a task with `code`; raise if the task cannot be called so."""
    agreed = terms(task.usual_options(), task.pool, client.pool_id(task.pool))
    call = TaskCall(code.name, args, kwargs, code)
    # In an empty context: jobs must not inherit variables of the code that starts a worker.
    request = Context().run(client.requests.make, call, agreed)
    return ScheduledCall(client.requests, code, request, _text(args, kwargs))


def _text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return arguments as readable text."""
    named = (f"{name}={shown(value)}" for name, value in kwargs.items())
    text = ", ".join((*map(shown, args), *named))
    text = "".join(letter if is_writable(letter) else "\ufffd" for letter in text)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
