"""Rows that are played by tests elsewhere and listed in the table here."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET

from tests.faults.checker import Verdict
from tests.faults.crew import REPOSITORY, import_path
from tests.faults.ground import Ground, Skipped
from tests.faults.rows import Play, Settings

LIMIT = 900.0
FILE = "tests/system/test_sqlite_file.py"
CHECKPOINT = "tests/system/test_checkpoint_crash.py"
PROCESSES = "tests/system/test_sqlite_processes.py"


def told_by(*tests: str) -> Play:
    """Return a row that holds if all these tests pass."""

    def play(ground: Ground, settings: Settings) -> Verdict:
        report = ground.folder / "tests.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
            *(f"--junitxml={report}", f"--basetemp={ground.folder / 'tests'}", *tests),
        ]
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env={
                **os.environ,
                "PYTHONPATH": import_path(),
                "FAULT_KILLS": str(settings.kills),
            },
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        if not report.exists():
            return Verdict([f"unfinished: pytest ended with {done.returncode}: {done.stdout}"])
        # Written a moment ago by a process of this run.
        return _verdict(ET.parse(report).getroot())  # noqa: S314

    return play


def _verdict(report: ET.Element) -> Verdict:
    verdict = Verdict()
    cases = list(report.iter("testcase"))
    for case in cases:
        for word in case:
            if word.tag == "skipped":
                raise Skipped(f"{case.get('name')}: {word.get('message')}")
            if word.tag in ("failure", "error"):
                verdict.faults.append(f"{word.tag}: {case.get('name')}: {word.get('message')}")
    if not cases:
        verdict.faults.append("missed: no test was found")
    for name in report.iter("property"):
        value = name.get("value", "")
        if value.isdecimal():
            key = str(name.get("name"))
            verdict.figures[key] = verdict.figures.get(key, 0) + int(value)
    verdict.figures["tests"] = len(cases)
    return verdict


flush = told_by(
    f"{FILE}::test_a_kill_at_any_flush_loses_nothing_that_was_acknowledged",
    f"{FILE}::test_a_kill_in_the_middle_of_a_write_loses_nothing_that_was_acknowledged",
)
checkpoint = told_by(CHECKPOINT)
disk = told_by(
    f"{FILE}::test_a_broken_or_full_disk_is_reported_and_recovered_from",
    f"{FILE}::test_a_file_size_limit_is_reported_and_recovered_from",
)
one_file = told_by(f"{FILE}::test_processes_that_write_at_once_lose_no_update", PROCESSES)
