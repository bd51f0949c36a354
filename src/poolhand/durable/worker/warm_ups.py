"""Warm-ups: functions that an app runs before jobs, once in each process and in each child."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from inspect import Parameter, isawaitable, signature
from typing import Any, NamedTuple

from poolhand.durable.calls.task_registry import found_at
from poolhand.errors import UsageError
from poolhand.pool.slots.process_parent import pack
from poolhand.rules.validation import shown

MAIN = ("__main__", "__mp_main__")  # a child imports the script of its parent under the second name

Call = Callable[[], Any]


class WarmUpName(NamedTuple):
    """How a child finds a warm-up: by its number among those of its name, or by its name alone.

    The number counts the warm-ups that importing the module registers under the name; it also finds
    lambdas and methods.
    """

    module: str
    path: str
    number: int
    is_findable: bool


# All warm-ups of this process, of any app, as their modules have registered them.
_registered: dict[tuple[str, str], list[Call]] = {}


def _check_parameters(call: Call) -> None:
    """Raise if a warm-up needs arguments: a worker has none to give."""
    try:
        parameters = signature(call).parameters.values()
    except (TypeError, ValueError):
        return
    needed = [
        one.name
        for one in parameters
        if one.default is Parameter.empty
        and one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    if needed:
        raise UsageError(
            f"warm_up({shown(call)}) is not allowed; it is called without arguments, and needs "
            f"{', '.join(needed)}: give {'it a default' if len(needed) == 1 else 'them defaults'}"
        )


class WarmUps:
    """The warm-ups of an app, in the order in which they were registered."""

    def __init__(self) -> None:
        self._calls: list[tuple[WarmUpName, Call]] = []
        self._begun: dict[tuple[int, int], Future[bool]] = {}

    def add(self, call: Call) -> None:
        if not callable(call):
            raise UsageError(f"warm_up({shown(call)}) is not allowed; give a function")
        _check_parameters(call)
        module = getattr(call, "__module__", None) or ""
        module = MAIN[0] if module in MAIN else module
        path = getattr(call, "__qualname__", None) or type(call).__qualname__
        known = _registered.setdefault((module, path), [])
        self._calls.append((WarmUpName(module, path, len(known), "<" not in path), call))
        known.append(call)

    async def run(self) -> None:
        """Run the warm-ups that this process has not run yet; concurrent callers wait for them."""
        for number, (_, call) in enumerate(tuple(self._calls)):
            while not await self._done(number, call):
                # The caller that ran it got its error; run it here.
                pass

    async def _done(self, number: int, call: Call) -> bool:
        key = (os.getpid(), number)
        mine: Future[bool] = Future()
        found = self._begun.setdefault(key, mine)
        if found is not mine:
            return await asyncio.shield(asyncio.wrap_future(found))
        try:
            made = call()
            if isawaitable(made):
                await made
        except BaseException:
            del self._begun[key]
            mine.set_result(False)
            raise
        mine.set_result(True)
        return True

    def packed(self) -> bytes | None:
        """Return the call that runs the warm-ups in a child; None if there are none."""
        names = tuple(name for name, _ in self._calls)
        return pack(run_apart, (names,), {}) if names else None


def run_apart(names: tuple[tuple[str, str, int, bool], ...]) -> None:
    """Run the warm-ups of these names in a child, which has to find them first."""
    told = [WarmUpName(*name) for name in names]
    for name in told:
        if name.module:
            import_module(name.module)
    for name in told:
        made = _found(name)()
        if isawaitable(made):
            asyncio.run(_await(made))


def _found(name: WarmUpName) -> Call:
    known = _registered.get((name.module, name.path), [])
    if name.number < len(known):
        return known[name.number]
    try:
        if name.is_findable:
            return found_at(name.module, name.path)
    except AttributeError:
        pass
    raise UsageError(
        f"the warm-up {name.module}.{name.path} is not known to a process of its own, which only "
        "imports its module: register it at the top level of that module"
    )


async def _await(made: Any) -> Any:
    return await made
