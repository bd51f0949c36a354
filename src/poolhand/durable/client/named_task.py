"""Tasks by name: submitted by processes that have not imported their code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from contextlib import suppress
from difflib import get_close_matches
from inspect import Parameter
from typing import Any

import msgspec
from msgspec import Struct

from poolhand.contract import JobRequest
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.durable.catalogue import AGENT, TASK, TaskRecord, known_tasks
from poolhand.durable.client.explain import pool_named
from poolhand.durable.client.submit import StoreClient
from poolhand.durable.client.task import TaskSubmitter
from poolhand.durable.client.ticket import SyncTicket, has_loop
from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse
from poolhand.pool.config import PoolConfig
from poolhand.pool.ticket import Ticket
from poolhand.rules.explain import meant
from poolhand.rules.json_schema import schema_fault
from poolhand.rules.plain import safe
from poolhand.rules.validation import NAME, shown
from poolhand.wire.codec import JSON
from poolhand.wire.payload import Wire

KNOWN_FOR = 5.0  # seconds for which the published tasks of a store are cached
MOST_NAMED = 10  # the most task names in an error


class PublishedCode(TaskCode):
    """A task whose function is in other processes: its published parameters and their schema."""

    _given_as = "data"

    def __init__(self, name: str, wire: Wire, record: TaskRecord | None) -> None:
        super().__init__(name, _stub(record), wire)
        self._record = record
        self._version = None if record is None else record.version
        self.source = "" if record is None else record.source

    @property
    def version(self) -> str | None:  # type: ignore[override]
        """The published version; None if none was published."""
        return self._version

    def pack(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bytes | None = None
    ) -> bytes:
        """Return the packed call; raise if it does not fit the published schema."""
        if self._record is None:
            return self._pack_unknown(args, kwargs, bound)
        call = self.signature.bind(args, kwargs)
        schema = self._record.arguments
        for name, value in _as_json(dict(call[2])).items():
            fault = schema_fault(value, schema.get("properties", {}).get(name), schema, name)
            if fault is not None:
                raise self.signature.misfit(fault)
        return self.wire.write(call, self._call, bound)

    def _pack_unknown(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], bound: bytes | None
    ) -> bytes:
        if args:
            raise UsageError(
                f"{self.name}: no worker has published its parameters, so arguments are given by "
                "name: submit(topic='bees'), not submit('bees')"
            )
        return self.wire.write((self.name, list(kwargs), kwargs), self._call, bound)


class NamedTask(TaskSubmitter[..., Any]):
    """A task found by its name: submit, run and map it, under other options if you like."""

    _kind = TASK
    _is_here = True
    _stored: tuple[PoolConfig, int | None] | None = None

    def __repr__(self) -> str:
        return f"<NamedTask {safe(self.name)} in pool {self._pool!r}>"

    def session(
        self, id: str, *, tenant: str | None = None, user: str | None = None
    ) -> TaskSubmitter[..., Any]:
        """Return an agent for turns of one session."""
        return self.with_options(session=id, tenant=tenant, user=user)

    def request(self, *args: Any, **kwargs: Any) -> JobRequest:
        if self._kind == AGENT and self._changes.get("session") is None:
            raise UsageError(
                f"{self.name} is an agent, whose turns belong to a session; use "
                f"(await app.find_task({self.name!r})).session('s-1').submit(…)"
            )
        return super().request(*args, **kwargs)

    def _view(self, changes: dict[str, Any]) -> NamedTask:
        view = NamedTask(self._code, self._pool, self._client, changes)
        view._kind, view._stored, view._is_here = self._kind, self._stored, self._is_here
        return view

    def _config(self) -> PoolConfig:
        return super()._config() if self._stored is None else self._stored[0]

    def _slots(self) -> int | None:
        return super()._slots() if self._stored is None else self._stored[1]

    def _check_code(self, config: PoolConfig, run_in: str | None) -> None:
        # The worker that has the code checks `run_in`.
        if self._is_here:
            super()._check_code(config, run_in)


class KnownTasks(Struct, frozen=True):
    """The tasks that workers have published by name, and when they were read from the store."""

    records: dict[str, TaskRecord]
    at: float


class NamedTasks:
    """Finds tasks by name: those of this app first, then those that workers have published."""

    def __init__(self, client: StoreClient, wire: Wire) -> None:
        self._client = client
        self._wire = wire
        self._here: dict[str, NamedTask] = {}
        self._known: KnownTasks | None = None
        self._tasks: dict[tuple[str, str], NamedTask] = {}

    def add(self, code: TaskCode, pool: str, kind: str, changes: dict[str, Any]) -> None:
        """Add a task of this app."""
        task = NamedTask(code, pool, self._client, changes)
        task._kind = kind
        self._here[code.name] = task

    async def find(self, name: str, pool: str | None) -> NamedTask:
        """Return the task of that name; with `pool`, also one that no worker has published."""
        if callable(name):
            raise _not_a_name(name)
        NAME.require("task name", name)
        if pool is not None:
            NAME.require("pool", pool)
        here = meant(name, self._here)
        if len(here) == 1:
            found = self._here[here[0]]
            return found if pool in (None, found.pool) else _moved(found, pool)
        records = await self._records(name)
        names = meant(name, records)
        if len(names) == 1:
            record = records[names[0]]
            return await self._published(record, record.pool if pool is None else pool)
        if pool is None:
            raise self._unknown(name, [*here, *names], records)
        return await self._elsewhere(name, pool, None)

    def find_sync(self, name: str) -> NamedTask:
        return self._client.ask_sync(lambda: self.find(name, None))

    async def _records(self, name: str) -> dict[str, TaskRecord]:
        """Return the published tasks; from the cache while it is fresh and has the name."""
        known, now = self._known, self._client.runtime.monotonic()
        if known is not None and now - known.at < KNOWN_FOR and meant(name, known.records):
            return known.records
        connection = await self._client.connection()
        tasks = await connection.thread.ask(lambda: known_tasks(connection.store))
        # Submit to the first of a name: tasks with workers, and newer ones, come first.
        records = {one.record.name: one.record for one in reversed(tasks)}
        self._known = KnownTasks(records, now)
        self._tasks.clear()
        return records

    async def _published(self, record: TaskRecord, pool: str) -> NamedTask:
        task = self._tasks.get((record.name, pool))
        if task is None:
            task = await self._elsewhere(record.name, pool, record)
            self._tasks[record.name, pool] = task
        return task

    async def _elsewhere(self, name: str, pool: str, record: TaskRecord | None) -> NamedTask:
        code = PublishedCode(name, self._wire, record)
        task = NamedTask(code, pool, self._client, {} if record is None else _options(record))
        task._is_here, task._kind = False, TASK if record is None else record.kind
        connection = await self._client.connection()
        row = await connection.thread.ask(lambda: pool_named(connection.store, pool))
        if row is not None:
            # Settings from the store: this app may not declare the pool.
            spec = row.spec
            config = PoolConfig(pool, queue=spec.queue, backpressure=spec.backpressure)
            task._stored = config, spec.slots
        return task

    def _unknown(self, name: str, several: list[str], records: Collection[str]) -> UsageError:
        if several:
            return UsageError(
                f"task {name!r} may mean {' or '.join(map(repr, several))}; give its full name"
            )
        names = {*records, *self._here}
        near = get_close_matches(name, names, n=3, cutoff=0.75)
        near += [one for one in sorted(names) if one.rpartition(".")[2] == name and one not in near]
        if near:
            hint = f"did you mean {' or '.join(map(repr, near))}?"
        elif names:
            some = ", ".join(map(repr, sorted(names)[:MOST_NAMED]))
            hint = f"known are {some}{', …' if len(names) > MOST_NAMED else ''};"
        else:
            hint = "no worker has published any task yet: start one;"
        return UsageError(
            f"task {name!r} is not registered in this app, and no worker of this store has "
            f"published it; {hint} to submit it anyway, name its pool: "
            f"(await app.find_task({name!r}, pool='…')).submit(…)"
        )


def _not_a_name(given: object) -> UsageError:
    """Return the error for a task or a function in place of a name."""
    if isinstance(given, TaskSubmitter):
        name = given.name.rpartition(".")[2]
        return UsageError(
            f"this takes the name of a task, not the task itself; write await {name}.submit(…), or "
            f"give its name: {given.name!r}"
        )
    name = getattr(given, "__name__", "f")
    return UsageError(
        f"this takes the name of a task, not a function; register it with @app.task, then write "
        f"await {name}.submit(…)"
    )


@explain_misuse
class SubmitByName:
    """The methods of an app for processes that do not import the code of its tasks."""

    _named: NamedTasks

    async def submit(self, name: str, /, *args: Any, **kwargs: Any) -> Ticket[Any]:
        """Submit a task by its name: `await app.submit("research", "bees")`.

        A task of this app is submitted as it is registered, any other as workers of the store have
        published it: with their pool, options and types of arguments.
        """
        return await (await self.find_task(name)).submit(*args, **kwargs)

    def submit_sync(self, name: str, /, *args: Any, **kwargs: Any) -> SyncTicket[Any]:
        """Submit a task by its name from code without an event loop."""
        if has_loop():
            raise UsageError(
                "app.submit_sync would block the event loop that runs here; use "
                f"await app.submit({shown(name)}, …)"
            )
        task = self._named.find_sync(name)
        return task.submit_sync(*args, **kwargs)

    async def find_task(self, name: str, *, pool: str | None = None) -> NamedTask:
        """Return a task by its name, to submit it under other options, to run it or to map it.

        One that neither this app nor any worker has raises UsageError, unless `pool` gives the pool
        to submit it to; its arguments are then given by name, and checked by the worker alone.
        """
        return await self._named.find(name, pool)


def _moved(task: NamedTask, pool: str) -> NamedTask:
    moved = NamedTask(task.code, pool, task._client, task._changes)
    moved._kind, moved._is_here = task._kind, task._is_here
    return moved


def _options(record: TaskRecord) -> dict[str, Any]:
    """Return the options of a published task, as they are given to `with_options`."""
    options = {
        "priority": record.priority,
        "timeout": record.timeout,
        "soft_timeout": record.soft_timeout,
        "retry": None if record.retry is None else record.retry.retry(),
        "run_in": record.run_in,
        "on_crash": record.on_crash,
    }
    return {**options, "on_busy": record.on_busy} if record.kind == AGENT else options


def _stub(record: TaskRecord | None) -> Callable[..., Any]:
    """Return a function with the parameters of a published task; it is never called."""

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the code of this task is elsewhere")

    if record is not None:
        required = record.arguments.get("required", ())
        parameters = [
            Parameter(
                name,
                _KINDS[kind],
                default=Parameter.empty if name in required or kind in _VARIABLE else None,
            )
            for name, kind in record.parameters
        ]
        elsewhere.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return elsewhere


_KINDS = {
    kind.name: kind
    for kind in (
        Parameter.POSITIONAL_ONLY,
        Parameter.POSITIONAL_OR_KEYWORD,
        Parameter.VAR_POSITIONAL,
        Parameter.KEYWORD_ONLY,
        Parameter.VAR_KEYWORD,
    )
}
_VARIABLE = (Parameter.VAR_POSITIONAL.name, Parameter.VAR_KEYWORD.name)


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON values; values that JSON cannot write are left to the codec."""
    with suppress(Exception):
        found: dict[str, Any] = msgspec.json.decode(JSON.write(values))
        return found
    return {}
