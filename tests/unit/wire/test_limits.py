"""Limits are validated when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from poolhand.errors import UsageError
from poolhand.wire.limits import Limits


def test_the_defaults_match_the_manual() -> None:
    assert Limits() == Limits(payload=262_144, depth=64, compress_above=8192, state=1_048_576)


@pytest.mark.parametrize("name", ["payload", "depth", "compress_above", "state"])
@pytest.mark.parametrize("value", [-1, 1.5, True, None, "1", float("inf")])
def test_an_invalid_limit_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"Limits: {name}={value!r} is not allowed; it must be"):
        Limits(**{name: value})


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(UsageError, match=r"payload=0 .*; depth=0 .*; compress_above=-1 "):
        Limits(payload=0, depth=0, compress_above=-1)
