"""The unit for systemd that the page shows is the one that is shipped."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_unit_as_it_is() -> None:
    unit = (ROOT / "examples/poolhand.service").read_text(encoding="utf-8").strip()
    page = (ROOT / "docs/howto/run-a-farm.md").read_text(encoding="utf-8")
    unit = unit[unit.index("[Unit]") :]  # Above it: where to copy it.
    assert "ExecStart=" in unit
    assert f"\n{unit}\n```" in page
