"""Fixtures of the command tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change into an empty folder, without settings in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("POOLHAND_STORE", "POOLHAND_APP"):
        monkeypatch.delenv(name, raising=False)
