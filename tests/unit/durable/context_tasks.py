"""Tasks that read the context of their submitter, also in processes that find them by name."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from typing import Any

from poolhand import App, context

app = App("memory://")
request_id: ContextVar[Any] = context.register(ContextVar("farm_request_id", default=None))

Seen = tuple[Any, bool]  # the value, and whether it was seen in this process


async def on_loop(parent: int) -> Seen:
    await asyncio.sleep(0)
    return request_id.get(), os.getpid() == parent


def beside(parent: int) -> Seen:
    return request_id.get(), os.getpid() == parent
