"""The `async with` blocks of an app that are open in this process: the last exit closes the store.

Blocks of all event loops and threads count. A running worker keeps the store open as well, unless
it was started inside one of the blocks and not drained before the last exit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from poolhand.observe.failures import warn

if TYPE_CHECKING:
    from poolhand.durable.connection.connection import ConnectionSlot, OpenStore


class LocalWorker(Protocol):
    """A worker of this process, as seen by the store connection that it uses."""

    # Called, on any thread, when the store is closed while it is active.
    on_store_closed: Callable[[], None]

    @property
    def is_active(self) -> bool:
        """Whether it was started and is not drained."""

    def runs(self, attempt: object) -> bool:
        """Return whether this attempt runs in it; from any thread."""


def log_closed() -> None:
    """Log that the store is closed while a worker uses it."""
    warn(
        "the app is closed while a worker of it runs in this process: the worker stops and hands "
        "its jobs back, and jobs wait until a worker starts; to stop a worker, leave its `async "
        "with` block, and close the app after that"
    )


class LocalWorkers:
    """The workers of this process that use one store connection."""

    def __init__(self) -> None:
        self._workers: dict[LocalWorker, list[OpenBlocks]] = {}  # the apps around its start

    def add(self, worker: LocalWorker) -> None:
        around = [block.blocks for block in _BLOCKS.get() if block.is_open]
        # Replace the dictionary: another thread may be iterating over the old one.
        self._workers = {**{one: self._workers[one] for one in self.active}, worker: around}

    def discard(self, worker: LocalWorker) -> None:
        self._workers = {one: at for one, at in self._workers.items() if one is not worker}

    @property
    def active(self) -> list[LocalWorker]:
        return [one for one in self._workers if one.is_active]

    def keep_open(self, blocks: OpenBlocks) -> bool:
        """Return whether one of them runs that was not started inside one of these blocks."""
        return not all(blocks in self._workers[one] for one in self.active)

    def run(self, attempt: object) -> bool:
        """Return whether this attempt runs in one of them."""
        return any(one.runs(attempt) for one in self.active)


class _Block:
    """One `async with` block."""

    def __init__(self, blocks: OpenBlocks) -> None:
        self.blocks = blocks
        self.is_open = True


# The blocks around the running code; it travels to the tasks and threads started inside of them.
_BLOCKS: ContextVar[tuple[_Block, ...]] = ContextVar("poolhand_blocks", default=())


class _Count:
    """How many blocks are open in one process."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.blocks = 0


class OpenBlocks:
    """Counts the open blocks of a store; a fork begins with none, and with a lock of its own."""

    def __init__(self, opened: OpenStore, slot: Callable[[], ConnectionSlot]) -> None:
        self._opened = opened
        self._slot = slot
        self._counts: dict[int, _Count] = {}

    async def enter(self) -> None:
        """Open the store, unless it is open; it stays open until the matching `leave`."""
        count = self._count()
        # Count first: the exit of another block must not close what is opened here.
        with count.lock:
            count.blocks += 1
        _BLOCKS.set((*_BLOCKS.get(), _Block(self)))
        try:
            await self._opened.connection()
        except BaseException:
            await self.leave()
            raise

    async def leave(self) -> None:
        """Close the store if this was the last block and no worker keeps it open."""
        count = self._count()
        self._leave_block()
        with count.lock:
            count.blocks = max(0, count.blocks - 1)
            slot = self._slot()
            current = slot.current
            if count.blocks or (current is not None and current.local_workers.keep_open(self)):
                return
            # Under the lock: a block that is entered from now on opens the store again.
            detached = slot.detach()
        await slot.close_detached(detached)

    def _leave_block(self) -> None:
        """Mark the innermost block of this store as left, if it was entered in this context."""
        around = _BLOCKS.get()
        mine = [block for block in around if block.blocks is self and block.is_open]
        if mine:
            mine[-1].is_open = False
            _BLOCKS.set(tuple(block for block in around if block is not mine[-1]))

    def _count(self) -> _Count:
        return self._counts.setdefault(os.getpid(), _Count())
