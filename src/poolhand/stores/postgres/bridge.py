"""Lets synchronous rules query a server: they pause in a greenlet while the loop awaits.

The desk and its parts query in the middle of a decision. They run in a greenlet; the coroutine that
runs it awaits the answer on the event loop, where other tasks go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

T = TypeVar("T")


def wait(awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable; only inside `run`."""
    return cast(T, getcurrent().parent.switch(awaitable))


async def run(call: Callable[[], T]) -> T:
    """Run a function that may call `wait`."""
    side = greenlet(call)
    side.gr_context = getcurrent().gr_context
    asked: Any = side.switch()
    while not side.dead:
        try:
            answer = await asked
        except BaseException as error:
            asked = side.throw(error)
        else:
            asked = side.switch(answer)
    return cast(T, asked)
