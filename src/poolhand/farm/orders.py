"""Orders: calls and terms, made into what a store is asked to keep."""

from __future__ import annotations

import os
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from poolhand.context import running
from poolhand.contract import Order
from poolhand.execute.brief import Brief, record_of, write_brief
from poolhand.execute.code import Code
from poolhand.pool.options import Options, Terms
from poolhand.rules.ids import Ids, full_id
from poolhand.rules.job import Job, Status
from poolhand.runtime import Identity, Runtime


class Call(Struct, frozen=True):
    """A call to be kept: of a task with its arguments, or of a closure, which lives at `home`."""

    name: str
    payload: bytes = b""
    code: Code | None = None
    home: Identity | None = None


class Orders:
    """Makes orders out of calls and the terms they are submitted under; from any thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._begin()

    def _begin(self) -> None:
        runtime = self._runtime
        offset = runtime.wall().timestamp() - runtime.monotonic()
        self._ids = Ids(runtime.salt(), offset)
        self._lock = Lock()
        self._process = os.getpid()

    def make(self, call: Call, terms: Terms) -> Order:
        options = terms.options
        inside = running.get()
        job = replace(
            terms.draft,
            id=self._next_id(),
            name=call.name,
            submitted_at=self._runtime.wall(),
            submitted_by="user" if inside is None else inside.submitter,
            run_at=options.run_at,
        )
        return Order(
            job,
            write_brief(_brief(call, options)),
            options.delay,
            options.expires,
            options.rerun_failed,
        )

    def again(self, job: Job, brief: bytes, by: str) -> Order:
        """Return the order that runs a dead job again, as a new one."""
        anew = Job(
            id=self._next_id(),
            pool=job.pool,
            pool_id=job.pool_id,
            status=Status.QUEUED,
            submitted_at=self._runtime.wall(),
            name=job.name,
            submitted_by=by,
            key=job.key,
            priority=job.priority,
            session=job.session,
            tenant=job.tenant,
            user=job.user,
            idempotency_key=job.idempotency_key,
        )
        expires = None
        if job.expires_at is not None:
            expires = (job.expires_at - job.submitted_at).total_seconds()
        return Order(anew, brief, expires=expires, rerun_failed=True, revives=job.id)

    def _next_id(self) -> str:
        if self._process != os.getpid():
            # A fork would count on with the salt of its parent, and may have got a held lock.
            self._begin()
        with self._lock:
            number = self._ids.next(self._runtime.monotonic())
            return full_id(self._ids.head, number)


def _brief(call: Call, options: Options) -> Brief:
    return Brief(
        call.name,
        call.payload,
        record_of(options.retry),
        options.timeout,
        options.soft_timeout,
        options.run_in,
        options.on_crash == "rerun",
        call.home is not None,
        call.home,
    )
