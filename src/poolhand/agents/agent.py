"""Agents: tasks that run as turns of a session."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from poolhand.agents.session import Session
from poolhand.agents.session_record import SessionRecord, read
from poolhand.durable.calls.call_record import CALL, bound, bound_to, read_brief
from poolhand.durable.calls.task_registry import TaskCode
from poolhand.durable.client.refusal import forbidden
from poolhand.durable.client.task import SubmitDoor, TaskSubmitter
from poolhand.durable.connection.connection import StoreConnection
from poolhand.durable.streams.execution_log import Execution, read_execution
from poolhand.durable.streams.numbers import bodies_of
from poolhand.errors import UsageError
from poolhand.misuse import explain_misuse, no_attribute
from poolhand.pool.options import Options, Origin
from poolhand.rules.job import Job
from poolhand.rules.queue.on_busy import OnBusy, may_use
from poolhand.rules.streams import executions_of, session_of
from poolhand.rules.validation import shown
from poolhand.rules.values.escape import safe

P = ParamSpec("P")
T = TypeVar("T")


@explain_misuse
class Agent(Generic[P, T]):
    """A registered agent. Called with a session it just runs; in a session it is submitted."""

    def __init__(
        self,
        call: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]],
        code: TaskCode,
        pool: str,
        door: SubmitDoor,
        changes: dict[str, Any],
    ) -> None:
        self._call = call
        self.fn = code.fn
        self.code = code
        self._pool = pool
        self._door = door
        self._on_busy = changes.pop("on_busy", OnBusy.ENQUEUE.value)
        self._changes = changes
        self.__doc__ = call.__doc__
        self.__name__ = getattr(call, "__name__", code.name)
        self.__qualname__ = getattr(call, "__qualname__", code.name)
        self.__module__ = call.__module__
        self.__wrapped__ = call
        # Checked where the agent is made, not by its first session.
        self._door_of("any", None, None, None, BY_DECORATOR).check()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = f"a turn belongs to a session: write agent.session('s-1').{name}(…)"
            raise no_attribute(self, name, hint if name in OF_SESSIONS else None)

    @property
    def name(self) -> str:
        return self.code.name

    async def __call__(self, session: Session, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Take a turn here and now, as if it were no agent; nothing is kept."""
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
        """What the options of its turns were changed to."""
        return {**self._changes, "on_busy": self._on_busy}

    def usual_options(self) -> Options:
        """Return the options of every turn, those of the pool included."""
        return self.session("any").usual_options()

    def session(
        self,
        id: str,
        *,
        tenant: str | None = None,
        user: str | None = None,
        on_busy: str | None = None,
    ) -> SessionCaller[P, T]:
        """Return the way to one session: `await assistant.session("s-1").submit("hello")`.

        Of a tenant and a user, if you have several; the same name with another tenant is another
        session. `on_busy` says what a turn does that finds another one there.
        """
        if not isinstance(id, str):
            raise UsageError(
                f"session({shown(id)}) is not allowed; give the name of a session, a text"
            )
        door = self._door_of(id, tenant, user, on_busy, Origin(f"{self.name}.session"))
        door.check()
        return door

    def _door_of(
        self, id: str, tenant: str | None, user: str | None, on_busy: str | None, origin: Origin
    ) -> SessionCaller[P, T]:
        changes = {
            **self._changes,
            "session": id,
            "tenant": tenant,
            "user": user,
            "on_busy": self._on_busy if on_busy is None else on_busy,
        }
        return SessionCaller(self.code, self._pool, self._door, changes, origin)


BY_DECORATOR = Origin("@app.agent", ("pool", "name", "schema", "upcasters", "ttl"))
OF_SESSIONS = ("map", "run", "submit", "submit_in", "submit_many", "submit_sync", "with_options")


class SessionCaller(TaskSubmitter[P, T]):
    """One session of an agent, from outside: turns go in, and what is kept can be seen."""

    @property
    def _where(self) -> tuple[str | None, str]:
        return self._changes["tenant"], self._changes["session"]

    async def record(self) -> SessionRecord | None:
        """Return the session as it was last written, None if it was not."""
        station = await self._own()
        key = session_of(*self._where)
        found = await station.keeper.ask(lambda: station.store.get_document(key))
        return None if found is None else read(found[0])

    async def revisions(self) -> list[SessionRecord]:
        """Return what is kept of the states it has had, oldest first."""
        lines = await self._lines(session_of(*self._where))
        return [read(body) for body in lines]

    async def history(self) -> list[Execution]:
        """Return the attempts at its turns, oldest first."""
        lines = await self._lines(executions_of(*self._where))
        return [read_execution(body) for body in lines]

    async def _lines(self, stream: str) -> list[bytes]:
        station = await self._own()
        return await station.keeper.ask(lambda: bodies_of(station.store, stream))

    async def _own(self) -> StoreConnection:
        """Return where the session is kept, if it belongs to the user of this way to it."""
        station, key = await self._door.station(), session_of(*self._where)
        users = await station.keeper.ask(lambda: station.store.users_of([key]))
        if key in users and not may_use(users[key], self._changes["user"]):
            raise forbidden()
        return station


def message_of(code: TaskCode, data: bytes, turn: Job) -> Any:
    """Return what a turn was submitted with that has joined another one.

    It was signed for a job of its own, whose id it brings, in the session of the turn it joined.
    """
    brief = read_brief(data, turn.id)
    to = bound(CALL, bound_to(turn, brief, brief.run or "")) if code.signs else None
    call: Any = code.unpack(brief.payload, to)
    given = (*call.args, *call.keywords.values())
    return given[0] if len(given) == 1 else given
