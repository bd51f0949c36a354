"""Help, examples, versions, and hints for typos."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_group
from typer.testing import CliRunner, Result

from poolhand.cli import main
from poolhand.cli.main import app
from poolhand.cli.session import Exit

GROUP = get_group(app)
HEAVY = {
    "asyncpg", "cronsim", "greenlet", "poolhand.app", "poolhand.farm.supervisor",
    "poolhand.operate.actions", "poolhand.stores.postgres.store", "poolhand.stores.sqlite.store",
    "poolhand.tui.farm_app", "rich.console", "rich.table", "sqlite3", "textual",
}  # fmt: skip


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(words), prog_name="poolhand")
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def leaves() -> Iterator[tuple[str, ...]]:
    """Yield the words of every command."""
    context = typer.Context(GROUP)
    for name in GROUP.list_commands(context):
        command = GROUP.get_command(context, name)
        if isinstance(command, TyperGroup):
            yield from ((name, below) for below in command.list_commands(context))
        else:
            yield (name,)


LEAVES = list(leaves())


def test_every_command_is_covered_here() -> None:
    assert ("jobs", "list") in LEAVES
    assert ("help",) in LEAVES
    assert len(LEAVES) > 25


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_the_help_of_every_command_has_an_example_of_it(words: tuple[str, ...]) -> None:
    help = run(*words, "--help").stdout
    _, found, examples = help.partition("\n  Examples:\n")
    assert found
    assert f"$ poolhand {' '.join(words)}" in examples.replace("poolhand -", "poolhand")
    assert run("help", *words).stdout == help


@pytest.mark.parametrize("name", main.COMMANDS)
def test_a_command_is_listed_with_the_first_line_of_its_own_help(name: str) -> None:
    command = GROUP.get_command(typer.Context(GROUP), name)
    assert command is not None
    assert command.get_short_help_str(limit=1_000) == main.COMMANDS[name].help


def test_a_hint_to_another_place_names_a_command_that_is_there() -> None:
    for name, place in main.ELSEWHERE.items():
        assert name not in main.COMMANDS
        _, *words = place.split()
        assert tuple(word for word in words if word[0] != "-") in LEAVES


def test_help_without_a_command_is_the_help_of_all() -> None:
    help = run("--help").stdout
    assert run("help").stdout == help
    assert run("-h").stdout == help
    assert "  $ poolhand help jobs list" in help


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["jbos", "list"], "No such command 'jbos'. Did you mean 'jobs'?"),
        (["WORKERS"], "No such command 'WORKERS'. Did you mean 'workers'?"),
        (["jobs", "lsit"], "No such command 'lsit'. Did you mean 'list'?"),
        (["retry", "j-1"], "No such command 'retry'. Did you mean `poolhand jobs retry`?"),
        (["zzzz"], "No such command 'zzzz'. See `poolhand --help`."),
        (["help", "jbos"], "No such command 'jbos'. Did you mean 'jobs'?"),
        (["help", "jobs", "lsit"], "No such command 'lsit'. Did you mean 'list'?"),
        (["help", "config", "x"], "`poolhand config` has no commands below it; leave out 'x'"),
        (["jobs", "list", "--stor", "x"], "--store"),
        (["--verison"], "--version"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_misspelt_command_or_option_gets_a_suggestion(words: list[str], hint: str) -> None:
    result = run(*words, code=2)
    assert hint in result.stderr
    assert result.stdout == ""


def test_the_version_is_an_option_too() -> None:
    assert run("--version").stdout == f"poolhand {version('poolhand')}\n"
    assert run("--version", "jobs", "nonsense").stdout == f"poolhand {version('poolhand')}\n"


def test_exit_codes_defined_without_imports_match_the_exit_codes_of_all_commands() -> None:
    assert (main.WRONG, main.USAGE) == (Exit.WRONG, Exit.USAGE)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["help"], ["jbos"]], ids=" ".join)
def test_help_imports_nothing_that_only_commands_need(words: list[str]) -> None:
    code = (
        "import sys\nfrom poolhand.cli.main import run\n"
        f"sys.argv[1:] = {words!r}\n"
        "try:\n    run()\nexcept SystemExit:\n    pass\nsys.stderr.write('\\n'.join(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert HEAVY & set(ran.stderr.split()) == set()


# Wrong calls

ARGUMENTS = {
    ("pools", "resize"): ["x", "3"],
    ("workers", "bounds"): ["x", "--min", "1"],
    ("sessions", "erase"): ["x"],
    ("jobs", "cancel"): ["x"],
    ("dead", "retry"): ["x"],
    ("dead", "drop"): ["x"],
}
WITHOUT_A_STORE = (("help",), ("version",), ("config",), ("work",))


def words_for(leaf: tuple[str, ...]) -> list[str]:
    """Return a call of a command with all its required arguments."""
    if leaf in ARGUMENTS:
        return [*leaf, *ARGUMENTS[leaf]]
    usage = run(*leaf, "--help").stdout.splitlines()[0]
    needed = usage.partition("[OPTIONS]")[2].split()
    return [*leaf, *("x" for word in needed if not word.startswith("["))]


@pytest.mark.parametrize(
    "leaf", [one for one in LEAVES if one not in WITHOUT_A_STORE], ids=" ".join
)
@pytest.mark.parametrize(
    ("store", "codes"),
    [
        ("junk", {5}),
        ("sqlite:///no/such/folder/agents.db", {5}),
        ("sqlite:///{folder}", {5}),
        ("nonsense", {2}),
        ("mysql://host/db", {2}),
        ("memory://", {2}),
        ("postgresql://me:secret@127.0.0.1:1/db", {5}),
    ],
)
def test_an_invalid_store_is_reported_in_one_line_with_the_documented_exit_code(
    leaf: tuple[str, ...], store: str, codes: set[int], tmp_path: Path
) -> None:
    junk = tmp_path / "junk.db"
    junk.write_text("no database at all")
    url = f"sqlite:///{junk}" if store == "junk" else store.format(folder=tmp_path)
    result = CliRunner().invoke(app, [*words_for(leaf), "--store", url], prog_name="poolhand")
    told = result.stderr or result.stdout
    # A finding of the doctor is not an error of the doctor; migrate is meant to make a store.
    allowed = {"doctor": codes | {1}, "migrate": codes | {0}}.get(leaf[0], codes)
    assert result.exit_code in allowed, f"{told}{result.exception!r}"
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "secret" not in told
    if result.exit_code in codes:
        assert told.startswith("poolhand: ")
        assert told.count("\n") == 1


@pytest.mark.slow
def test_a_deleted_working_directory_is_reported_in_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"cd {gone} && rmdir {gone} && exec {sys.executable} -P -m poolhand jobs list"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert ran.returncode == Exit.USAGE
    assert ran.stderr == (
        "poolhand: the current folder cannot be used: No such file or directory; "
        "go to another one with `cd`\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "config",
        pytest.param("help jobs list", marks=pytest.mark.full),
        pytest.param("version --json", marks=pytest.mark.full),
    ],
)
def test_a_closed_pipe_causes_no_traceback(words: str) -> None:
    # The reader is gone before the first line.
    line = f"{sys.executable} -m poolhand {words} | true"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert ran.stderr == ""


def test_starting_a_farm_warns_about_a_misspelt_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "typo_app.py").write_text("from poolhand import App\napp = App('memory://')\n")
    monkeypatch.setenv("POOLHAND_MAX_WORKRES", "5")
    warned, refused = run("work", "typo_app:app", code=2).stderr.splitlines()
    assert warned == (
        "poolhand: POOLHAND_MAX_WORKRES is not a variable of poolhand and has no effect; "
        "did you mean POOLHAND_MAX_WORKERS?"
    )
    assert "the store is 'memory://'" in refused
