"""A name of an app is an app, or an error in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from poolhand import App, UsageError
from poolhand.app_name import load_app

MODULE = "named_by_test"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to stand in; what is loaded from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(MODULE)]:
        sys.modules.pop(name)


def write(folder: Path, text: str, name: str = MODULE) -> None:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")


def test_an_app_of_this_folder_is_loaded(here: Path) -> None:
    write(here, "from poolhand import App\nclass made:\n    app = App('memory://')\n")
    app = load_app(f"{MODULE}:made.app")
    assert isinstance(app, App)
    assert app is load_app(f"{MODULE}:made.app")
    assert sys.path.count(str(here)) == 1


def test_an_app_can_load_the_rest_of_its_project_from_another_folder(
    here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write(here, "from poolhand import App\napp = App('memory://')\n")
    write(here, "from poolhand import App\napp = App('memory://')\n", f"{MODULE}_later")
    load_app(f"{MODULE}:app")
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert load_app(f"{MODULE}_later:app").url == "memory://"


def test_what_a_module_prints_is_no_output(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, "from poolhand import App\nprint('loading')\napp = App('memory://')\n")
    load_app(f"{MODULE}:app")
    assert capsys.readouterr() == ("", "loading\n")


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("", "agents", "app='agents' is not allowed; it must be module:attribute, such as"),
        ("", ":app", "app=':app' is not allowed; it must be module:attribute, such as"),
        ("", f"{MODULE}x:app", f"No module named '{MODULE}x'; run this in the folder of your"),
        ("", f"{MODULE}.x:app", f"No module named '{MODULE}.x'; '{MODULE}' is not a package"),
        ("import no_such_x", f"{MODULE}:app", "raised ModuleNotFoundError: No module named 'no_"),
        ("import no_such_x", f"{MODULE}:app", f'try `python -c "import {MODULE}"`'),
        ("1 / 0", f"{MODULE}:app", "loading it raised ZeroDivisionError: division by zero; try"),
        ("raise SystemExit(3)", f"{MODULE}:app", "loading it raised SystemExit: 3; try"),
        ("x = (", f"{MODULE}:app", "loading it raised SyntaxError: '(' was never closed"),
        ("", f"{MODULE}:a.b", f"module '{MODULE}' has no 'a.b'"),
        ("app = 3", f"{MODULE}:app", "is no App: it is of type int; name an App of poolhand"),
        ("class app:\n url = 'memory://'", f"{MODULE}:app", "is no App: it is of type type; name"),
    ],
)
def test_an_app_that_cannot_be_had_is_told(here: Path, text: str, name: str, told: str) -> None:
    write(here, text)
    with pytest.raises(UsageError, match=re.escape(told)) as raised:
        load_app(name)
    assert str(raised.value).startswith(f"app={name!r}")


def test_where_the_folder_is_gone_what_is_installed_is_still_found(here: Path) -> None:
    gone = here / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="is no App: it is of type function"):
        load_app("poolhand.app_name:load_app")


@pytest.mark.slow
def test_loading_an_app_loads_nothing_of_the_command_line(here: Path) -> None:
    write(here, "from poolhand import App\napp = App('memory://')\n")
    script = (
        f"import sys\nfrom poolhand.app_name import load_app\nload_app('{MODULE}:app')\n"
        "print(*sorted({'typer', 'rich', 'click'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("\n", "")
