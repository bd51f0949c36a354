"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import poolhand
import poolhand.settings
import poolhand.views

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
    # A site hook may turn byte code on again after -B; its cache is no effect of the module.
    made = {path.name for path in set(folder.iterdir()) - before} - {"__pycache__"}
    return int(threads), loaded, sorted(made)


PUBLIC = [poolhand, poolhand.settings, poolhand.views]


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_public_names_are_sorted_and_unique(module: ModuleType) -> None:
    assert list(module.__all__) == sorted(set(module.__all__))


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_every_public_name_is_there(module: ModuleType) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_the_top_level_is_small_and_every_name_has_one_home() -> None:
    assert len(poolhand.__all__) <= 48
    names = [name for module in PUBLIC for name in module.__all__]
    assert len(names) == len(set(names))


def test_a_star_import_of_the_errors_gives_the_errors_only() -> None:
    kinds = [kind for kind in vars(poolhand.errors).values() if isinstance(kind, type)]
    ours = {kind.__name__ for kind in kinds if kind.__module__ == "poolhand.errors"}
    assert set(poolhand.errors.__all__) == ours


def test_only_the_roots_of_the_errors_and_the_directives_are_at_the_top_level() -> None:
    tree = [kind for kind in vars(poolhand.errors).values() if isinstance(kind, type)]
    errors = [kind for kind in tree if issubclass(kind, poolhand.PoolhandError)]
    directives = poolhand.errors.Directive
    roots = {
        kind.__name__
        for kind in errors
        if (kind is poolhand.PoolhandError or poolhand.PoolhandError in kind.__bases__)
        and kind is not directives
    }
    expected = roots | {kind.__name__ for kind in errors if directives in kind.__bases__}
    assert {kind.__name__ for kind in errors} & set(poolhand.__all__) == expected
    assert [kind.__name__ for kind in errors if kind.__name__ in vars(poolhand)] == [
        kind.__name__ for kind in errors if kind.__name__ in expected
    ]


@pytest.mark.parametrize("module", ["poolhand.settings", "poolhand.views"])
def test_public_modules_cost_no_more_than_the_package(module: str, tmp_path: Path) -> None:
    assert effects_of_importing(module, tmp_path) == (1, [], [])


def test_importing_the_package_has_no_side_effects(tmp_path: Path) -> None:
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
def test_a_side_effect_at_import_is_found(
    tmp_path: Path, text: str, effects: tuple[int, list[str], list[str]]
) -> None:
    (tmp_path / "planted.py").write_text(text)
    assert effects_of_importing("planted", tmp_path) == effects
