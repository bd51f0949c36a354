"""Decorators of an app, such as `@app.task(…)`, and the registration of their functions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from poolhand.agents.agent import Agent, message_of
from poolhand.agents.session import Session, SessionTerms, turn_of
from poolhand.durable.calls.declaration import checked_function, name_of_global
from poolhand.durable.calls.task_registry import KNOWN, TaskCode, TaskRegistry
from poolhand.durable.catalogue import AGENT, TASK, Catalogue
from poolhand.durable.client.named_task import NamedTasks
from poolhand.durable.client.submit import StoreClient
from poolhand.durable.client.task import Task
from poolhand.durable.scheduler import Scheduler
from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse, no_attribute
from poolhand.pool.options import where_to_run
from poolhand.rules import schedule
from poolhand.rules.validation import Seconds, shown
from poolhand.wire.payload import Wire

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Scheduled = TypeVar("Scheduled", bound=Task[..., Any, Any])


def _registration_of(app: Any, verb: str) -> Registration:
    """Return the registration of an app; raise if a decorator was used on the class.

    Then the function is passed as the app.
    """
    registration = getattr(app, "_registration", None)
    if not isinstance(registration, Registration):
        raise UsageError(
            f"App.{verb} was called on the class; make an app first: app = App(…), then @app.{verb}"
        )
    return registration


def _function_of(fn: Any, decorator: str) -> Callable[..., Any]:
    if isinstance(fn, Agent):
        raise UsageError(
            f"{decorator}: {fn.name!r} is an agent already; submit a turn with "
            "agent.session('s-1').submit(…)"
        )
    return checked_function(fn, decorator)


class TaskMaker:
    """Makes a task of a function, with options."""

    def __init__(self, app: Any, pool: str, options: dict[str, Any]) -> None:
        self._registration = _registration_of(app, "task")
        self._scheduler: Scheduler = app._scheduler
        self._pool = pool
        self._options = options

    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, fn: Callable[P, T], /) -> Task[P, T, T]: ...

    def __call__(self, fn: Callable[..., Any], /) -> Any:
        self._scheduler.check_unscheduled(fn)
        fn = _function_of(fn, "@app.task")
        return self._registration.task(fn, self._pool, dict(self._options))


class AgentMaker:
    """Makes an agent of a function, with options."""

    def __init__(self, app: object, pool: str, options: dict[str, Any]) -> None:
        self._registration = _registration_of(app, "agent")
        self._pool = pool
        self._options = options

    def __call__(
        self, fn: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]], /
    ) -> Agent[P, T]:
        turn = _function_of(fn, "@app.agent")
        agent: Agent[P, T] = self._registration.agent(turn, self._pool, dict(self._options))
        return agent


class AnyFunction(Protocol[P, T_co]):
    """A plain function; `__globals__` distinguishes it from a task, which is callable as well."""

    @property
    def __globals__(self) -> dict[str, Any]: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


class ScheduleMaker:
    """Puts a task on a schedule; a plain function becomes a task of the pool "default" first."""

    def __init__(
        self,
        scheduler: Scheduler,
        registration: Registration,
        decorator: str,
        when: schedule.When,
        missed: schedule.Missed,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> None:
        self._scheduler = scheduler
        self._registration = registration
        self._decorator = decorator
        self._when = when
        self._missed = missed
        self._call = schedule.arguments(args, kwargs)

    @overload
    def __call__(self, fn: Scheduled, /) -> Scheduled: ...

    @overload
    def __call__(
        self, fn: AnyFunction[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, fn: AnyFunction[P, T], /) -> Task[P, T, T]: ...

    def __call__(self, fn: Callable[..., Any], /) -> Any:
        if isinstance(fn, Agent):
            raise UsageError(
                f"agent {fn.name!r} takes turns of sessions; schedule a task that submits a turn"
            )
        task: Any = fn
        if not isinstance(fn, Task):
            plain = _function_of(fn, self._decorator)
            task = self._registration.task(plain, "default", {})
        self._scheduler.add(task, self._when, self._missed, *self._call)
        return task


# Names that users of other task queues try on an app.
_WORK = "write `async with app.worker():`, or app.run_worker() in a script"
OTHER_NAMES = {
    "periodic_task": "write @app.every(30), or @app.cron('0 2 * * *')",
    "run": _WORK,
    "schedule": "write @app.every(30), or @app.cron('0 2 * * *')",
    "send_task": "write await app.submit('name of the task', …)",
    "session": "a session is one of an agent: write agent.session('s-1')",
    "start": _WORK,
}


@explain_misuse
class ScheduleDecorators:
    """The decorators of an app that run tasks on a schedule."""

    _scheduler: Scheduler
    _registration: Registration

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, OTHER_NAMES.get(name))

    def cron(
        self,
        expression: str,
        *,
        tz: str | None = None,
        missed: str = "once",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> ScheduleMaker:
        """Run a task by the calendar: `@app.cron("0 2 * * *", tz="Europe/Berlin")`.

        It runs once over all processes. The expression may be a name: "@hourly", "@daily",
        "@weekly", "@monthly", "@yearly". Without `tz` the zone is the setting `timezone`, by
        default UTC. `missed` sets what happens with moments that passed while no worker ran: "once"
        runs the newest, "skip" only if it is not more than 60 s old, "all" each of them. The task
        is called with `args` and `kwargs`.
        """
        if callable(expression):
            raise UsageError("@app.cron takes the moments first: @app.cron('0 2 * * *')")
        zone = self._scheduler.zone() if tz is None else tz
        when, policy = schedule.cron(expression, zone), schedule.policy(missed)
        parts = self._scheduler, self._registration
        return ScheduleMaker(*parts, "@app.cron(…)", when, policy, args, kwargs)

    def every(
        self,
        seconds: Seconds,
        *,
        missed: str = "once",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> ScheduleMaker:
        """Run a task every so many seconds, or every timedelta: `@app.every(30)`.

        It runs once over all processes, at multiples of the interval since 1970; `missed`, `args`
        and `kwargs` as for `cron`.
        """
        if callable(seconds):
            raise UsageError("@app.every takes the seconds first: @app.every(30)")
        when, policy = schedule.every(seconds), schedule.policy(missed)
        parts = self._scheduler, self._registration
        return ScheduleMaker(*parts, "@app.every(…)", when, policy, args, kwargs)


SESSION_OPTIONS = ("schema", "upcasters", "ttl")


class Registration:
    """Registers the functions of an app: by name, in the catalogue, and for its workers."""

    def __init__(
        self,
        client: StoreClient,
        wire: Wire,
        codes: TaskRegistry,
        catalogue: Catalogue,
        named: NamedTasks,
        url: str,
    ) -> None:
        self._client = client
        self._wire = wire
        self._declared = client.declared
        self._codes = codes
        self._catalogue = catalogue
        self._named = named
        self._url = url

    def task(self, fn: Callable[..., Any], pool: str, options: dict[str, Any]) -> Any:
        """Make a task of a function."""
        _refuse_key(options, "@app.task", "task")
        self._declared.check_use(pool)
        # Check that it is a function; its options are checked with the task.
        where_to_run(fn, None, None)
        name = options.pop("name", None)
        code = TaskCode(name_of_global(fn) if name is None else name, fn, self._wire)
        code.signature.check_early()
        task: Task[..., Any, Any] = Task(fn, code, pool, self._client, options)
        task.check()
        self._add(code, pool)
        self._catalogue.add(code, pool, TASK, task.usual_options)
        self._named.add(code, pool, TASK, options)
        return task

    def agent(self, fn: Callable[..., Any], pool: str, options: dict[str, Any]) -> Any:
        """Make an agent of a function."""
        _refuse_key(options, "@app.agent", "agent.session('s-1')")
        kept = {name: options.pop(name) for name in SESSION_OPTIONS if name in options}
        name = options.pop("name", None)
        terms = SessionTerms(**kept, most_state=self._wire.limits.state)
        turn = turn_of(fn, terms, lambda data, job: message_of(code, data, job))
        code = TaskCode(name_of_global(fn) if name is None else name, turn, self._wire)
        code.signature.check_early()
        self._declared.check_use(pool)
        agent: Agent[..., Any] = Agent(fn, code, pool, self._client, options)
        self._add(code, pool)
        self._catalogue.add(code, pool, AGENT, agent.usual_options)
        self._named.add(code, pool, AGENT, agent.changes)
        return agent

    def _add(self, code: TaskCode, pool: str) -> None:
        self._declared.use(pool, code.name, self._url)
        self._codes.add(code)
        KNOWN.renew(code)


def _refuse_key(options: dict[str, Any], decorator: str, submitter: str) -> None:
    """Raise for an idempotency key that all calls would share."""
    if options.get("idempotency_key") is not None:
        raise UsageError(
            f"{decorator}: idempotency_key={shown(options['idempotency_key'])} is not allowed; a "
            "key stands for one call, and this one would be that of every call: give it where the "
            f"call is submitted, {submitter}.with_options(idempotency_key=…).submit(…)"
        )
