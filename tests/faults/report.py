"""Results of a run of the fault rows: a stored history, and a table of it."""

from __future__ import annotations

import json
import platform
import re
import sqlite3
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.faults.checker import Verdict

COLUMNS = ("accepted", "lost", "unexpected", "duplicated", "recovered", "kills")
BEGIN, END = "<!-- faults: the last run -->", "<!-- faults: end -->"
MOST_FAULTS = 50

History = dict[str, Any]


@dataclass(frozen=True)
class Played:
    """A row that was played over a store, or why it was skipped, with its duration."""

    row: str
    store: str
    seed: int
    seconds: float
    verdict: Verdict = field(default_factory=Verdict)
    skipped: str = ""

    @property
    def is_good(self) -> bool:
        return self.verdict.holds and not self.skipped

    def record(self) -> History:
        """Return its stored form."""
        figures = {name: round(value, 3) for name, value in self.verdict.figures.items()}
        return {
            "row": self.row,
            "store": self.store,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "holds": self.is_good,
            "skipped": self.skipped,
            "figures": figures,
            "faults": self.verdict.faults[:MOST_FAULTS],
        }


def history(rows: list[Played], settings: dict[str, float]) -> History:
    """Return the stored form of a run: what was played, where, and the results."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "postgres": next((row.verdict.server for row in rows if row.verdict.server), ""),
        "system": f"{platform.system()} {platform.release()}",
        **settings,
        "rows": [row.record() for row in rows],
    }


def write(path: Path, run: History) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def table(run: History) -> str:
    """Return a run as a table that is readable as text and in a page."""
    head = ["row", "store", *COLUMNS, "besides", "holds"]
    lines = [head, ["---", "---", *["---:"] * len(COLUMNS), "---", "---"], *map(_line, run["rows"])]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def _line(row: History) -> list[str]:
    figures: dict[str, float] = row["figures"]
    numbers = [f"{figures[name]:,g}" if name in figures else "" for name in COLUMNS]
    besides = ", ".join(
        _besides(name, value) for name, value in figures.items() if name not in COLUMNS and value
    )
    holds = "skipped" if row["skipped"] else "yes" if row["holds"] else "NO"
    return [row["row"], row["store"], *numbers, row["skipped"] or besides, holds]


def _besides(name: str, value: float) -> str:
    """Return a figure as text: `rerun_s` is in seconds."""
    words = name.removesuffix("_s").replace("_", " ")
    return f"{words} {value:.3g} s" if name.endswith("_s") else f"{words} {value:,g}"


def publish(run: History, page: Path) -> None:
    """Put the table of a run into a page, in place of the previous one."""
    minutes = sum(row["seconds"] for row in run["rows"]) / 60
    servers = f"SQLite {run['sqlite']}" + (
        f", PostgreSQL {run['postgres']}" if run["postgres"] else ""
    )
    told = (
        f"Played on {run['at'][:10]} with seed {run['seed']}, Python {run['python']}, {servers},"
        f" {run['system'].partition(' ')[0]}, in {minutes:.0f} minutes:"
    )
    text = page.read_text(encoding="utf-8")
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not between.search(text):
        raise ValueError(f"{page} has no place for a run: put {BEGIN} and {END} into it")
    new = f"{BEGIN}\n{told}\n\n{table(run)}\n{END}"
    page.write_text(between.sub(lambda _: new, text), encoding="utf-8")
