"""The flags of the demo."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

N = TypeVar("N", int, float)

MOST_TENANTS = 12
SCHEME = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Flags:
    """The checked flags; without a store, one is made in a temporary folder."""

    once: bool = False
    store: str = ""
    seconds: float = 16.0
    sessions: int = 240
    tenants: int = 5
    slots: int = 12
    seed: int = 1984
    speed: float = 1.0

    @property
    def second_slots(self) -> int:
        """The number of slots of the second process."""
        return self.slots // 2

    @property
    def own_slots(self) -> int:
        return self.slots - self.second_slots


def parse(words: Sequence[str]) -> Flags:
    """Read the flags; a wrong one ends the program with a message."""
    default = Flags()
    parser = argparse.ArgumentParser(
        prog="demo.py",
        description="Offline agents of several tenants, kept in one SQLite file, worked through by "
        "two processes, one of which is killed. No network is used.",
        epilog="Ctrl-C drains and ends with a summary; what waits stays in the file, and the demo "
        "goes on with it when it is given that --store again. A second Ctrl-C stops at once.",
    )
    parser.add_argument(
        "--once", action="store_true", help="end after one round, with a summary (about 25 s)"
    )
    parser.add_argument(
        "--store",
        metavar="URL",
        type=_store,
        default=argparse.SUPPRESS,
        help="where jobs are kept: sqlite:///file.db (default: a new file in a temporary folder)",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=_between(1.0, 3600.0, float),
        default=default.seconds,
        help="spread the sessions of a round over S seconds (default: %(default)g)",
    )
    _add_counts(parser, default)
    parser.add_argument(
        "--seed",
        metavar="N",
        type=_between(0, 2**32 - 1, int),
        default=default.seed,
        help="the same seed brings the same sessions (default: %(default)s)",
    )
    parser.add_argument(
        "--speed",
        metavar="X",
        type=_between(0.1, 50.0, float),
        default=default.speed,
        help="let everything take X times less time (default: %(default)g)",
    )
    return Flags(**vars(parser.parse_args(words)))


def _add_counts(parser: argparse.ArgumentParser, default: Flags) -> None:
    parser.add_argument(
        "--sessions",
        metavar="N",
        type=_between(1, 100_000, int),
        default=default.sessions,
        help="sessions of one round, of 2 to 5 turns each (default: %(default)s)",
    )
    parser.add_argument(
        "--tenants",
        metavar="N",
        type=_between(2, MOST_TENANTS, int),
        default=default.tenants,
        help="how many share the pool; one is noisy, the others are quiet (default: %(default)s)",
    )
    parser.add_argument(
        "--slots",
        metavar="N",
        type=_between(2, 256, int),
        default=default.slots,
        help="how many jobs run at once, half of them in each process (default: %(default)s)",
    )


def _store(word: str) -> str:
    if not word.startswith(SCHEME) or len(word) == len(SCHEME):
        raise argparse.ArgumentTypeError(
            f"{word!r} is not allowed; give {SCHEME}file.db (a relative path) or "
            f"{SCHEME}/absolute/file.db: both processes have to see it"
        )
    return word


def _between(low: N, high: N, kind: Callable[[str], N]) -> Callable[[str], N]:
    """Return a parser of numbers within these bounds."""
    sort = "a whole number" if kind is int else "a number"

    def read(word: str) -> N:
        try:
            value = kind(word)
        except ValueError:
            value = None
        # Written so that nan, which compares as false, is refused too.
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"{word!r} is not allowed; give {sort} from {low:g} to {high:,}"
            )
        return value

    return read
