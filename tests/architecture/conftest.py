"""Trees of the source are kept for all tests that read them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.architecture.source import parsed


@pytest.fixture(autouse=True)
def _trees_are_frozen() -> Iterator[None]:
    """Spare later tests the million nodes: each collection would look through them."""
    before = parsed.cache_info().currsize
    yield
    if parsed.cache_info().currsize > before:
        gc.collect()
        gc.freeze()
