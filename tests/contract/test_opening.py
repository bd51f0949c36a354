"""Opening and closing: a store reports whether it accepts jobs, and keeps what was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from poolhand.contract import Store
from poolhand.errors import StoreError
from poolhand.stores.sqlite.store import MemoryStore
from tests.contract.support import Another, Hand


async def test_an_open_store_passes_its_check(hand: Hand) -> None:
    await hand.store.check()


async def test_a_store_returns_its_address_without_being_open(
    make_store: Callable[[], Store], tmp_path: Path
) -> None:
    place = make_store().place
    if "jobs.db" in place:
        assert place == str((tmp_path / "jobs.db").resolve())
    else:
        assert place == "memory://" or place.startswith("postgresql://")


async def test_a_closed_store_fails_its_check(hand: Hand) -> None:
    await hand.store.close()
    with pytest.raises(StoreError):
        await hand.store.check()


async def test_written_jobs_are_there_when_the_store_is_opened_again(
    hand: Hand, another: Another
) -> None:
    await hand.take_in("a")
    claim = (await hand.claim(1))[0]
    await hand.store.close()
    store = await another()
    if isinstance(store, MemoryStore):
        assert await store.get(["a"]) == [None]  # a memory store keeps nothing
        return
    again = Hand(store, hand.clock)
    assert await again.status("a") == "running"
    assert (await store.extend("hand", [claim.token])).lost == ()
    await again.finish(claim)


async def test_closing_twice_is_harmless(hand: Hand) -> None:
    await hand.store.close()
    await hand.store.close()
