"""Benchmark of stored jobs: cost, growth and time to start. See README.md here."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import count
from pathlib import Path

from durable_cases import QUICK, Case, Figures, Sample, Scale
from durable_ground import GROUNDS, Ground
from durable_profiling import profile
from durable_sections import NAMES, PEERS, POSTGRES, SECTIONS, SQLITE, Section
from goals import MISSED
from lag import RESULTS, facts, fresh, sampled, show_progress, table
from measure import FAILED
from private_server import ServerMissing

LONGEST = 300.0
TITLES = {SQLITE: "Stored jobs: SQLite", POSTGRES: "Stored jobs: PostgreSQL"}
FILES = {SQLITE: RESULTS / "durable.md", POSTGRES: RESULTS / "postgres.md"}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", action="append", choices=SECTIONS, help="stores to measure")
    parser.add_argument("--quick", action="store_true", help="little work, once: a smoke test")
    parser.add_argument("--repeats", type=int, help="samples per figure (default: 3)")
    parser.add_argument("--only", action="append", choices=NAMES, help="sections to measure")
    parser.add_argument("--no-peers", action="store_true", help="leave out other libraries")
    parser.add_argument("--folder", help="the folder for its files: on a real disk")
    parser.add_argument("--output", type=Path, help="file for the tables")
    parser.add_argument("--profile", action="store_true", help="profile poolhand jobs instead")
    parser.add_argument("--probe", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.repeats = given.repeats or (1 if given.quick else 3)
    asked = given.only or NAMES
    given.stores = [
        store for store in given.store or SECTIONS if not SECTIONS[store].keys().isdisjoint(asked)
    ]
    if not given.stores:
        parser.error(f"--only {asked[0]}: not a section of --store {given.store[0]}")
    return given


class Run:
    """Takes samples, each in a fresh process with its own folder or database."""

    def __init__(self, store: str, ground: Ground, repeats: int, quick: bool) -> None:
        self._store = store
        self._ground = ground
        self._repeats = repeats
        self._quick = quick

    def collect(self, section: Section, cases: list[Case]) -> Figures:
        """One sample of each case per repeat; a missing or broken case is not repeated."""
        figures: Figures = {case: [] for case in cases}
        if section.at_once:
            return {case: self._at_once(case) for case in cases}
        numbers = count(1)

        def take(case: Case) -> Sample:
            self._show(next(numbers), self._repeats * len(cases), case)
            return self._take(case)

        for _ in range(self._repeats):
            left = [case for case in cases if not any(one.problem for one in figures[case])]
            for case, sample in zip(left, sampled(take, left, self._quick), strict=True):
                figures[case].append(sample)
        return figures

    def _at_once(self, case: Case) -> list[Sample]:
        self._show(1, 1, case)
        with ThreadPoolExecutor(self._repeats) as threads:
            return list(threads.map(self._take, [case] * self._repeats))

    def _take(self, case: Case) -> Sample:
        with self._ground.place() as where:
            return Sample(**fresh(__file__, self._store, json.dumps(asdict(case)), where))

    def _show(self, number: int, total: int, case: Case) -> None:
        amount = f" {case.amount:,}" if case.amount else ""
        keys = f", {case.keys:,} keys" if case.keys else ""
        what = f"{self._store}, {case.section}: {case.contestant}{amount}{keys}"
        show_progress(number, total, what)


def probe(store: str, case: Case, where: str) -> Sample:
    """The sample, or the name of a missing library; any other error ends the process."""
    try:
        return Sample(SECTIONS[store][case.section].take(case, where))
    except ModuleNotFoundError as error:
        return Sample(problem=f"{error.name} not installed")


def summary(lines: list[tuple[str, str, str]]) -> str:
    """The number of goals met, and each goal that was missed."""
    verdicts = [(where, one) for *where, goals in lines if goals for one in goals.split("; ")]
    missed = [(where, one) for where, one in verdicts if one.startswith(MISSED)]
    text = [f"Goals met: {len(verdicts) - len(missed)} of {len(verdicts)}."]
    text += [f"- {verdict} — {title}: {name}" for (title, name), verdict in missed]
    return "\n".join(text)


def measured(given: argparse.Namespace, store: str, ground: Ground) -> tuple[str, bool]:
    """All tables of one store, and whether a contestant crashed."""
    scale = QUICK if given.quick else Scale()
    run = Run(store, ground, given.repeats, given.quick)
    parts, goals, crashed = [], [], False
    for name, section in SECTIONS[store].items():
        if given.only and name not in given.only:
            continue
        cases = section.cases(scale)
        if given.no_peers:
            cases = [case for case in cases if case.contestant not in PEERS[store]]
        figures = run.collect(section, cases)
        rows = section.rows(figures)
        parts.append(f"## {section.title}\n\n{table(section.header, rows)}")
        if section.header[-1] == "goal":
            goals += [(section.title, row[0], row[-1]) for row in rows]
        problems = (one.problem for samples in figures.values() for one in samples)
        crashed = crashed or any(problem.startswith(FAILED) for problem in problems)
    told = facts(**ground.facts, repeats=f"{given.repeats}; the median is shown")
    parts += [summary(goals)] if any(goal for *_, goal in goals) else []
    return "\n\n".join([f"# {TITLES[store]}\n\n{told}", *parts]) + "\n", crashed


def run_store(given: argparse.Namespace, store: str, root: str) -> tuple[str, bool]:
    """Print and store the tables of one store; return whether something crashed."""
    with GROUNDS[store](root) as ground:
        if given.profile:
            profile(ground)
            return "", False
        text, crashed = measured(given, store, ground)
    print(text, end="", flush=True)
    # Only a complete run replaces the stored results.
    if not (given.output or given.quick or given.only or given.no_peers):
        FILES[store].write_text(text, encoding="utf-8")
    return text, crashed


def run_stores(given: argparse.Namespace) -> bool:
    """Measure one store after the other; return whether all went well. Reports a missing server."""
    texts, well = [], True
    with tempfile.TemporaryDirectory(prefix="poolhand-bench-", dir=given.folder) as root:
        for store in given.stores:
            try:
                text, crashed = run_store(given, store, root)
            except (ModuleNotFoundError, ServerMissing) as error:
                print(f"{store} is not measured: {error}", file=sys.stderr)
                well = well and not given.store
                continue
            texts.append(text)
            well = well and not crashed
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text("".join(texts), encoding="utf-8")
    return well


def main() -> int:
    """Run, print, write. A missed goal is reported, with exit code 0; a crash has exit code 1."""
    given = arguments()
    if given.probe:
        store, case, where = given.probe
        # A case that hangs prints its stack.
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        print(json.dumps(asdict(probe(store, Case(**json.loads(case)), where))))
        return 0
    # The private server is in the folder of temporary files.
    tempfile.tempdir = given.folder or tempfile.tempdir
    return int(not run_stores(given))


if __name__ == "__main__":
    sys.exit(main())
