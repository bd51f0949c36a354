"""Where the tests of the journal keep their jobs."""

from __future__ import annotations

from tests.unit.farm.conftest import shared_url, url

__all__ = ["shared_url", "url"]
