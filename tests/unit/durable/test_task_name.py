"""Names of tasks: one function has one name, however its module was started."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from runpy import run_path
from types import FunctionType
from typing import Any

import pytest

from poolhand.durable.calls.declaration import name_of_global, name_of_task
from poolhand.durable.calls.task_registry import TaskCode, TaskRegistry
from poolhand.errors import UsageError
from poolhand.wire.payload import Wire


def add(number: int) -> int:
    return number + 1


class Mailer:
    def send(self) -> None: ...


def defined(module: str, file: Path | str | None = None, spec: str | None = None) -> Any:
    """Return a function as a module of that name and file defines it."""
    names: dict[str, Any] = {"__name__": module, "__spec__": spec and ModuleSpec(spec, None)}
    if file is not None:
        names["__file__"] = str(file)
    return FunctionType(add.__code__, names)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The folder of the package proj.agents."""
    folder = tmp_path / "proj" / "agents"
    folder.mkdir(parents=True)
    for one in (folder, folder.parent):
        (one / "__init__.py").touch()
    return folder


def test_a_task_is_named_after_its_module_and_function() -> None:
    assert name_of_task(add) == f"{__name__}.add"
    assert name_of_task(Mailer().send) == f"{__name__}.Mailer.send"
    with pytest.raises(UsageError, match="has no name to be found by"):
        name_of_task(partial(add, 1))


@pytest.mark.parametrize("module", ["__main__", "__mp_main__"], ids=["script", "child"])
def test_a_script_has_the_name_that_importing_it_would_give(module: str, package: Path) -> None:
    assert name_of_task(defined(module, package / "mail.py")) == "proj.agents.mail.add"
    assert name_of_task(defined(module, package / "__main__.py")) == "proj.agents.add"
    assert name_of_task(defined(module, package.parent.parent / "mail.py")) == "mail.add"
    assert name_of_task(defined(module, "/nowhere/mail.py")) == "mail.add"
    assert name_of_task(defined(module, "<stdin>")) == name_of_task(defined(module))
    assert name_of_task(defined(module)) == "__main__.add"
    by_name = defined(module, package / "mail.py", "proj.agents.mail")
    assert name_of_task(by_name) == "proj.agents.mail.add"
    assert name_of_task(defined(module, spec="proj.agents.__main__")) == "proj.agents.add"


def test_a_folder_that_is_run_as_a_script_is_named_as_with_m(package: Path, tmp_path: Path) -> None:
    assert name_of_task(defined("__main__", package / "__main__.py", "__main__")) == (
        "proj.agents.add"
    )
    plain = tmp_path / "plain" / "__main__.py"
    assert name_of_task(defined("__main__", plain, "__main__")) == "plain.add"
    assert name_of_task(defined("plain.__main__", plain)) == "plain.add"


def test_a_module_that_is_imported_inside_of_its_package_has_its_full_name(package: Path) -> None:
    for module in ("mail", "agents.mail", "proj.agents.mail"):
        assert name_of_task(defined(module, package / "mail.py")) == "proj.agents.mail.add"
    # A package without a file of its own, and a file that is loaded under another name.
    assert name_of_task(defined("space.proj.agents.mail", package / "mail.py")) == (
        "space.proj.agents.mail.add"
    )
    assert name_of_task(defined("plugin_7", package / "mail.py")) == "plugin_7.add"


def test_a_function_that_no_module_has_needs_a_name() -> None:
    def local() -> None: ...

    def without_wraps() -> Callable[[], None]:
        def wrapper() -> None: ...

        return wrapper

    for fn, name in ((local, "local"), (without_wraps(), "wrapper"), (lambda: None, "send_mail")):
        with pytest.raises(UsageError, match=f'give it a name: @app.task\\(name="{name}"\\)'):
            name_of_global(fn)
    assert name_of_global(add) == name_of_task(add)


def code(fn: Callable[..., Any], name: str = "add") -> TaskCode:
    return TaskCode(name, fn, Wire())


def run(file: Path, text: str) -> list[Any]:
    """Return the functions that a module appends to `found` when it is loaded."""
    file.write_text(text)
    found: list[Any] = []
    run_path(str(file), {"found": found}, "module")
    return found


