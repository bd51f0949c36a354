"""Audit records are deleted when their retention is over."""

from __future__ import annotations

from datetime import timedelta

from poolhand.contract import LogLine
from poolhand.durable.leases.reaper import TRIM_AT_ONCE, trim_audit
from poolhand.rules.audit import STREAM
from poolhand.stores.sqlite.store import MemoryStore
from tests.contract.support import Clock


async def test_only_records_older_than_the_limit_are_trimmed() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    await store.open()
    began = clock.wall()
    for day in range(3):
        await store.append([LogLine(STREAM, f"pool_{day}", b""), LogLine(STREAM, "more", b"")])
        clock.wait(86_400)
    assert await trim_audit(store, began) == 0
    assert await trim_audit(store, began + timedelta(days=1)) == 2
    left = await store.read(STREAM)
    assert [line.number for line in left] == [3, 4, 5, 6]


async def test_a_sweep_is_bounded_and_the_last_record_stays() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    await store.open()
    await store.append([LogLine(STREAM, "kind", b"")] * (TRIM_AT_ONCE + 10))
    clock.wait(10)
    assert await trim_audit(store, clock.wall()) == TRIM_AT_ONCE
    assert await trim_audit(store, clock.wall()) == 9
    assert await trim_audit(store, clock.wall()) == 0


async def test_surplus_records_are_trimmed_oldest_first() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    await store.open()
    await store.append([LogLine(STREAM, "kind", b"")] * (TRIM_AT_ONCE + 10))
    assert await trim_audit(store, clock.wall(), most=TRIM_AT_ONCE + 10) == 0
    assert await trim_audit(store, clock.wall(), most=7) == TRIM_AT_ONCE
    assert await trim_audit(store, clock.wall(), most=7) == 3
    assert len(await store.read(STREAM)) == 7
