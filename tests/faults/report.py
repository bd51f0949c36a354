"""What a run of the fault rows came to: a table for people, and a history to be kept."""

from __future__ import annotations

import json
import platform
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.checker import Verdict

COLUMNS = ("accepted", "lost", "unexpected", "duplicated", "recovered", "kills")


@dataclass(frozen=True)
class Played:
    """A row that was played, with the seconds that took."""

    name: str
    verdict: Verdict
    seconds: float

    @property
    def besides(self) -> dict[str, float]:
        """The figures that only this row has."""
        return {name: value for name, value in self.verdict.figures.items() if name not in COLUMNS}


def table(rows: list[Played]) -> str:
    """Return all rows as a table that is good to read as it is, and in a page."""
    head = ["row", *COLUMNS, "besides", "holds"]
    lines = [head, ["---", *["---:"] * len(COLUMNS), "---", "---"]]
    for row in rows:
        numbers = [f"{row.verdict.figures.get(name, 0):g}" for name in COLUMNS]
        besides = ", ".join(f"{name} {value:.3g}" for name, value in row.besides.items() if value)
        lines.append([row.name, *numbers, besides, "yes" if row.verdict.holds else "NO"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def write_history(path: Path, rows: list[Played], settings: dict[str, int]) -> None:
    """Keep a run: what was played, on what, and what came of it."""
    run = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.release()}",
        **settings,
        "rows": [
            {
                "row": row.name,
                "seconds": round(row.seconds, 1),
                "holds": row.verdict.holds,
                **{name: round(value, 3) for name, value in row.verdict.figures.items()},
                "faults": row.verdict.faults[:50],
            }
            for row in rows
        ],
    }
    path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
