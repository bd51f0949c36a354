"""The catalogue: which tasks and pools the workers of a store have, for other processes.

Each version of an app stores one document, under a digest of its content; the owner record of a
process names the one that it uses. The document stays a while after the last of those processes, so
that a task can be submitted by its name while no worker runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw, Struct

from poolhand.contract import Lease, Owner, Put, Store
from poolhand.durable.calls.call_record import record_of
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.errors import UsageError
from poolhand.pool.options import Options
from poolhand.rules.explain import meant
from poolhand.rules.outcome import RetryRecord
from poolhand.rules.queue.stored_desk import PoolSpec

PREFIX = "catalogue/"
KEEP_FOR = 7 * 24 * 3600.0
PUBLISH_EVERY = 3600.0
DIGEST_LENGTH = 16
TASK, AGENT = "task", "agent"


class TaskRecord(Struct, frozen=True, omit_defaults=True):
    """A task as published: `arguments` is a JSON Schema, the rest are its default options.

    `parameters` are names and kinds in their order, which a JSON Schema does not have.
    """

    name: str
    pool: str
    kind: str
    version: str
    arguments: dict[str, Any]
    priority: int = 0
    timeout: float | None = None
    soft_timeout: float | None = None
    retry: RetryRecord | None = None
    run_in: str | None = None
    on_crash: str = "rerun"
    on_busy: str = "enqueue"
    parameters: tuple[tuple[str, str], ...] = ()
    source: str = ""


class PublishedTasks(Struct, frozen=True):
    """The catalogue of one version of an app, and the digest that names it."""

    digest: str
    tasks: tuple[TaskRecord, ...]
    pools: tuple[Raw, ...] = ()

    def document(self, at: datetime) -> Put:
        data = msgspec.json.encode(CatalogueRecord(at, self.tasks, self.pools))
        return Put(f"{PREFIX}{self.digest}", data, None, KEEP_FOR)


class CatalogueRecord(Struct, frozen=True):
    """The content of a catalogue document: tasks, and when a worker last published them.

    `pools` are the specs of the pools that the app declares, undecoded: one that a newer version
    wrote must not hide the tasks.
    """

    at: datetime
    tasks: tuple[TaskRecord, ...]
    pools: tuple[Raw, ...] = ()

    def specs(self) -> list[PoolSpec]:
        """Return the declared pools, as far as this version can read them."""
        found = []
        for data in self.pools:
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(data, type=PoolSpec))
        return found


NOTHING = CatalogueRecord(datetime.min.replace(tzinfo=UTC), ())


class Catalogue:
    """The tasks of an app, and the pools that it declares."""

    def __init__(self, pools: Callable[[], Sequence[PoolSpec]] = tuple) -> None:
        self._pools = pools
        self._tasks: dict[str, tuple[TaskCode, str, str, Callable[[], Options]]] = {}

    def add(self, code: TaskCode, pool: str, kind: str, options: Callable[[], Options]) -> None:
        """Add a task; `options` is called later, as its pool may be declared later."""
        self._tasks[code.name] = code, pool, kind, options

    def published(self) -> PublishedTasks:
        """Return the catalogue to publish; call it on a thread where user code may run."""
        records = []
        for _, task in sorted(self._tasks.items()):
            # A task whose options do not fit its pool is refused when it is submitted.
            with suppress(UsageError):
                records.append(_record(*task))
        pools = [msgspec.json.encode(spec, order="deterministic") for spec in self._pools()]
        data = b"\n".join([msgspec.json.encode(records, order="deterministic"), *pools])
        digest = sha256(data).hexdigest()[:DIGEST_LENGTH]
        return PublishedTasks(digest, tuple(records), tuple(map(Raw, pools)))


class KnownTask(Struct, frozen=True):
    """A task that was last published `at` a time, and the live processes that have it."""

    record: TaskRecord
    at: datetime
    workers: tuple[Owner, ...] = ()


async def known_tasks(store: Store) -> list[KnownTask]:
    """Return all published tasks by name: first the newest version of those that have workers."""
    workers = _workers(await store.leases())
    found, after = list[KnownTask](), ""
    while keys := await store.scan(PREFIX, after):
        after = keys[-1]
        for digest in (key.removeprefix(PREFIX) for key in keys):
            contents = await _contents(store, digest)
            having = tuple(one for one in workers if one.catalogue == digest)
            found += [KnownTask(record, contents.at, having) for record in contents.tasks]
    return sorted(found, key=lambda task: (task.record.name, not task.workers, _age(task.at)))


def _age(at: datetime) -> float:
    return -at.timestamp()


async def workers_with(
    store: Store, task: str, leases: Sequence[Lease]
) -> tuple[list[Owner], list[str]]:
    """Return the live workers that have a task, and the tasks that an ambiguous name may mean."""
    workers, having, ambiguous = _workers(leases), set[str](), set[str]()
    for digest in sorted({one.catalogue for one in workers if one.catalogue is not None}):
        contents = await _contents(store, digest)
        names = meant(task, [record.name for record in contents.tasks])
        # A task with the same end of its name may be in another file, which only its worker can
        # check.
        if names == [task]:
            having.add(digest)
        ambiguous.update(names[1:] and names)
    return [one for one in workers if one.catalogue in having], sorted(ambiguous)


async def contents_of(store: Store, workers: Sequence[Owner]) -> dict[str, CatalogueRecord]:
    """Return the catalogues of these workers, by the digests that their records name."""
    digests = sorted({one.catalogue for one in workers if one.catalogue is not None})
    return {digest: await _contents(store, digest) for digest in digests}


def _workers(leases: Sequence[Lease]) -> list[Owner]:
    return [lease.owner for lease in leases if lease.owner.works and not lease.expired]


async def _contents(store: Store, digest: str) -> CatalogueRecord:
    found = await store.get_document(f"{PREFIX}{digest}")
    # One that a newer version has written counts as empty: the catalogue is optional.
    return NOTHING if found is None else found.read(CatalogueRecord) or NOTHING


def _record(code: TaskCode, pool: str, kind: str, options: Callable[[], Options]) -> TaskRecord:
    usual = options()
    names = ("priority", "timeout", "soft_timeout", "run_in", "on_crash", "on_busy")
    given: dict[str, Any] = {name: getattr(usual, name) for name in names}
    given["retry"] = record_of(usual.retry)
    call = code.version, code.arguments()
    given |= {"parameters": code.parameters(), "source": code.source}
    return TaskRecord(code.name, pool, kind, *call, **given)
