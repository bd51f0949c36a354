"""Registration: makes tasks and agents of functions, for an app and for other processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from poolhand.agents.agent import Agent, message_of
from poolhand.agents.session import SessionTerms, turn_of
from poolhand.durable.calls.serializer import Serializer
from poolhand.durable.calls.task_name import name_of_global
from poolhand.durable.calls.task_registry import KNOWN, TaskCode, TaskRegistry
from poolhand.durable.catalogue import AGENT, TASK, Catalogue
from poolhand.durable.client.declared_pools import DeclaredPools
from poolhand.durable.client.named_task import NamedTasks
from poolhand.durable.client.task import SubmitDoor, Task
from poolhand.pool.engine.work import where_to_run

SESSION_OPTIONS = ("schema", "upcasters", "ttl")


class Registration:
    """Registers the functions of an app: by name, in the catalogue, and for its workers."""

    def __init__(
        self,
        door: SubmitDoor,
        parcels: Serializer,
        declared: DeclaredPools,
        codes: TaskRegistry,
        catalogue: Catalogue,
        named: NamedTasks,
        url: str,
    ) -> None:
        self._door = door
        self._parcels = parcels
        self._declared = declared
        self._codes = codes
        self._catalogue = catalogue
        self._named = named
        self._url = url

    def task(self, fn: Callable[..., Any], pool: str, options: dict[str, Any]) -> Any:
        """Make a task of a function."""
        self._declared.check_use(pool)
        # Check that it is a function; its options are checked with the task.
        where_to_run(fn, None, None)
        name = options.pop("name", None)
        code = TaskCode(name_of_global(fn) if name is None else name, fn, self._parcels)
        code.signature.check_early()
        task: Task[..., Any, Any] = Task(fn, code, pool, self._door, options)
        task.check()
        self._add(code, pool)
        self._catalogue.add(code, pool, TASK, task.usual_options)
        self._named.add(code, pool, TASK, options)
        return task

    def agent(self, fn: Callable[..., Any], pool: str, options: dict[str, Any]) -> Any:
        """Make an agent of a function."""
        kept = {name: options.pop(name) for name in SESSION_OPTIONS if name in options}
        name = options.pop("name", None)
        terms = SessionTerms(**kept, most_state=self._parcels.limits.state)
        turn = turn_of(fn, terms, lambda data, job: message_of(code, data, job))
        code = TaskCode(name_of_global(fn) if name is None else name, turn, self._parcels)
        code.signature.check_early()
        self._declared.check_use(pool)
        agent: Agent[..., Any] = Agent(fn, code, pool, self._door, options)
        self._add(code, pool)
        self._catalogue.add(code, pool, AGENT, agent.usual_options)
        self._named.add(code, pool, AGENT, agent.changes)
        return agent

    def _add(self, code: TaskCode, pool: str) -> None:
        self._declared.use(pool, code.name, self._url)
        self._codes.add(code)
        KNOWN.renew(code)
