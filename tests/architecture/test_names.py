"""Meaningless names and notes for later do not occur in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, Module, expect_none, read_package

EMPTY_MODULE_NAMES = {
    "base", "common", "helper", "helpers", "manager", "managers", "misc", "util", "utils",
}  # fmt: skip
EMPTY_CLASS_ENDINGS = ("Manager", "Helper", "Service", "Impl")
NOTE = re.compile(r"\b(?:TODO|FIXME|XXX)\b")


def name_faults(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        for part in EMPTY_MODULE_NAMES.intersection(module.name.split(".")):
            yield f"{module.path}: `{part}` does not say what is inside"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith(EMPTY_CLASS_ENDINGS):
                yield f"{module.at(node)}: `{node.name}` does not say what it is"


def twin_faults(modules: list[Module]) -> Iterator[str]:
    found: dict[str, str] = {}
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                first = found.setdefault(node.name, module.at(node))
                if first != module.at(node):
                    yield f"{module.at(node)}: `{node.name}` is a class of {first} as well"


def note_faults(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*")):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, start=1):
            if NOTE.search(line):
                yield f"{path}:{number}: {line.strip()}"


def test_module_and_class_names_are_not_generic() -> None:
    expect_none(name_faults(read_package(PACKAGE)))


def test_no_class_name_is_used_twice() -> None:
    expect_none(twin_faults(read_package(PACKAGE)))


def test_a_class_name_that_is_used_twice_is_found(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text("class Pool: ...\n")
    (tmp_path / "store.py").write_text("class Store:\n    class Pool: ...\n")
    (fault,) = twin_faults(read_package(tmp_path))
    assert fault == f"{tmp_path}/store.py:2: `Pool` is a class of {tmp_path}/pool.py:1 as well"


def test_no_todo_notes_are_left_in_the_code() -> None:
    expect_none(note_faults(PACKAGE))


@pytest.mark.parametrize("name", ["utils.py", "pool/base.py", "common/ids.py", "pool/manager.py"])
def test_a_generic_module_name_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    (fault,) = name_faults(read_package(tmp_path))
    assert str(path) in fault


@pytest.mark.parametrize("ending", EMPTY_CLASS_ENDINGS)
def test_a_generic_class_name_is_found(tmp_path: Path, ending: str) -> None:
    (tmp_path / "pool.py").write_text(f"class Pool: ...\n\n\nclass Pool{ending}: ...\n")
    (fault,) = name_faults(read_package(tmp_path))
    assert f"pool.py:4: `Pool{ending}`" in fault


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_a_todo_note_is_found(tmp_path: Path, word: str) -> None:
    (tmp_path / "schema.sql").write_text(f"-- first\n-- {word}: index\n-- MASTODON{word}\n")
    (fault,) = note_faults(tmp_path)
    assert "schema.sql:2:" in fault
