"""The rows of the fault table: each plays one kind of fault and returns its verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.checker import Verdict
from tests.faults.ground import STORES, Ground


@dataclass(frozen=True)
class Settings:
    """The settings of a row: as promised by default; `say` reports the progress.

    `longest` is what one job in a hundred takes, in seconds; `pace` is how much of the usual time
    passes between submits.
    """

    seed: int = 1
    kills: int = 100
    jobs: int = 2000
    longest: float = 10.0
    pace: float = 1.0
    say: Callable[[str], None] = lambda text: None


Play = Callable[[Ground, Settings], Verdict]


@dataclass(frozen=True)
class Row:
    """One row: how it is played, over which stores, and whether it sets their clocks."""

    play: Play
    stores: tuple[str, ...] = STORES
    moves_clock: bool = False
