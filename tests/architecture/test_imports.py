"""Who may import whom: the table in ARCHITECTURE.md, held against the source.

The table stands under `## Who may import whom` and has the columns `package` and `may import`,
names in backticks. A row may name a sub-module (`observe.events`); the longest matching row counts.
The line `Everybody may import: ...` names what lies at the bottom. The package's own `__init__.py`
gathers the public names and may import anything; nothing inside imports from it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.architecture.source import (
    PACKAGE,
    REPOSITORY,
    Module,
    expect_none,
    foreign_imports,
    own_imports,
    read_package,
)

HEADING = "## Who may import whom"
IMPURE = {
    "asyncio", "concurrent", "logging", "multiprocessing", "os", "random", "socket", "sqlite3",
    "subprocess", "threading", "time",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """The written rules: a row per package, and the modules that every package may import."""

    rows: dict[str, set[str]]
    everybody: set[str]

    def owner(self, name: str) -> str | None:
        """The row or bottom module that speaks for `name`; the longest one wins."""
        names = [row for row in self.rows.keys() | self.everybody if is_within(name, row)]
        return max(names, key=len, default=None)

    def is_above_a_row(self, name: str) -> bool:
        return any(is_within(row, name) for row in self.rows)

    def may_import(self, owner: str) -> set[str]:
        return self.rows.get(owner, set()) | self.everybody | {owner}


def is_within(name: str, ancestor: str) -> bool:
    return name == ancestor or name.startswith(f"{ancestor}.")


def read_table(architecture: str) -> Table:
    _, found, below = architecture.partition(f"{HEADING}\n")
    assert found, f"ARCHITECTURE.md has no heading {HEADING!r}"
    section = re.split(r"^## ", below, maxsplit=1, flags=re.MULTILINE)[0]
    rows: dict[str, set[str]] = {}
    for line in section.splitlines():
        cells = line.strip().strip("|").split("|")
        packages = re.findall(r"`([\w.]+)`", cells[0])
        if line.lstrip().startswith("|") and len(cells) == 2:
            for package in packages:
                rows.setdefault(package, set()).update(re.findall(r"`([\w.]+)`", cells[1]))
    assert rows, f"{HEADING!r} in ARCHITECTURE.md holds no table `| package | may import |`"
    bottom = re.search(r"^Everybody may import: (.+)$", section, flags=re.MULTILINE)
    return Table(rows, set(re.findall(r"`([\w.]+)`", bottom[1])) if bottom else set())


def import_faults(modules: list[Module], table: Table, package: str = "poolhand") -> Iterator[str]:
    known = {module.name for module in modules}
    for module in modules:
        if not module.name:
            continue
        owner = table.owner(module.name)
        if owner is None and not table.is_above_a_row(module.name):
            yield f"{module.path}: no row of {HEADING!r} speaks for `{module.name}`"
            continue
        allowed = table.may_import(owner or module.name)
        for found in own_imports(module, package, known):
            if not any(is_within(found.target, name) for name in allowed):
                rule = ", ".join(f"`{name}`" for name in sorted(allowed))
                yield (
                    f"{found.where}: imports `{found.target or package}`, but"
                    f" `{owner or module.name}` may import only {rule}"
                )


def table_faults(modules: list[Module], table: Table) -> Iterator[str]:
    known = {module.name for module in modules}
    for row, targets in table.rows.items():
        for name in sorted({row, *targets} - known):
            yield f"ARCHITECTURE.md: the row of `{row}` names `{name}`, which does not exist"
    for name in sorted(table.everybody - known):
        yield f"ARCHITECTURE.md: everybody may import `{name}`, which does not exist"


def cycle(modules: list[Module], package: str = "poolhand") -> list[str]:
    """The modules of one import cycle, or none. Imports in functions and for types do not count."""
    known = {module.name for module in modules}
    graph = {
        module.name: {
            found.target
            for found in own_imports(module, package, known)
            if found.when_loaded and found.target != module.name
        }
        for module in modules
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [name or package for name in error.args[1]]
    return []


def purity_faults(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        if not is_within(module.name, "rules"):
            continue
        for name, where in foreign_imports(module):
            if name.partition(".")[0] in IMPURE:
                yield f"{where}: rules are pure and may not import {name}"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
                yield f"{module.at(node)}: rules are pure and never wait"


def desks(modules: list[Module]) -> list[str]:
    return [
        module.at(node)
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and node.name == "Desk"
    ]


# The project itself


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return read_package(PACKAGE)


@pytest.fixture(scope="module")
def table() -> Table:
    return read_table((REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8"))


def test_every_import_is_allowed_by_the_table(modules: list[Module], table: Table) -> None:
    expect_none(import_faults(modules, table))


def test_the_table_names_only_what_exists(modules: list[Module], table: Table) -> None:
    expect_none(table_faults(modules, table))


def test_no_modules_import_each_other(modules: list[Module]) -> None:
    assert not cycle(modules)


def test_rules_are_pure(modules: list[Module]) -> None:
    expect_none(purity_faults(modules))


def test_there_is_one_desk(modules: list[Module]) -> None:
    assert len(desks(modules)) == 1


# The checks themselves, on planted faults

ARCHITECTURE = f"""\
# A project

{HEADING}

