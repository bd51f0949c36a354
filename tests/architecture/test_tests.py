"""What tests may not do: wait for time to pass, or stand in for our own code.

The rule for sleeping, for every file in tests/:

- `time.sleep` does not occur, called or passed on. A thread that has to wait, waits for an event.
- `asyncio.sleep(0)` is free: it gives others a turn.
- any other `asyncio.sleep(...)` stands in a function or lambda *inside* a test function, where it
  is the body of a job, work that takes a while; or in a function with a `SeededRuntime` among its
  parameters (or inside such a function), where time is virtual. Any other test, fixture or shared
  function waits for what it expects to happen.

`unittest.mock` and its relatives are imported nowhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import REPOSITORY, Module, expect_none, foreign_imports, read_files

MOCKS = ("unittest.mock", "mock", "pytest_mock")


class Sleeps(ast.NodeVisitor):
    """Walks one module and notes every sleep that breaks the rule."""

    def __init__(self, module: Module) -> None:
        self.faults: list[str] = []
        self._module = module
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda] = []
        self._names = dict(_imported_names(module.tree))
        self.visit(module.tree)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._inside(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._inside(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._refuse_blocking(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._refuse_blocking(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if self._dotted(node.func) == "asyncio.sleep" and not _is_zero(node):
            in_a_job = any(map(_is_test, self._functions[:-1]))
            if not in_a_job and not any(map(_has_virtual_time, self._functions)):
                self.faults.append(f"{self._module.at(node)}: sleeps; wait for an event instead")
        self.generic_visit(node)

    def _inside(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    def _refuse_blocking(self, node: ast.Name | ast.Attribute) -> None:
        if self._dotted(node) == "time.sleep":
            self.faults.append(f"{self._module.at(node)}: time.sleep; wait for an event instead")

    def _dotted(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self._dotted(node.value)}.{node.attr}"
        return self._names.get(node.id, "") if isinstance(node, ast.Name) else ""


def _imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _is_test(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> bool:
    return not isinstance(function, ast.Lambda) and function.name.startswith("test")


def _has_virtual_time(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> bool:
    annotations = [argument.annotation for argument in function.args.args]
    return any(isinstance(a, ast.Name) and a.id == "SeededRuntime" for a in annotations)


def _is_zero(call: ast.Call) -> bool:
    values = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "delay")]
    return [type(value) for value in values] == [ast.Constant] and (
        ast.unparse(values[0]) in {"0", "0.0"}
    )


def sleep_faults(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        if "sleep" in module.text:
            yield from Sleeps(module).faults


def mock_faults(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        if "mock" not in module.text:
            continue
        for name, where in foreign_imports(module):
            if any(name == mock or name.startswith(f"{mock}.") for mock in MOCKS):
                yield f"{where}: imports {name}; use the real thing or a small one of your own"


def test_no_test_waits_for_time_to_pass() -> None:
    expect_none(sleep_faults(read_files(REPOSITORY / "tests")))


def test_nothing_is_mocked() -> None:
    folders = [REPOSITORY / name for name in ("src", "tests", "bench", "examples", "tools")]
    expect_none(fault for folder in folders for fault in mock_faults(read_files(folder)))


def plant(root: Path, text: str) -> list[Module]:
    (root / "test_planted.py").write_text(text, encoding="utf-8")
    return read_files(root)


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.sleep(0)",
        "import time as t\ndef test():\n    def job(): t.sleep(1)",
        "from time import sleep\ndef test(pool): pool.submit(sleep, 1)",
        "import asyncio\nasync def test(): await asyncio.sleep(0.1)",
        "import asyncio\nasync def job(): await asyncio.sleep(1)",
        "import asyncio\nasync def job(_: Runtime): await asyncio.sleep(1)",
        "import asyncio\nasync def outer():\n    async def inner(): await asyncio.sleep(1)",
        "from asyncio import sleep as nap\nasync def test(n): await nap(n)",
        "import asyncio\nasync def test(): await asyncio.sleep(delay=1)",
    ],
)
def test_a_sleep_is_found(tmp_path: Path, text: str) -> None:
    (fault,) = sleep_faults(plant(tmp_path, text))
    assert f"test_planted.py:{len(text.splitlines())}:" in fault


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio\nasync def test(): await asyncio.sleep(0)",
        "import asyncio\nasync def test(): await asyncio.sleep(delay=0.0)",
        "import asyncio\nasync def test_it():\n    async def job(): await asyncio.sleep(60)",
        "import asyncio\nasync def test_it(pool): await pool.run(lambda: asyncio.sleep(1))",
        "import asyncio\nasync def crowd(_: SeededRuntime): await asyncio.sleep(1)",
        "import asyncio\ndef main(r: SeededRuntime):\n    async def go(): await asyncio.sleep(1)",
        "import time\ndef test(): time.monotonic()",
        "class Clock:\n    def sleep(self, n): ...\nClock().sleep(1)",
    ],
)
def test_a_sleep_inside_a_job_is_allowed(tmp_path: Path, text: str) -> None:
    assert list(sleep_faults(plant(tmp_path, text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "import unittest.mock",
        "from unittest import mock",
        "from unittest.mock import AsyncMock",
        "def test():\n    import mock",
    ],
)
def test_a_mock_is_found(tmp_path: Path, text: str) -> None:
    (fault,) = mock_faults(plant(tmp_path, text))
    assert "test_planted.py:" in fault
