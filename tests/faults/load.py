"""Loads: the jobs of a run, made from a seed and written down for all processes.

Nothing of poolhand is imported here: the checker derives the expected outcome of each item from the
plan alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random

# The end of a task. Failing ones are dead letters; a poison job kills its own process.
ENDS = {
    "brief": "completed",
    "threaded": "completed",
    "flaky": "completed",
    "held": "completed",
    "gated": "completed",
    "polite": "completed",
    "blocker": "completed",
    "hog": "completed",
    "bulky": "completed",
    "hopeless": "failed",
    "garbled": "failed",
    "poison": "failed",
}


@dataclass(frozen=True)
class Item:
    """One call to be submitted; each submit of one idempotency key is an item of its own.

    Items of one `batch` are submitted together. `lane` is the submitter that hands it in, so that
    items of one lane come in by their numbers. `run_at` is seconds from the submit by the wall
    clock; `size` is how many characters its call takes along. `repeats` is the number of the item
    whose call this one submits again: an idempotency key stands for one call.
    """

    number: int
    task: str = "brief"
    seconds: float = 0.01
    pool: str = "plain"
    lane: int = 0
    key: str = ""
    session: str | None = None
    idempotency_key: str | None = None
    delay: float | None = None
    run_at: float | None = None
    batch: int | None = None
    attempts: int = 4
    size: int = 0
    repeats: int | None = None

    @property
    def call(self) -> int:
        """Return the number that its call has as an argument, and that its effects show."""
        return self.number if self.repeats is None else self.repeats

    @property
    def ends(self) -> str:
        return ENDS[self.task]


@dataclass(frozen=True)
class Plan:
    """A whole load; `caps` are the declared limits of the pools."""

    items: tuple[Item, ...]
    caps: dict[str, int] = field(default_factory=dict)
    key_caps: dict[str, int] = field(default_factory=dict)
    fair: tuple[str, ...] = ()

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_plan(path: Path) -> Plan:
    data = json.loads(path.read_text(encoding="utf-8"))
    items = tuple(Item(**one) for one in data.pop("items"))
    return Plan(items, data["caps"], data["key_caps"], tuple(data["fair"]))


SESSIONS = 20
REPEATED = 50  # idempotency keys, each submitted more than once
KEYS = ("ant", "bee", "cat", "doe", "elk")
LANES = 4
CAPS = {"capped": 3, "fair": 8, "talk": 6}
KEY_CAPS = {"fair": 2}


def standard(seed: int, jobs: int, longest: float) -> Plan:
    """Return the usual load: mostly 5 to 50 ms, some that raise, a little of every feature.

    `longest` is what one in a hundred takes. There are more items than jobs: keys are repeated.
    """
    random = Random(f"load {seed}")
    items: list[Item] = []
    keyed: list[Item] = []
    while len(items) - _repeats(items) < jobs:
        items += _some(random, len(items), longest, keyed)
    return Plan(tuple(items), CAPS, KEY_CAPS, ("fair",))


def _repeats(items: list[Item]) -> int:
    keys = [item.idempotency_key for item in items if item.idempotency_key is not None]
    return len(keys) - len(set(keys))


def _some(random: Random, number: int, longest: float, keyed: list[Item]) -> list[Item]:
    """Return the next item, or the next few that belong together."""
    seconds = random.uniform(0.005, 0.05)
    lane = number % LANES
    match random.choices(range(10), (40, 15, 13, 8, 3, 2, 10, 6, 1, 1))[0]:
        case 0:
            task = random.choice(("brief", "brief", "threaded"))
            return [Item(number, task, seconds, lane=lane)]
        case 1:
            session = random.randrange(SESSIONS)
            task = random.choice(("brief", "brief", "threaded", "flaky"))
            # One lane per session: its turns are submitted one after the other.
            return [
                Item(number, task, seconds, "talk", session % LANES, session=f"session-{session}")
            ]
        case 2:
            return [Item(number, "brief", seconds, "fair", lane, random.choice(KEYS))]
        case 3:
            task = random.choice(("brief", "threaded"))
            return [Item(number, task, seconds, "capped", lane)]
        case 4:
            return [Item(number, "flaky", seconds, lane=lane)]
        case 5:
            return [Item(number, "hopeless", seconds, lane=lane, attempts=2)]
        case 6:
            return _keyed(random, number, seconds, keyed)
        case 7:
            return [Item(number, seconds=seconds, lane=lane, delay=random.uniform(0.2, 2.0))]
        case 8:
            return [
                Item(number + more, seconds=seconds, lane=lane, batch=number) for more in range(5)
            ]
        case _:
            return [Item(number, "brief", longest, lane=lane)]


def _keyed(random: Random, number: int, seconds: float, keyed: list[Item]) -> list[Item]:
    """Return the call of an old key again, or one with a new key that is submitted twice."""
    if len(keyed) >= REPEATED or (keyed and random.random() < 0.3):
        return [_again(random.choice(keyed), number)]
    first = Item(number, "brief", seconds, lane=number % LANES, idempotency_key=f"key-{number}")
    keyed.append(first)
    return [first, _again(first, number + 1)]


def _again(first: Item, number: int) -> Item:
    return replace(first, number=number, lane=number % LANES, repeats=first.number)
