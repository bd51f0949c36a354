"""Tasks: functions that can be submitted to a store."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, overload

from msgspec.structs import replace

from poolhand.contract import JobRequest
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.durable.client.job_request import TaskCall
from poolhand.durable.client.submit import StoreClient, SubmitContext, map_stored, map_window
from poolhand.durable.client.ticket import SyncTicket, has_loop
from poolhand.durable.client.transaction import Transaction, UserConnection
from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse, no_attribute
from poolhand.pool.config import PoolConfig
from poolhand.pool.mapping import key_faults, map_faults
from poolhand.pool.options import (
    Options,
    Origin,
    SubmitTerms,
    defaults,
    terms,
    where_to_run,
    with_changes,
)
from poolhand.pool.submitter import UNSET, chosen
from poolhand.pool.ticket import Ticket
from poolhand.rules.outcome import Retry
from poolhand.rules.plain import safe
from poolhand.rules.validation import Seconds, raise_faults, shown

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskOptions(TypedDict, total=False):
    """The arguments of `@app.task(…)` beside the pool: options of every submit of this task."""

    name: str | None
    priority: int
    timeout: Seconds | None
    soft_timeout: Seconds | None
    retry: Retry | None
    run_in: str | None
    on_crash: str


@explain_misuse
class TaskSubmitter(Generic[P, T]):
    """A task under one set of options; a task is one, and so is the result of `with_options`."""

    def __init__(
        self,
        code: TaskCode,
        pool: str,
        client: StoreClient,
        changes: dict[str, Any],
        origin: Origin | None = None,
    ) -> None:
        self._code = code
        self._origin = origin or Origin(f"{code.name}.with_options")
        self._pool = pool
        self._client = client
        self._changes = changes
        self._made: tuple[PoolConfig, SubmitTerms] | None = None

    @property
    def name(self) -> str:
        return self._code.name

    @property
    def code(self) -> TaskCode:
        return self._code

    @property
    def pool(self) -> str:
        return self._pool

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[T]:
        """Submit a call and return its ticket; from then on the job survives crashes."""
        request = self.request(*args, **kwargs)
        (ticket,) = await self._client.submitter.submit([request], self._how())
        found: Ticket[T] = ticket
        return found

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Submit and wait; return the value, or raise the error that `ticket.result()` raises."""
        return await (await self.submit(*args, **kwargs))

    @overload
    async def map(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        return_exceptions: Literal[False] = False,
    ) -> list[T]: ...

    @overload
    async def map(
        self, items: Iterable[Any] | AsyncIterable[Any], *, return_exceptions: bool
    ) -> list[T | BaseException]: ...

    async def map(
        self, items: Iterable[Any] | AsyncIterable[Any], *, return_exceptions: bool = False
    ) -> list[Any]:
        """Submit a call per item, with the item as argument; return values in the order of items.

        A bounded number of jobs is in the pool at a time, so `items` may be endless or slow. The
        first failure ends it: no further item is taken, its jobs that wait or run are cancelled,
        then the error is raised. With `return_exceptions` errors are returned among the values.
        """
        options, config = self._terms().options, self._config()
        self._check_waits("map")
        faults = map_faults(self._code.fn, items, return_exceptions, options.run_in, config.run_in)
        faults += key_faults(options)
        if faults:
            raise UsageError(f"{self.name}.map: " + "; ".join(faults))
        submit: Callable[[Any], Awaitable[Ticket[Any]]] = self.submit
        return await map_stored(
            submit,
            items,
            limit=map_window(self._slots(), config.backpressure),
            return_exceptions=return_exceptions,
        )

    async def submit_many(self, calls: Iterable[tuple[Any, ...]]) -> list[Ticket[T]]:
        """Submit many calls at once, each a tuple of arguments; all are accepted, or none.

        At most 50,000. If the pool blocks submitters, this call waits until all are accepted.
        """
        self._check_waits("submit_many")
        raise_faults(f"{self.name}.submit_many", key_faults(self._terms().options))
        code = self._code
        call, given = TaskCall(code.name, code=code), _as_calls(calls)
        requests = self._client.requests.make_all(call, given, self._terms())
        return [*await self._client.submitter.submit(requests, self._how())] if requests else []

    def submit_sync(self, *args: P.args, **kwargs: P.kwargs) -> SyncTicket[T]:
        """Submit a call from code without an event loop, and block until it is stored.

        The ticket's `result()` and `cancel()` block as well.
        """
        self._check_no_loop()
        ticket = self._client.submit_sync(self.request(*args, **kwargs), self._how())
        found: SyncTicket[T] = ticket
        return found

    async def submit_in(
        self, transaction: Transaction | UserConnection, /, *args: P.args, **kwargs: P.kwargs
    ) -> str:
        """Submit a call that is accepted if the transaction commits; return the id of its job.

        The transaction is one of `app.transaction()`, or, over PostgreSQL, the one that is open on
        a connection of asyncpg. The job then enters its pool right after the commit.
        """
        self._check_waits("submit_in")
        if isinstance(transaction, Transaction):
            return await transaction.add(self.request(*args, **kwargs))
        if not isinstance(transaction, UserConnection):
            raise UsageError(
                f"submit_in({shown(transaction)}, …) is not allowed; give the transaction first: "
                "submit_in(tx, …), where tx comes from `async with app.transaction() as tx`, or is "
                "a connection of asyncpg with an open transaction"
            )
        request, connection = self.request(*args, **kwargs), await self._client.connection()
        made = await connection.thread.ask(lambda: connection.store.insertion([request]))
        await made.write(transaction)
        return request.job.id

    def with_options(
        self,
        *,
        priority: int = UNSET,
        key: str | None = UNSET,
        idempotency_key: str | None = UNSET,
        rerun_failed: bool = UNSET,
        session: str | None = UNSET,
        tenant: str | None = UNSET,
        user: str | None = UNSET,
        timeout: Seconds | None = UNSET,
        soft_timeout: Seconds | None = UNSET,
        retry: Retry | None = UNSET,
        run_in: str | None = UNSET,
        delay: Seconds | None = UNSET,
        run_at: datetime | None = UNSET,
        expires: Seconds | None = UNSET,
        cancel_with_caller: bool = UNSET,
        on_crash: str = UNSET,
        on_busy: str = UNSET,
        **fairness: str | None,
    ) -> TaskSubmitter[P, T]:
        """Return this task with other options.

        `fairness` is the field of its pool's own strategy, such as `tenant_id="acme"`.
        """
        changes = chosen(locals())
        view = self._view({**self._changes, **changes})
        # Check here, not at the submit, so that the error points to this line.
        view.check()
        return view

    def _view(self, changes: dict[str, Any]) -> TaskSubmitter[P, T]:
        view: TaskSubmitter[P, T] = TaskSubmitter(self._code, self._pool, self._client, changes)
        return view

    def _check_no_loop(self) -> None:
        if has_loop():
            raise UsageError(
                f"{self.name}.submit_sync would block the event loop that runs here; use "
                f"await {self.name}.submit(…)"
            )

    def _check_waits(self, verb: str) -> None:
        """Raise for an `on_busy` other than "enqueue", which works for single turns only."""
        on_busy = self._terms().options.on_busy
        if on_busy != "enqueue":
            raise UsageError(f"{verb}: on_busy={on_busy!r} goes with submit, one turn at a time")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, OTHER_VERBS.get(name))

    def check(self) -> None:
        """Raise if the options are invalid, as far as that can be known now."""
        self._terms()

    def usual_options(self) -> Options:
        """Return the options of every submit, those of the pool included."""
        return self._terms().options

    def request(self, *args: Any, **kwargs: Any) -> JobRequest:
        """Return the job request for a call, without submitting it."""
        code = self._code
        return self._client.requests.make(TaskCall(code.name, args, kwargs, code), self._terms())

    def _how(self) -> SubmitContext:
        config, terms = self._config(), self._terms()
        return SubmitContext(self._code, config.backpressure, terms.options.cancel_with_caller)

    def _terms(self) -> SubmitTerms:
        """Return the options with those of the pool, which may be declared after the task."""
        config = self._config()
        if self._made is None or self._made[0] is not config:
            usual = replace(defaults(config), retry=config.retry or USUAL_RETRY)
            options = with_changes(usual, config, self._changes, durable=True, origin=self._origin)
            self._check_code(config, options.run_in)
            made = terms(options, self._pool, self._client.pool_id(self._pool))
            self._made = config, made
        return self._made[1]

    def _config(self) -> PoolConfig:
        return self._client.declared.find(self._pool)

    def _slots(self) -> int | None:
        """Return the cap of the pool, None if it has none."""
        return self._client.declared.slots(self._pool)

    def _check_code(self, config: PoolConfig, run_in: str | None) -> None:
        """Raise if the function cannot run where the options say."""
        fn = self._code.fn
        where_to_run(fn, self._changes.get("run_in"), config.run_in)
        if where_to_run(fn, run_in, run_in) == "process":
            self._code.check_findable()