| package | may import |
|---|---|
| `rules` | nothing |
| `observe.events` | `rules` |
| `pool` | `rules`, `observe.events` |

Everybody may import: `errors`.

## Another heading

| `farm` | `pool` |
"""


def plant(root: Path, **files: str) -> list[Module]:
    tree = {"__init__": "", "errors": "", "rules/__init__": "", "rules/desk": ""}
    tree |= {"observe/__init__": "", "observe/events": "", "pool/__init__": "", "pool/slots": ""}
    for name, text in (tree | {key.replace("__in__", "/"): files[key] for key in files}).items():
        path = root / "poolhand" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read_package(root / "poolhand")


def test_the_table_is_read_up_to_the_next_heading() -> None:
    table = read_table(ARCHITECTURE)
    assert table.rows == {
        "rules": set(),
        "observe.events": {"rules"},
        "pool": {"rules", "observe.events"},
    }
    assert table.everybody == {"errors"}


@pytest.mark.parametrize("text", ["# A project\n", f"{HEADING}\n\nlater\n"])
def test_a_missing_table_is_an_error(text: str) -> None:
    with pytest.raises(AssertionError, match="Who may import whom"):
        read_table(text)


@pytest.mark.parametrize(
    "line",
    [
        "from poolhand.rules.desk import Desk",
        "from ..rules import desk",
        "from ..observe.events import Event",
        "from . import registry",
        "from ..errors import PoolFull",
        "import poolhand.errors",
        "import asyncio",
        "import poolhandy",
    ],
)
def test_an_allowed_import_passes(tmp_path: Path, line: str) -> None:
    modules = plant(tmp_path, pool__in__slots=f"{line}\n")
    assert not list(import_faults(modules, read_table(ARCHITECTURE)))


@pytest.mark.parametrize(
    "text",
    [
        "from poolhand.pool import slots",
        "from poolhand.pool.slots import Slots",
        "import poolhand.pool.slots as s",
        "from ..pool import slots",
        "from .. import pool",
        "from poolhand import Pool",
        "def f():\n    from poolhand.pool.slots import Slots",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..pool.slots import Slots",
        "from importlib import import_module\nimport_module('poolhand.pool')",
        "import importlib\nimportlib.import_module('poolhand.pool.slots')",
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, text: str) -> None:
    modules = plant(tmp_path, rules__in__desk=f"{text}\n")
    (fault,) = import_faults(modules, read_table(ARCHITECTURE))
    line = len(text.splitlines())
    assert f"desk.py:{line}: imports `poo" in fault
    assert fault.endswith("`rules` may import only `errors`, `rules`")


def test_the_longest_matching_row_applies_to_a_module(tmp_path: Path) -> None:
    modules = plant(
        tmp_path,
        observe__in__events="from .logs import Logs\n",
        observe__in__logs="from poolhand.rules import desk\n",
    )
    faults = list(import_faults(modules, read_table(ARCHITECTURE)))
    assert len(faults) == 2
    assert "`observe.events` may import only `errors`, `observe.events`, `rules`" in faults[0]
    assert "no row" in faults[1]
    assert "`observe.logs`" in faults[1]


def test_a_package_without_a_row_is_found(tmp_path: Path) -> None:
    modules = plant(tmp_path, farm__in____init__="")
    (fault,) = import_faults(modules, read_table(ARCHITECTURE))
    assert "no row" in fault
    assert "`farm`" in fault


def test_a_row_for_nothing_is_found(tmp_path: Path) -> None:
    text = ARCHITECTURE.replace("| `rules` | nothing |", "| `farm` | `web` |\n| `rules` | |")
    faults = list(table_faults(plant(tmp_path), read_table(text)))
    assert [fault.split("names ")[1] for fault in faults] == [
        "`farm`, which does not exist",
        "`web`, which does not exist",
    ]


def test_a_cycle_is_found(tmp_path: Path) -> None:
    modules = plant(
        tmp_path,
        rules__in__desk="from .rank import Rank\n",
        rules__in__rank="try:\n    from . import lane\nexcept ImportError:\n    raise\n",
        rules__in__lane="import poolhand.rules.desk\n",
    )
    assert set(cycle(modules)) == {"rules.desk", "rules.rank", "rules.lane"}


def test_an_import_for_types_or_in_a_function_makes_no_cycle(tmp_path: Path) -> None:
    modules = plant(
        tmp_path,
        rules__in__desk="from .rank import Rank\n",
        rules__in__rank=(
            "import typing\nif typing.TYPE_CHECKING:\n    from .desk import Desk\n"
            "def desk():\n    from . import desk\n"
        ),
    )
    assert not cycle(modules)


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "import os.path",
        "from random import random",
        "def f():\n    import threading",
        "async def f(): ...",
    ],
)
def test_an_impure_rule_is_found(tmp_path: Path, text: str) -> None:
    modules = plant(tmp_path, rules__in__desk=f"{text}\n", pool__in__slots="import asyncio, time\n")
    (fault,) = purity_faults(modules)
    assert "desk.py:" in fault


def test_a_second_desk_is_found(tmp_path: Path) -> None:
    desk = "class Desk: ...\n"
    modules = plant(tmp_path, rules__in__desk=desk, pool__in__slots=f"def f():\n    {desk}")
    assert len(desks(modules)) == 2
