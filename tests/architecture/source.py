"""A package read as syntax trees: its modules, and what each of them imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "poolhand"


@dataclass(frozen=True)
class Module:
    """One file; `name` is dotted and below the package, empty for the package itself."""

    name: str
    path: Path
    text: str

    @property
    def tree(self) -> ast.Module:
        """The parsed text; most rules concern few of the files."""
        return parsed(self.text, str(self.path))

    @property
    def package(self) -> str:
        """What a relative import with one dot starts from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def at(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.path}:{node.lineno}"


@dataclass(frozen=True)
class Import:
    """One imported module of the same package, and where it is imported."""

    target: str
    where: str
    when_loaded: bool


def expect_none(faults: Iterable[str]) -> None:
    """Fail with one line per fault."""
    lines = [fault.replace(f"{REPOSITORY}/", "") for fault in faults]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def read(path: Path, name: str = "") -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(name, path, text)


@cache
def parsed(text: str, filename: str) -> ast.Module:
    """Return a tree that all readers share; it is never changed."""
    return ast.parse(text, filename=filename)


def read_files(root: Path) -> list[Module]:
    """Every Python file below `root`, whatever its module name."""
    return [read(path) for path in sorted(root.rglob("*.py"))]


def read_package(root: Path) -> list[Module]:
    """Every module of the package whose folder is `root`."""
    modules = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules.append(read(path, name))
    return modules


def own_imports(module: Module, package: str, known: set[str]) -> Iterator[Import]:
    """Imports inside the package: relative or absolute, at the top, in functions, for types."""
    loaded = set(map(id, _run_when_loaded(module.tree)))
    for node in ast.walk(module.tree):
        for target in _targets(node, module, package, known):
            assert isinstance(node, ast.stmt | ast.expr)
            yield Import(target, module.at(node), id(node) in loaded)


def foreign_imports(module: Module) -> Iterator[tuple[str, str]]:
    """(full dotted name, place) of every absolute import; `from a import b` gives `a.b`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, module.at(node)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", module.at(node)


def _targets(node: ast.AST, module: Module, package: str, known: set[str]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            dotted = [alias.name for alias in names]
        case ast.ImportFrom(module=source, names=names, level=0):
            dotted = [f"{source}.{alias.name}" for alias in names]
        case ast.ImportFrom(module=source, names=names, level=level):
            above = module.package.split(".")[: -(level - 1) or None]
            base = ".".join([package, *filter(None, above), *filter(None, [source])])
            dotted = [f"{base}.{alias.name}" for alias in names]
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            dotted = [name]
        case _:
            return
    for name in dotted:
        if name == package or name.startswith(f"{package}."):
            yield _longest_known(name.removeprefix(package).removeprefix("."), known)


def _longest_known(name: str, known: set[str]) -> str:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def _run_when_loaded(tree: ast.Module) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                waiting.extend(node.orelse)
            case _:
                waiting.extend(ast.iter_child_nodes(node))
