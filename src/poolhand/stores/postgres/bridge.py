"""How rules that await nothing ask a server: they stand still while somebody else waits for it.

The desk and its parts ask a question in the middle of a decision. They run in a greenlet; whoever
runs it awaits the answer on the event loop, where meanwhile others go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

T = TypeVar("T")


def wait(awaitable: Awaitable[T]) -> T:
    """Return what an awaitable gives; only below `run`."""
    return cast(T, getcurrent().parent.switch(awaitable))


async def run(call: Callable[[], T]) -> T:
    """Call what may `wait`."""
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
