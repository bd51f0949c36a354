"""The stores of the session tests."""

from __future__ import annotations

from tests.unit.durable.conftest import shared_url, url

__all__ = ["shared_url", "url"]
