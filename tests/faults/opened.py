"""The store of a run, asked by the harness itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from poolhand.contract import Store
from poolhand.runtime import Runtime
from poolhand.stores.open import store_of


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    """Have a store open for a block."""
    store = store_of(url, Runtime())
    await store.open()
    try:
        yield store
    finally:
        await store.close()
