"""Measures every case in a fresh process, contestants interleaved within each repeat."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from cases import IMPORT, Case, Sample

PROBE = Path(__file__).with_name("probe.py")
LONGEST = 600.0
FAILED = "failed"
CLOCK = "import time; print(time.process_time())"

Progress = Callable[[int, int, Case], None]
Figures = dict[Case, list[Sample]]


def take(case: Case) -> Sample:
    """One sample; a contestant that fails or hangs becomes a sample with a problem."""
    command = import_command(case) if case.measure == IMPORT else probe_command(case)
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        return Sample(problem=f"{FAILED}: no answer within {LONGEST:.0f} s")
    wall = time.perf_counter() - started
    if done.returncode:
        sys.stderr.write(done.stderr)
        return Sample(problem=f"{FAILED}: {last_line(done.stderr)}")
    if case.measure == IMPORT:
        return Sample(float(done.stdout) * 1e3, wall * 1e3)
    return Sample(**json.loads(done.stdout))


def probe_command(case: Case) -> list[str]:
    """A process that measures the case and prints its sample."""
    return [sys.executable, str(PROBE), json.dumps(asdict(case))]


def import_command(case: Case) -> list[str]:
    """A process that prints the CPU time used until after the import."""
    first = "import poolhand" if case.contestant == "poolhand" else "pass"
    return [sys.executable, "-c", f"{first}\n{CLOCK}"]


def last_line(text: str) -> str:
    """The last line of a traceback, which names the error."""
    return (text.strip().splitlines() or ["no message"])[-1]


def collect(cases: Sequence[Case], repeats: int, progress: Progress) -> Figures:
    """One sample of each case per repeat; a missing or broken case is not repeated."""
    figures: Figures = {case: [] for case in cases}
    for repeat in range(repeats):
        for number, case in enumerate(cases, start=repeat * len(cases) + 1):
            if not problem(figures[case]):
                progress(number, repeats * len(cases), case)
                figures[case].append(take(case))
    return figures


def problem(samples: Sequence[Sample]) -> str:
    """The reason why there is no figure, or None."""
    return next((sample.problem for sample in samples if sample.problem), "")
