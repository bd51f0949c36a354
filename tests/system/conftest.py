"""Folders and stores for farms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conditions import use_url
from tests.extent import ALSO_POSTGRES
from tests.system.farmhouse import Yard


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    """Return a place for farms over a file."""
    return Yard(tmp_path)


@pytest.fixture
def server_yard(tmp_path: Path, schema: str) -> Yard:
    """Return a place for farms over a server: a suspended farm holds no lock there."""
    return Yard(tmp_path, schema)


@pytest.fixture(params=["sqlite", ALSO_POSTGRES])
def any_yard(request: pytest.FixtureRequest, tmp_path: Path) -> Yard:
    """Return a place for farms over each kind of store, used by others before."""
    url = None if request.param == "sqlite" else request.getfixturevalue("schema")
    yard = Yard(tmp_path, url)
    use_url(yard.url)
    return yard
