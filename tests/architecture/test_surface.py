"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import poolhand

HEAVY = ("rich", "uvloop", "typer", "structlog", "sqlite3", "pytest")

PROBE = """
import sys, threading
import {module}
print(threading.active_count(), *sorted(set(sys.modules) & set({heavy!r})))
"""


def effects_of_importing(module: str, folder: Path) -> tuple[int, list[str], list[str]]:
    """Import in a fresh interpreter: threads, heavy modules loaded, files made in `folder`."""
    before = set(folder.iterdir())
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", PROBE.format(module=module, heavy=HEAVY)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    threads, *loaded = done.stdout.split()
    return int(threads), loaded, sorted(path.name for path in set(folder.iterdir()) - before)


def test_public_names_are_sorted_and_unique() -> None:
    assert list(poolhand.__all__) == sorted(set(poolhand.__all__))


def test_every_public_name_is_there() -> None:
    assert [name for name in poolhand.__all__ if not hasattr(poolhand, name)] == []


def test_nothing_happens_at_import(tmp_path: Path) -> None:
    assert effects_of_importing("poolhand", tmp_path) == (1, [], [])


@pytest.mark.parametrize(
    ("text", "effects"),
    [
        ("import sqlite3, rich", (1, ["rich", "sqlite3"], [])),
        ("open('made', 'w').close()", (1, [], ["made"])),
        (
            "import threading\n"
            "threading.Thread(target=threading.Event().wait, daemon=True).start()\n",
            (2, [], []),
        ),
    ],
)
def test_what_an_import_does_is_found(
    tmp_path: Path, text: str, effects: tuple[int, list[str], list[str]]
) -> None:
    (tmp_path / "planted.py").write_text(text)
    assert effects_of_importing("planted", tmp_path) == effects
