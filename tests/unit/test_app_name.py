"""The name of an app leads to the app, or to an error of one line."""

from __future__ import annotations

import asyncio
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
    """A working folder; modules loaded from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(MODULE)]:
        sys.modules.pop(name)


def write(folder: Path, text: str, name: str = MODULE) -> None:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")


def test_an_app_in_the_working_directory_is_loaded(here: Path) -> None:
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


def test_output_printed_at_import_goes_to_stderr(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        (
            "from poolhand import App\nfirst = second = App('memory://')",
            f"{MODULE}:app",
            f"has no 'app'; did you mean {MODULE}:first or {MODULE}:second?",
        ),
        ("app = 3", f"{MODULE}:app", "is not an App: it is of type int; name an App of poolhand"),
        ("class app:\n url = 'memory://'", f"{MODULE}:app", "is not an App: it is of type"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_reported(
    here: Path, text: str, name: str, told: str
) -> None:
    write(here, text)
    with pytest.raises(UsageError, match=re.escape(told)) as raised:
        load_app(name)
    assert str(raised.value).startswith(f"app={name!r}")


def test_in_a_deleted_working_directory_installed_modules_are_still_found(here: Path) -> None:
    gone = here / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="is not an App: it is of type function"):
        load_app("poolhand.app_name:load_app")


APP = """
import asyncio
from contextlib import closing
from poolhand import App, Pool
app = App("sqlite:///jobs.db")

@app.task
async def work() -> None: ...

async def main() -> None:
    async with app.worker():
        await work.submit()

async def start_pool() -> None:
    async with Pool("in memory"):
        pass

async def together(what) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(what())

async def look() -> None:
    print("looked")
"""
LOOP = (
    f"{MODULE} runs an event loop (asyncio.run or the like) while it is imported, as every worker "
    'process imports it; put what it does under `if __name__ == "__main__":`'
)
BY_IMPORT = (
    f"while {MODULE} is imported, to submit jobs or to run them; put what it does under "
    '`if __name__ == "__main__":`'
)


@pytest.mark.parametrize(
    ("line", "what", "loops"),
    [
        ("asyncio.run(main())", "a store is opened", True),
        ("asyncio.run(together(main))", "a store is opened", True),
        (
            "with closing(asyncio.new_event_loop()) as a: a.run_until_complete(main())",
            "a store is opened",
            True,
        ),
        ("work.submit_sync()", "a store is opened", False),
        ("asyncio.run(start_pool())", "pool 'in memory' is started", True),
    ],
)
def test_a_module_that_runs_work_at_import_is_refused_with_the_fix(
    here: Path, line: str, what: str, loops: bool
) -> None:
    write(here, f"{APP}\n{line}\n")
    heard: list[str] = []
    with pytest.raises(UsageError) as raised:
        load_app(f"{MODULE}:app", heard.append)
    assert raised.value.message == f"app='{MODULE}:app': {what} {BY_IMPORT}"
    assert heard == [LOOP] * loops
    assert not (here / "jobs.db").exists()


def test_a_module_that_runs_a_loop_for_something_else_is_loaded_with_a_warning(here: Path) -> None:
    write(here, f"{APP}\nasyncio.run(look())\nasyncio.run(look())\n")
    heard: list[str] = []
    usual = asyncio.Runner.run, asyncio.BaseEventLoop.run_forever
    assert load_app(f"{MODULE}:app", heard.append).url == f"sqlite:///{Path.cwd()}/jobs.db"
    assert heard == [LOOP]
    assert (asyncio.Runner.run, asyncio.BaseEventLoop.run_forever) == usual
    asyncio.run(asyncio.sleep(0))
    assert heard == [LOOP], "the import is over"


def test_threads_started_by_a_module_may_work_after_the_import(here: Path) -> None:
    write(here, f"{APP}\nfrom contextvars import copy_context\nlater = copy_context()\n")
    app = load_app(f"{MODULE}:app")
    module = sys.modules[MODULE]
    ticket = module.later.run(module.work.submit_sync)
    assert ticket.id
    asyncio.run(app.close())


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
