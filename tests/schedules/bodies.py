"""The code of the jobs of a schedule."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from poolhand import GiveUp, RetryLater, Snooze, Ticket, current_job
from poolhand.testing import SeededRuntime
from tests.schedules.checker import Attempt, Checker
from tests.schedules.plan import Call


class Boom(Exception):
    """The error of a failing job."""


class Rude(BaseException):
    """An error that is not an Exception."""


def job_id_here() -> str | None:
    """The id of the job this code runs in."""
    job = current_job()
    return None if job is None else job.id


class Outer(Protocol):
    """How a body submits jobs to its own pool and awaits them."""

    async def hand_in(self, call: Call) -> Ticket[Any]: ...

    async def hear(self, ticket: Ticket[Any], *, inside: bool = False) -> Any: ...


class Bodies:
    """The submitted functions; each takes the call that defines its behaviour."""

    def __init__(self, runtime: SeededRuntime, watch: Checker, outer: Outer) -> None:
        self._runtime = runtime
        self._watch = watch
        self._outer = outer

    def function(self, call: Call) -> Any:
        if call.place == "async":
            return self.on_loop
        return self.on_loop_after_all if call.place == "thread then async" else self.plain

    async def on_loop(self, call: Call) -> object:
        attempt = self._watch.enter(job_id_here(), call)
        try:
            await self._work(call)
            value = act(call, attempt)
        except BaseException as error:
            self._watch.leave(attempt, None, error)
            raise
        self._watch.leave(attempt, value, None)
        return value

    def plain(self, call: Call) -> object:
        attempt = self._watch.enter(job_id_here(), call)
        try:
            value = act(call, attempt)
        except BaseException as error:
            self._watch.leave(attempt, None, error)
            raise
        self._watch.leave(attempt, value, None)
        return value

    def on_loop_after_all(self, call: Call) -> object:
        return self.on_loop(call)

    async def _work(self, call: Call) -> None:
        try:
            await pass_time(self._runtime, call.seconds)
            tickets = [await self._outer.hand_in(one) for one in call.inner]
            for ticket in tickets:
                await self._outer.hear(ticket, inside=True)
        except asyncio.CancelledError:
            if not call.stubborn:
                raise
            await self._linger(self._runtime.loop.time() + call.stubborn)

    async def _linger(self, until: float) -> None:
        """Continue for a while, ignoring cancellations."""
        while (left := until - self._runtime.loop.time()) > 1e-6:
            try:
                await pass_time(self._runtime, left)
            except asyncio.CancelledError:
                continue


async def pass_time(_: SeededRuntime, seconds: float) -> None:
    await asyncio.sleep(seconds)


def act(call: Call, attempt: Attempt) -> object:
    """End an attempt as planned."""
    starts = attempt.record.starts
    match call.deeds[min(starts, len(call.deeds)) - 1]:
        case "return":
            return (attempt.record.id, starts)
        case "fail":
            raise Boom
        case "give_up":
            raise GiveUp
        case "timeout_error":
            raise TimeoutError
        case "snooze":
            raise Snooze(0.05)
        case "later":
            raise RetryLater(0.05)
        case "exit":
            raise SystemExit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "cancelled":
            raise asyncio.CancelledError
        case "stop":
            raise StopIteration(7)
        case "stop_async":
            raise StopAsyncIteration
        case "generator_exit":
            raise GeneratorExit
        case _:
            raise Rude
