"""The rows of the fault table: each plays one kind of fault and returns its verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.checker import Verdict


@dataclass(frozen=True)
class Settings:
    """How hard a row is played; `say` tells how far it is."""

    seed: int = 1
    kills: int = 100
    jobs: int = 1000
    say: Callable[[str], None] = lambda text: None


Row = Callable[[Path, Settings], Verdict]
