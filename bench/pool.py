"""Benchmark of the pool: one run, one table. `python bench/pool.py --help`; see README.md here."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import machine
from cases import (
    DRAIN,
    IMPORT,
    PENDING,
    QUICK,
    Case,
    Scale,
    drain_cases,
    import_cases,
    pending_cases,
    throughput_cases,
)
from measure import FAILED, Figures, collect, problem
from profiling import profile
from report import rows, summary, table

THROUGHPUT = "throughput"
SECTIONS = (THROUGHPUT, PENDING, DRAIN, IMPORT)
RESULTS = Path(__file__).parent / "results" / "pool.md"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2,000 jobs, one repeat: a smoke test")
    parser.add_argument("--repeats", type=int, help="samples per figure (the median is shown)")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="sections to measure")
    parser.add_argument("--no-peers", action="store_true", help="leave out other libraries")
    parser.add_argument("--output", type=Path, help="file for the table")
    parser.add_argument("--profile", action="store_true", help="profile no-op jobs instead")
    return parser.parse_args()


def listed(scale: Scale, sections: list[str], peers: bool) -> list[Case]:
    """The cases of the sections that repeat together."""
    cases = throughput_cases(scale) if THROUGHPUT in sections else []
    cases += pending_cases(scale) if PENDING in sections else []
    cases += drain_cases(scale) if DRAIN in sections else []
    return [case for case in cases if peers or not case.contestant.startswith(machine.PEERS)]


def show_progress(number: int, total: int, case: Case) -> None:
    """One line on a terminal, overwritten each time; one line per case elsewhere."""
    line = f"[{number}/{total}] {case.measure}, {case.loop}, {case.size:,}: {case.contestant}"
    end = "\r" if sys.stderr.isatty() else "\n"
    print(line.ljust(79), end=end, file=sys.stderr, flush=True)


def measured(scale: Scale, sections: list[str], peers: bool) -> Figures:
    """All figures of one run; imports are short, so they have more repeats."""
    figures = collect(listed(scale, sections, peers), scale.repeats, show_progress)
    if IMPORT in sections:
        figures |= collect(import_cases(), scale.import_repeats, show_progress)
    return figures


def written_to(given: argparse.Namespace) -> Path | None:
    """Only a complete run replaces the stored results unless a file is named."""
    partial = given.quick or given.only or given.no_peers
    return given.output or (None if partial else RESULTS)


def main() -> int:
    """Run, print, write. A missed goal is reported, with exit code 0; a crash has exit code 1."""
    given = arguments()
    scale = QUICK if given.quick else Scale()
    scale = replace(scale, repeats=given.repeats or scale.repeats)
    if given.profile:
        profile(scale.jobs)
        return 0
    figures = measured(scale, given.only or list(SECTIONS), not given.no_peers)
    lines = list(rows(figures))
    text = f"# Pool benchmark\n\n{machine.described(scale)}\n\n{table(lines)}\n\n{summary(lines)}\n"
    print(text, end="")
    if output := written_to(given):
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    return int(any(problem(samples).startswith(FAILED) for samples in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
