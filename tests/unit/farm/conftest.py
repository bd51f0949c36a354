"""Where the tests of the farm keep their jobs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new store of each kind."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """The URL of a new file, which several apps may have open."""
    return f"sqlite:///{tmp_path / 'jobs.db'}"
