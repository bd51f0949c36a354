"""A run is stored, shown, and published in its place on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults import report
from tests.faults.__main__ import PAGE
from tests.faults.checker import Verdict
from tests.faults.load import read_plan, standard
from tests.faults.report import BEGIN, END, Played
from tests.faults.rows import Settings
from tests.faults.table import ROWS

HELD = Played("kills", "sqlite", 7, 61.04, Verdict(figures={"accepted": 2000, "rerun_s": 0.51234}))
BROKEN = Played("drain", "sqlite", 7, 2.0, Verdict(["late: it ended after 9 s"]))
SKIPPED = Played("kills", "postgres", 7, 0.0, skipped="PostgreSQL is not installed")


def run() -> report.History:
    return report.history([HELD, BROKEN, SKIPPED], {"seed": 7})


def test_a_history_names_row_store_seed_and_result(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history.json"
    report.write(path, run())
    kept = json.loads(path.read_text())
    assert [(row["row"], row["store"], row["seed"], row["holds"]) for row in kept["rows"]] == [
        ("kills", "sqlite", 7, True),
        ("drain", "sqlite", 7, False),
        ("kills", "postgres", 7, False),
    ]
    assert kept["rows"][0]["figures"] == {"accepted": 2000, "rerun_s": 0.512}
    assert kept["rows"][1]["faults"] == ["late: it ended after 9 s"]


def test_a_table_lists_what_passed_failed_and_was_not_run() -> None:
    lines = [[cell.strip() for cell in line.split("|")] for line in report.table(run()).split("\n")]
    assert [(line[1], line[2], line[3], line[-2]) for line in lines[2:]] == [
        ("kills", "sqlite", "2,000", "yes"),
        ("drain", "sqlite", "", "NO"),
        ("kills", "postgres", "", "skipped"),
    ]
    assert [line[-3] for line in lines[2:]] == [
        "rerun 0.512 s",
        "",
        "PostgreSQL is not installed",
    ]


def test_a_published_run_replaces_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nwhat was there\n{END}\nafter\n")
    for _ in range(2):
        report.publish(run(), page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"|\n{END}\nafter\n")
    assert text.count("Played on ") == 1
    assert "what was there" not in text


def test_a_page_without_a_marker_is_left_unchanged(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="has no place"):
        report.publish(run(), page)
    assert page.read_text() == "nothing"


def test_every_row_of_the_fault_table_is_on_the_promises_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in ROWS if f"\n| {name} |" not in text] == []
    assert text.count(BEGIN) == text.count(END) == 1


def test_the_usual_load_is_as_promised(tmp_path: Path) -> None:
    usual = Settings()
    plan = standard(usual.seed, usual.jobs, usual.longest)
    plan.save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    keys = [item.idempotency_key for item in plan.items if item.idempotency_key]
    jobs = len(plan.items) - len(keys) + len(set(keys))
    assert abs(jobs - 2000) < 5, "the last ones may be a batch"
    assert len(set(keys)) == 50
    assert all(keys.count(key) > 1 for key in set(keys))
    assert len({item.session for item in plan.items if item.session}) == 20
    long = [item for item in plan.items if item.seconds == 10.0]
    assert 10 <= len(long) <= 30
    assert all(0.005 <= item.seconds <= 0.05 for item in plan.items if item not in long)
    assert {item.task for item in plan.items} >= {"flaky", "hopeless"}