class Task(TaskSubmitter[P, T], Generic[P, R, T]):
    """A registered function. Calling it runs it directly; submitting it stores a job."""

    def __init__(
        self,
        fn: Callable[P, R],
        code: TaskCode,
        pool: str,
        client: StoreClient,
        changes: dict[str, Any],
    ) -> None:
        super().__init__(code, pool, client, changes, BY_DECORATOR)
        self.fn = fn
        self.__doc__ = fn.__doc__
        self.__name__ = getattr(fn, "__name__", code.name)
        self.__qualname__ = getattr(fn, "__qualname__", code.name)
        self.__module__ = fn.__module__
        self.__wrapped__ = fn

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, without a job."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {safe(self.name)} in pool {self._pool!r}>"


BY_DECORATOR = Origin("@app.task", ("pool", "name"))

# Retry by default: a crash or a provider's hiccup should not lose a job. A pool may override it.
USUAL_RETRY = Retry()


# The names in other task queues.
OTHER_VERBS = {
    "apply_async": "write task.submit(…), or task.with_options(…).submit(…)",
    "apply": "write task.run(…)",
    "delay": "write task.submit(…), and to run it later task.with_options(delay=seconds).submit(…)",
    "enqueue": "write task.submit(…)",
    "send": "write task.submit(…)",
}

# All calls are one commit, during which no other process can write to the file.
MOST_CALLS = 50_000


def _as_calls(calls: Any) -> list[tuple[Any, ...]]:
    if not isinstance(calls, Iterable):
        raise UsageError(f"submit_many({shown(calls)}) is not allowed; give {_CALLS}")
    # One more than allowed suffices to know: the iterable may be endless.
    found = list(islice(calls, MOST_CALLS + 1))
    if len(found) > MOST_CALLS:
        raise UsageError(
            f"submit_many takes at most {MOST_CALLS:,} calls at once; submit them in parts"
        )
    odd = [call for call in found if not isinstance(call, tuple)]
    if odd:
        raise UsageError(f"submit_many takes {_CALLS}; {shown(odd[0])} is none")
    return found


_CALLS = "tuples of arguments, such as [('bees',), ('ants',)]"
