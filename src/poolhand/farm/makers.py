"""What `@app.task(…)` and `@app.agent(…)` leave to be called with the function."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from poolhand.farm.agent import Agent
from poolhand.farm.task import Task
from poolhand.sessions.session import Session

P = ParamSpec("P")
T = TypeVar("T")


class Registry(Protocol):
    """Where functions become tasks and agents: an app."""

    def register(self, fn: Callable[..., Any], pool: str, options: dict[str, Any]) -> Any: ...

    def enlist(self, fn: Callable[..., Any], pool: str, options: dict[str, Any]) -> Any: ...


class TaskMaker:
    """Makes a task of a function, under options."""

    def __init__(self, registry: Registry, pool: str, options: dict[str, Any]) -> None:
        self._registry = registry
        self._pool = pool
        self._options = options

    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, fn: Callable[P, T], /) -> Task[P, T, T]: ...

    def __call__(self, fn: Callable[..., Any], /) -> Any:
        return self._registry.register(fn, self._pool, dict(self._options))


class AgentMaker:
    """Makes an agent of a function, under options."""

    def __init__(self, registry: Registry, pool: str, options: dict[str, Any]) -> None:
        self._registry = registry
        self._pool = pool
        self._options = options

    def __call__(
        self, fn: Callable[Concatenate[Session, P], Coroutine[Any, Any, T]], /
    ) -> Agent[P, T]:
        agent: Agent[P, T] = self._registry.enlist(fn, self._pool, dict(self._options))
        return agent
