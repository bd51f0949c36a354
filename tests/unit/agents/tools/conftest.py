"""The stores of the journal tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.durable.conftest import MEMORY, SERVER, shared, shared_url

__all__ = ["shared_url", "url"]

# Receipts are documents: their versions depend on earlier content of the store.
USED_SERVER = pytest.param("postgres-used", marks=pytest.mark.full)
NEW_FILE = pytest.param("sqlite", marks=pytest.mark.full)
STORES = [MEMORY, NEW_FILE, SERVER, "sqlite-used", USED_SERVER]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of each kind, new or used by others before."""
    return "memory://" if request.param == "memory" else shared(request, tmp_path)
