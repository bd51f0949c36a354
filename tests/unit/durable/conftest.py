"""The stores of the tests of durable jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conditions import use_url

# The contract tests cover the differences between a file, a server, memory and a used file. Tests
# of several apps on one store run on a server as well.
MEMORY = pytest.param("memory", marks=pytest.mark.full)
SERVER = pytest.param("postgres", marks=pytest.mark.full)
USED = pytest.param("sqlite-used", marks=pytest.mark.full)


@pytest.fixture(params=[MEMORY, "sqlite", SERVER, USED])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of each kind, new or used by others before."""
    return "memory://" if request.param == "memory" else shared(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres", USED])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that several apps can open, new or used by others before."""
    return shared(request, tmp_path)


def shared(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of the store that a parameter names: its kind and its condition."""
    kind, _, condition = request.param.partition("-")
    file = f"sqlite:///{folder / 'jobs.db'}"
    url: str = file if kind == "sqlite" else request.getfixturevalue("store_schema")
    if condition:
        use_url(url)
    return url
