"""Batches concurrent calls of one verb: while a batch is in flight, later calls share the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from poolhand.errors import Conflict, StoreError, Unavailable

A = TypeVar("A")
B = TypeVar("B")

MOST = 5_000  # items per batch, or a few more: those of one caller stay together


class AddBatcher(Generic[A, B]):
    """Passes on the items of many callers at once; each caller gets its own answers."""

    def __init__(
        self, act: Callable[[Sequence[A]], Awaitable[Sequence[B]]], most: int = MOST
    ) -> None:
        self._act = act
        self._most = most
        self._waiting: dict[asyncio.Future[list[B]], Sequence[A]] = {}
        self._task: asyncio.Task[None] | None = None

    async def ask(self, things: Sequence[A]) -> list[B]:
        """Pass on items in a batch; a caller that is cancelled before withdraws its items."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[list[B]] = loop.create_future()
        self._waiting[reply] = things
        if self._task is None:
            self._task = loop.create_task(self._run(), name="poolhand-together")
        try:
            return await reply
        finally:
            self._waiting.pop(reply, None)

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._pass_on(self._taken())
        finally:
            self._task = None

    def _taken(self) -> list[tuple[Sequence[A], asyncio.Future[list[B]]]]:
        taken, count = [], 0
        while self._waiting and count < self._most:
            reply = next(iter(self._waiting))
            things = self._waiting.pop(reply)
            taken.append((things, reply))
            count += len(things)
        return taken

    async def _pass_on(self, taken: list[tuple[Sequence[A], asyncio.Future[list[B]]]]) -> None:
        try:
            answers = iter(await self._act([thing for things, _ in taken for thing in things]))
        except BaseException as error:
            if len(taken) > 1 and _is_of_one(error):
                # One caller's items caused the error: repeat each by itself, to spare the others.
                for asked in taken:
                    await self._pass_on([asked])
                return
            for _, reply in taken:
                if not reply.done():
                    reply.set_exception(_as_told(error))
            if not isinstance(error, Exception):
                raise
            return
        for things, reply in taken:
            own = [next(answers) for _ in things]
            if not reply.done():
                reply.set_result(own)


def _is_of_one(error: BaseException) -> bool:
    """Return whether an error is about a caller's items, not about the store."""
    if isinstance(error, StoreError):
        return isinstance(error, Conflict)
    return isinstance(error, Exception)


def _as_told(error: BaseException) -> BaseException:
    """Translate an error for the callers: a cancellation of the batch becomes Unavailable."""
    if isinstance(error, Exception):
        return error
    return Unavailable("the store was closed before it could answer")
