"""Orders: calls and terms, made into what a store is asked to keep."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock

from msgspec import Struct
from msgspec.structs import asdict, replace

from poolhand.context import running, snapshot
from poolhand.contract import Order
from poolhand.execute.brief import Brief, PlainBrief, record_of, write_brief
from poolhand.execute.code import Code
from poolhand.pool.options import Options, Terms
from poolhand.rules.ids import Ids, full_id
from poolhand.rules.job import Job, Status
from poolhand.rules.meeting import OnBusy
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
        (id,) = self._next_ids(1)
        brief = _brief(call, terms.options)
        on_busy = OnBusy(terms.options.on_busy)
        order = Order(self._draft(call, terms, id), write_brief(brief), *_how(terms.options))
        return order if on_busy is OnBusy.ENQUEUE else replace(order, on_busy=on_busy)

    def make_all(self, call: Call, payloads: Sequence[bytes], terms: Terms) -> list[Order]:
        """Return orders for calls that differ in nothing but their payloads."""
        draft, brief = self._draft(call, terms, ""), _brief(call, terms.options)
        how = _how(terms.options)
        return [
            Order(replace(draft, id=id), write_brief(replace(brief, payload=payload)), *how)
            for id, payload in zip(self._next_ids(len(payloads)), payloads, strict=True)
        ]

    def _draft(self, call: Call, terms: Terms, id: str) -> Job:
        inside = running.get()
        return replace(
            terms.draft,
            id=id,
            name=call.name,
            submitted_at=self._runtime.wall(),
            submitted_by="user" if inside is None else inside.submitter,
            run_at=terms.options.run_at,
        )

    def again(self, job: Job, brief: bytes, by: str) -> Order:
        """Return the order that runs a dead job again, as a new one."""
        anew = Job(
            id=self._next_ids(1)[0],
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
            continues=job.run,
        )
        expires = None
        if job.expires_at is not None:
            expires = (job.expires_at - job.submitted_at).total_seconds()
        return Order(anew, brief, expires=expires, rerun_failed=True, revives=job.id)

    def _next_ids(self, count: int) -> list[str]:
        if self._process != os.getpid():
            # A fork would count on with the salt of its parent, and may have got a held lock.
            self._begin()
        with self._lock:
            now = self._runtime.monotonic()
            return [self._next_id(now) for _ in range(count)]

    def _next_id(self, now: float) -> str:
        # First: it may change the head.
        number = self._ids.next(now)
        return full_id(self._ids.head, number)


def _how(options: Options) -> tuple[float | None, float | None, bool]:
    return options.delay, options.expires, options.rerun_failed


def _brief(call: Call, options: Options) -> PlainBrief:
    brief = PlainBrief(
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
    # A closure has the whole context of its submitter.
    if call.code is None or not (brought := snapshot()):
        return brief
    return Brief(**asdict(brief), context=call.code.pack_context(brought))
