"""The last number of a stream is found without reading the stream."""

from __future__ import annotations

import pytest

from poolhand.contract import LogLine
from poolhand.durable.streams.events import last_number
from poolhand.runtime import Runtime
from poolhand.stores.sqlite.store import MemoryStore


@pytest.mark.parametrize("count", [0, 1, 2, 1023, 1024, 1025, 5000])
async def test_the_last_number_is_found_from_wherever_one_begins(count: int) -> None:
    store = MemoryStore(Runtime())
    await store.open()
    await store.append([LogLine("s", "kind", b"")] * count)
    for least in {0, 1, count // 2, count - 1, count} & set(range(count + 1)):
        assert await last_number(store, "s", least) == count


async def test_trimmed_lines_count_towards_the_last_number() -> None:
    store = MemoryStore(Runtime())
    await store.open()
    await store.append([LogLine("s", "kind", b"")] * 100)
    await store.trim("s", 90)
    assert await last_number(store, "s") == 100