def test_two_functions_of_one_name_are_refused_and_a_reload_is_not(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    text = "def add(): pass\nfound.append(add)\n"
    (first,), (second,) = run(module, text), run(module, text)
    (moved,) = run(module, f"import sys\n\n{text}")
    codes = TaskRegistry()
    for fn in (first, first, second, moved):
        one = code(fn)
        codes.add(one)
        assert codes.find("add") is one
    with pytest.raises(UsageError, match=r"give one of the two another name: @app.task\(name=…\)"):
        codes.add(code(lambda: None))


@pytest.mark.parametrize(
    "text",
    [
        "def add(): pass\nfound.append(add)\n\ndef add(): return 2\nfound.append(add)\n",
        "for _ in range(2):\n    def add(): pass\n    found.append(add)\n",
        "def make():\n    def add(): pass\n    found.append(add)\nmake()\nmake()\n",
        "class A:\n    def add(self): pass\nfound.append(A().add)\nfound.append(A().add)\n",
    ],
    ids=["twice", "loop", "factory", "methods"],
)
def test_two_functions_that_one_module_makes_are_refused(tmp_path: Path, text: str) -> None:
    first, second = run(tmp_path / "module.py", text)
    codes = TaskRegistry()
    codes.add(code(first))
    with pytest.raises(UsageError, match="'add' is registered already, for another function"):
        codes.add(code(second))


def test_a_cell_that_is_run_again_brings_its_task_again(tmp_path: Path) -> None:
    cell = tmp_path / "cell.py"
    found = run(cell, "def add(): pass\nfound.append(add)\n")
    found += run(cell, "\n\ndef add(): pass\nfound.append(add)\n")
    cell.unlink()
    codes = TaskRegistry()
    for fn in found:
        codes.add(code(fn))


def test_decorated_functions_are_distinguished_by_the_wrapped_function() -> None:
    def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fn)
        def wrapper(*args: Any) -> Any:
            return fn(*args)

        return wrapper

    codes = TaskRegistry()
    codes.add(code(logged(add)))
    codes.add(code(logged(add)))
    with pytest.raises(UsageError, match="is registered already"):
        codes.add(code(logged(Mailer.send)))


def test_a_task_is_found_by_the_end_of_its_name_and_by_a_longer_one() -> None:
    codes = TaskRegistry()
    one = code(add, "proj.agents.add")
    codes.add(one)
    assert codes.find("proj.agents.add") is one
    assert codes.find("agents.add") is one
    assert codes.find("work.proj.agents.add") is one
    for other in ("add", "ents.add", "agents.add2", "proj.agents", "other.agents.add", ""):
        assert codes.find(other) is None, other
        assert codes.candidates(other) == []


def test_a_name_that_matches_two_tasks_finds_none_and_lists_both() -> None:
    codes = TaskRegistry()
    for name in ("a.agents.add", "b.agents.add", "mail.add", "old.mail.add"):
        codes.add(code(add, name))
    assert codes.find("agents.add") is None
    assert codes.candidates("agents.add") == ["a.agents.add", "b.agents.add"]
    assert codes.find("mail.add") is not None, "its own name"
    assert codes.candidates("mail.add") == []
    for name in ("x.mail.add", "x.old.mail.add"):
        assert codes.find(name) is None
        assert codes.candidates(name) == ["mail.add", "old.mail.add"]


def test_a_call_is_read_under_each_name_of_its_task() -> None:
    short, long = code(add, "agents.add"), code(add, "proj.agents.add")
    for one, other in ((short, long), (long, short)):
        assert other.unpack(one.pack((4,), {}))() == 5
        assert other.unpack_context(one.pack_context({"a": 1})) == {"a": 1}


def test_tasks_of_the_parent_registry_make_a_name_ambiguous_too() -> None:
    others = TaskRegistry()
    codes = TaskRegistry(others)
    codes.add(code(add, "a.agents.add"))
    assert codes.find("agents.add") is not None
    others.add(code(add, "b.agents.add"))
    assert codes.find("agents.add") is None
    assert codes.find("b.agents.add") is not None
    assert "task:agents.add" not in codes.causes()
    assert {"task:a.agents.add", "task:b.agents.add"} <= codes.causes()
