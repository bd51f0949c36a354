"""Agents: tasks that run as turns of a session."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from poolhand.agents.session import Session, SessionRecord, read
from poolhand.durable.calls.call_record import CALL, bound, bound_to, read_call_record
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.durable.client.job_request import forbidden
from poolhand.durable.client.submit import StoreClient
from poolhand.durable.client.task import TaskSubmitter
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.streams.events import bodies_of
from poolhand.durable.streams.job_api import Execution, read_execution
from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse, no_attribute
from poolhand.pool.options import Options, Origin
from poolhand.rules.job import Job
from poolhand.rules.plain import safe
from poolhand.rules.queue.gates import OnBusy, may_use
from poolhand.rules.streams import executions_of, session_of
from poolhand.rules.validation import instance_of

P = ParamSpec("P")
T = TypeVar("T")


@explain_misuse
class Agent(Generic[P, T]):
    """A registered agent. Called with a Session it runs here; `session(…)` submits turns."""

    def __init__(
        self,
        call: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]],
        code: TaskCode,
        pool: str,
        client: StoreClient,
        changes: dict[str, Any],
    ) -> None:
        self._call = call
        self.fn = code.fn
        self.code = code
        self._pool = pool
        self._client = client
        self._on_busy = changes.pop("on_busy", OnBusy.ENQUEUE.value)
        self._changes = changes
        self.__doc__ = call.__doc__
        self.__name__ = getattr(call, "__name__", code.name)
        self.__qualname__ = getattr(call, "__qualname__", code.name)
        self.__module__ = call.__module__
        self.__wrapped__ = call
        # Check the options where the agent is defined, not at its first session.
        self._caller("any", None, None, None, BY_DECORATOR).check()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = f"a turn belongs to a session: write agent.session('s-1').{name}(…)"
            raise no_attribute(self, name, hint if name in OF_SESSIONS else None)

    @property
    def name(self) -> str:
        return self.code.name

    async def __call__(self, session: Session, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a turn in this process, as a plain function; nothing is stored."""
        given: object = session
        if isinstance(given, str | int | None):
            raise UsageError(
                f"agent {self.name!r} takes a Session first: await agent(Session('s-1'), …); to "
                "submit a turn write agent.session('s-1').submit(…)"
            )
        return await self._call(session, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<Agent {safe(self.name)} in pool {self._pool!r}>"

    @property
    def changes(self) -> dict[str, Any]:
        """The changes to the options of its turns."""
        return {**self._changes, "on_busy": self._on_busy}

    def usual_options(self) -> Options:
        """Return the options of every turn, including those of the pool."""
        return self.session("any").usual_options()

    def session(
        self,
        id: str,
        *,
        tenant: str | None = None,
        user: str | None = None,
        on_busy: str | None = None,
    ) -> SessionCaller[P, T]:
        """Return a handle on one session: `await assistant.session("s-1").submit("hello")`.

        `tenant` and `user` own the session; the same id with another tenant is another session.
        `on_busy` decides what happens to a turn that finds another turn in the session.
        """
        instance_of(str, "the name of a session, a text").require("session: id", id)
        caller = self._caller(id, tenant, user, on_busy, Origin(f"{self.name}.session"))
        caller.check()
        return caller

    def _caller(
        self, id: str, tenant: str | None, user: str | None, on_busy: str | None, origin: Origin
    ) -> SessionCaller[P, T]:
        changes = {
            **self._changes,
            "session": id,
            "tenant": tenant,
            "user": user,
            "on_busy": self._on_busy if on_busy is None else on_busy,
        }
        return SessionCaller(self.code, self._pool, self._client, changes, origin)


BY_DECORATOR = Origin("@app.agent", ("pool", "name", "schema", "upcasters", "ttl"))
OF_SESSIONS = ("map", "run", "submit", "submit_in", "submit_many", "submit_sync", "with_options")


class SessionCaller(TaskSubmitter[P, T]):
    """A handle on one session of an agent: submits turns and reads the stored session."""

    @property
    def _where(self) -> tuple[str | None, str]:
        return self._changes["tenant"], self._changes["session"]

    async def record(self) -> SessionRecord | None:
        """Return the session as last written, or None if it never was."""
        connection = await self._own()
        key = session_of(*self._where)
        found = await connection.thread.ask(lambda: connection.store.get_document(key))
        return None if found is None else read(found[0])

    async def revisions(self) -> list[SessionRecord]:
        """Return the revisions of its state that are still stored, oldest first."""
        lines = await self._lines(session_of(*self._where))
        return [read(body) for body in lines]

    async def history(self) -> list[Execution]:
        """Return the attempts of its turns, oldest first."""
        lines = await self._lines(executions_of(*self._where))
        return [read_execution(body) for body in lines]

    async def _lines(self, stream: str) -> list[bytes]:
        connection = await self._own()
        return await connection.thread.ask(lambda: bodies_of(connection.store, stream))

    async def _own(self) -> StoreConnection:
        """Return the store connection of the session, if its user may use the session."""
        connection, key = await self._client.connection(), session_of(*self._where)
        users = await connection.thread.ask(lambda: connection.store.users_of([key]))
        if key in users and not may_use(users[key], self._changes["user"]):
            raise forbidden()
        return connection


def message_of(code: TaskCode, data: bytes, turn: Job) -> Any:
    """Return the arguments of a turn that was merged into another turn.

    They were signed for a job of their own, whose id they contain, in the session of that turn.
    """
    record = read_call_record(data, turn.id)
    to = bound(CALL, bound_to(turn, record, record.run or "")) if code.signs else None
    call: Any = code.unpack(record.payload, to)
    given = (*call.args, *call.keywords.values())
    return given[0] if len(given) == 1 else given
