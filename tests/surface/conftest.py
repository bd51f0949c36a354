"""What tests of commands have in common."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in an empty folder, with no setting in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("POOLHAND_STORE", "POOLHAND_APP"):
        monkeypatch.delenv(name, raising=False)
