"""Size limits of modules, functions and folders.

There is no list of exceptions: long code is split, or the limit changes for all.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, Module, expect_none, read_package

MODULE_LINES = 400
STORE_LINES = 600
FUNCTION_LINES = 40
CONSTRUCTOR_PARAMETERS = 8
FOLDER_MODULES = 16


def size_faults(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        limit = STORE_LINES if module.name.partition(".")[0] == "stores" else MODULE_LINES
        lines = len(module.text.splitlines())
        if lines > limit:
            yield f"{module.path}: {lines} lines, at most {limit}"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from function_faults(module, node)


def folder_faults(modules: list[Module]) -> Iterator[str]:
    counts = Counter(one.path.parent for one in modules if one.path.name != "__init__.py")
    for folder, count in counts.items():
        if count > FOLDER_MODULES:
            yield f"{folder}: {count} modules, at most {FOLDER_MODULES}"


def function_faults(module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines > FUNCTION_LINES:
        yield f"{module.at(node)}: {node.name} has {lines} lines, at most {FUNCTION_LINES}"
    if node.name in {"__init__", "__new__"}:
        count = parameters(node.args) - 1
        if count > CONSTRUCTOR_PARAMETERS:
            yield (
                f"{module.at(node)}: {node.name} takes {count} parameters,"
                f" at most {CONSTRUCTOR_PARAMETERS}"
            )


def parameters(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len(named) + (arguments.vararg is not None) + (arguments.kwarg is not None)


def test_modules_functions_and_constructors_stay_within_their_size_limits() -> None:
    expect_none(size_faults(read_package(PACKAGE)))


def test_every_folder_stays_within_its_module_limit() -> None:
    expect_none(folder_faults(read_package(PACKAGE)))


def test_a_folder_with_too_many_modules_is_found(tmp_path: Path) -> None:
    for number in range(FOLDER_MODULES):
        (tmp_path / f"module_{number}.py").touch()
    (tmp_path / "__init__.py").touch()
    assert not list(folder_faults(read_package(tmp_path)))
    (tmp_path / "one_more.py").touch()
    (fault,) = folder_faults(read_package(tmp_path))
    assert fault == f"{tmp_path}: 17 modules, at most 16"


def plant(root: Path, name: str, text: str) -> list[Module]:
    path = root / "poolhand" / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return read_package(root / "poolhand")


@pytest.mark.parametrize(("name", "limit"), [("pool.py", 400), ("stores/sql.py", 600)])
def test_a_long_module_is_found(tmp_path: Path, name: str, limit: int) -> None:
    assert not list(size_faults(plant(tmp_path / "fits", name, "#\n" * limit)))
    (fault,) = size_faults(plant(tmp_path / "long", name, "#\n" * (limit + 1)))
    assert f"{limit + 1} lines, at most {limit}" in fault


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_long_function_is_found(tmp_path: Path, keyword: str) -> None:
    body = "    pass\n"
    fits = f"class A:\n  {keyword} run(self):\n{body * 39}"
    assert not list(size_faults(plant(tmp_path / "fits", "pool.py", fits)))
    (fault,) = size_faults(plant(tmp_path / "long", "pool.py", fits + body))
    assert "pool.py:2: run has 41 lines, at most 40" in fault


@pytest.mark.parametrize("last", ["h", "*h", "*, h", "**h", "h, /"])
def test_a_constructor_with_too_many_parameters_is_found(tmp_path: Path, last: str) -> None:
    text = "class A:\n    def __init__(self, a, b, c, d, e, f, g, {}): ...\n"
    assert not list(size_faults(plant(tmp_path / "fits", "pool.py", text.format(last))))
    wide = text.replace("self, a", "self, z, a").format(last)
    (fault,) = size_faults(plant(tmp_path / "wide", "pool.py", wide))
    assert "__init__ takes 9 parameters, at most 8" in fault
