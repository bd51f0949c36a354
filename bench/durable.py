"""Benchmark of stored jobs: what one costs, what grows, how soon it starts. See README.md here."""

from __future__ import annotations

import argparse
import faulthandler
import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import durable_cost as cost
import durable_crowd as crowd
import durable_depth as depth
import durable_start as start
from durable_cases import QUICK, Case, Figures, Sample, Scale, Take
from durable_profiling import profile
from goals import MISSED
from lag import RESULTS, facts, fresh, publish, show_progress, table
from machine import installed
from measure import FAILED

LONGEST = 120.0


@dataclass(frozen=True, slots=True)
class Section:
    """One question: its cases, how one is taken, the table it makes."""

    title: str
    cases: Callable[[Scale], list[Case]]
    take: Take
    header: tuple[str, ...]
    rows: Callable[[Figures], list[list[str]]]
    at_once: bool = False


SECTIONS = {
    cost.SECTION: Section(cost.TITLE, cost.cases, cost.take, cost.HEADER, cost.rows),
    depth.FULL_SECTION: Section(
        depth.FULL_TITLE, depth.full_cases, depth.take_full, depth.FULL_HEADER, depth.full_rows
    ),
    depth.DEPTH_SECTION: Section(
        depth.DEPTH_TITLE, depth.depth_cases, depth.take_depth, depth.DEPTH_HEADER, depth.depth_rows
    ),
    start.START_SECTION: Section(
        start.START_TITLE, start.start_cases, start.take_start, start.START_HEADER, start.start_rows
    ),
    crowd.SECTION: Section(crowd.TITLE, crowd.cases, crowd.take, crowd.HEADER, crowd.rows),
    # All repeats together: they wait, and do not disturb each other.
    start.IDLE_SECTION: Section(
        start.IDLE_TITLE,
        start.idle_cases,
        start.take_idle,
        start.IDLE_HEADER,
        start.idle_rows,
        at_once=True,
    ),
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little work, once: a smoke test")
    parser.add_argument("--repeats", type=int, help="samples per figure (3 unless told)")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="sections to measure")
    parser.add_argument("--no-peers", action="store_true", help="leave out other libraries")
    parser.add_argument("--folder", help="where the files are kept meanwhile: a real disk")
    parser.add_argument("--output", type=Path, help="file for the tables")
    parser.add_argument("--profile", action="store_true", help="profile our jobs instead")
    parser.add_argument("--probe", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.repeats = given.repeats or (1 if given.quick else 3)
    return given


class Run:
    """Takes samples, each in a fresh process with a folder of its own."""

    def __init__(self, root: str, repeats: int) -> None:
        self._root = root
        self._repeats = repeats

    def collect(self, section: Section, cases: list[Case]) -> Figures:
        """One sample of each case per repeat; what is missing or broken is not tried again."""
        figures: Figures = {case: [] for case in cases}
        if section.at_once:
            return {case: self._at_once(case) for case in cases}
        for repeat in range(self._repeats):
            for number, case in enumerate(cases, start=repeat * len(cases) + 1):
                if not any(one.problem for one in figures[case]):
                    self._show(number, self._repeats * len(cases), case)
                    figures[case].append(self._take(case))
        return figures

    def _at_once(self, case: Case) -> list[Sample]:
        self._show(1, 1, case)
        with ThreadPoolExecutor(self._repeats) as threads:
            return list(threads.map(self._take, [case] * self._repeats))

    def _take(self, case: Case) -> Sample:
        folder = tempfile.mkdtemp(dir=self._root)
        try:
            return Sample(**fresh(__file__, json.dumps(asdict(case)), folder))
        finally:
            shutil.rmtree(folder)

    def _show(self, number: int, total: int, case: Case) -> None:
        amount = f" {case.amount:,}" if case.amount else ""
        keys = f", {case.keys:,} keys" if case.keys else ""
        what = f"{case.section}: {case.contestant}{amount}{keys}"
        show_progress(number, total, what)


def probe(case: Case, folder: str) -> Sample:
    """The sample, or the name of what is missing; anything else ends the process with a trace."""
    try:
        return Sample(SECTIONS[case.section].take(case, folder))
    except ModuleNotFoundError as error:
        return Sample(problem=f"{error.name} not installed")


def disk(folder: str) -> str:
    """The kind of file system that a folder is on."""
    best = ("", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return best[1]
    for line in mounts:
        _, where, kind, *_ = line.split(" ")
        if Path(folder).is_relative_to(where) and len(where) >= len(best[0]):
            best = (where, kind)
    return best[1]


def told(given: argparse.Namespace, root: str) -> str:
    """What a reader must know to trust the figures."""
    return facts(
        SQLite=f"{sqlite3.sqlite_version}; WAL, synchronous=FULL for all",
        disk=disk(root),
        peers=", ".join(f"{name} {installed(name)}" for name in cost.PEERS),
        repeats=f"{given.repeats}; the median is shown",
    )


def summary(lines: list[tuple[str, str, str]]) -> str:
    """How many goals were met, and each one that was not."""
    verdicts = [(where, one) for *where, goals in lines if goals for one in goals.split("; ")]
    missed = [(where, one) for where, one in verdicts if one.startswith(MISSED)]
    text = [f"Goals met: {len(verdicts) - len(missed)} of {len(verdicts)}."]
    text += [f"- {verdict} — {title}: {name}" for (title, name), verdict in missed]
    return "\n".join(text)


def measured(given: argparse.Namespace, root: str) -> tuple[str, bool]:
    """All tables of one run, and whether a contestant crashed."""
    scale, run = QUICK if given.quick else Scale(), Run(root, given.repeats)
    parts, goals, crashed = [], [], False
    for name in given.only or SECTIONS:
        section = SECTIONS[name]
        cases = section.cases(scale)
        if given.no_peers:
            cases = [case for case in cases if case.contestant not in cost.PEERS]
        figures = run.collect(section, cases)
        rows = section.rows(figures)
        parts.append(f"## {section.title}\n\n{table(section.header, rows)}")
        if section.header[-1] == "goal":
            goals += [(section.title, row[0], row[-1]) for row in rows]
        problems = (one.problem for samples in figures.values() for one in samples)
        crashed = crashed or any(problem.startswith(FAILED) for problem in problems)
    head = f"# Stored jobs\n\n{told(given, root)}"
    parts += [summary(goals)] if any(goal for *_, goal in goals) else []
    return "\n\n".join([head, *parts]) + "\n", crashed


def main() -> int:
    """Runs, prints, writes. A missed goal is told, not punished; a contestant that crashes is."""
    given = arguments()
    if given.probe:
        case, folder = given.probe
        # What hangs says where.
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        print(json.dumps(asdict(probe(Case(**json.loads(case)), folder))))
        return 0
    with tempfile.TemporaryDirectory(prefix="poolhand-bench-", dir=given.folder) as root:
        if given.profile:
            profile(root)
            return 0
        text, crashed = measured(given, root)
    # Only a whole run replaces the stored results.
    given.quick = given.quick or bool(given.only or given.no_peers)
    publish(text, given, RESULTS / "durable.md")
    return int(crashed)


if __name__ == "__main__":
    sys.exit(main())
