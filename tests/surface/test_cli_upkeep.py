"""Choosing and checking a store: settings, migrate, doctor, version; and real processes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import typer

from poolhand import App
from poolhand.app_options import store_line
from poolhand.cli.commands.work import store_conflict_of
from poolhand.cli.session import check_schema, reported_errors
from poolhand.config import load_store
from poolhand.contract import Owner
from poolhand.errors import Unavailable
from poolhand.runtime import Runtime
from poolhand.setting_table import FARM, SETTINGS
from tests.surface.test_cli import HOSTILE, Desk, run
from tests.unit.operate.world import World

SECONDS = 50
COMMAND = [sys.executable, "-W", "error", "-m", "poolhand"]
GONE_PID = 2**22 + 1


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into an empty folder, without settings in the environment."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in [name for setting in SETTINGS for name in setting.variables]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(f"sqlite:///{tmp_path}/agents.db")
    run("migrate", "--store", desk.url)
    return desk


# Which store


def test_a_command_without_a_store_explains_how_to_name_one() -> None:
    error = run("jobs", "list", code=2).stderr
    assert error.startswith(
        "poolhand: no store is named, and there is no poolhand.db in this folder;"
    )
    assert "give --store URL" in error
    assert error.count("\n") == 1


def test_without_any_setting_the_default_store_of_an_app_is_used(here: Path) -> None:
    app = App()
    app.task(name="wait")(do_nothing).submit_sync()
    asyncio.run(app.close())
    (job,) = json.loads(run("jobs", "list", "--json").stdout)["jobs"]
    assert job["name"] == "wait"
    (here / "pyproject.toml").write_text('[tool.poolhand]\nstore = "sqlite:///other.db"\n')
    assert "other.db'; check the name" in run("jobs", "list", code=5).stderr


def do_nothing() -> None: ...


@pytest.mark.parametrize(
    ("url", "setting", "warned"),
    [
        ("sqlite:///a.db", "sqlite:///b.db", True),
        ("sqlite:///a.db", "postgresql://me:secret@host/db", True),
        ("sqlite:///a.db", "sqlite:///./a.db", False),
        ("sqlite:///a.db", None, False),
        (None, "sqlite:///b.db", False),
    ],
)
def test_a_farm_warns_of_a_setting_that_names_another_store_than_the_code(
    here: Path, monkeypatch: pytest.MonkeyPatch, url: str | None, setting: str | None, warned: bool
) -> None:
    if setting is not None:
        monkeypatch.setenv("POOLHAND_STORE", setting)
    warning = store_conflict_of(App(url), "agents:app", load_store()[0])
    assert (warning is not None) is warned
    if warning is not None:
        assert warning.startswith("the code of agents:app uses the store ")
        assert f"sqlite:///{here}/a.db, and " in warning
        assert "secret" not in warning


def test_a_farm_reports_its_store_and_where_it_was_set(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(app: App) -> str:
        return store_line(app.url, app.store_origin)

    assert line(App("sqlite:///a.db")) == f"store sqlite:///{here}/a.db (from the code)"
    default = f"store sqlite:///{here}/poolhand.db (the default, as nothing names one)"
    assert line(App()) == default
    monkeypatch.setenv("POOLHAND_STORE", "sqlite:///b.db")
    assert line(App()) == f"store sqlite:///{here}/b.db (from environment POOLHAND_STORE)"


def test_the_store_comes_from_the_environment_or_the_file(
    desk: Desk, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = desk.add()
    (here / "pyproject.toml").write_text(f'[tool.poolhand]\nstore = "{desk.url}"\n')
    assert id in run("jobs", "list").stdout
    monkeypatch.setenv("POOLHAND_STORE", "memory://")
    assert "memory://" in run("jobs", "list", code=2).stderr


def test_an_app_of_the_project_names_its_store(desk: Desk, here: Path) -> None:
    id = desk.add()
    (here / "agents_of_test.py").write_text(
        f"from poolhand import App\nprint('loading')\napp = App({desk.url!r})\n"
    )
    result = run("jobs", "list", "--json", "--app", "agents_of_test:app")
    assert [job["id"] for job in json.loads(result.stdout)["jobs"]] == [id]
    assert result.stderr == "loading\n"
    sys.modules.pop("agents_of_test")


def test_store_and_app_settings_are_resolved_by_precedence(
    desk: Desk, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = desk.add()
    text = f"from poolhand import App\napp = App({desk.url!r})\n"
    (here / "near_of_test.py").write_text(text)
    monkeypatch.setenv("POOLHAND_STORE", "memory://")
    assert id in run("jobs", "list", "--app", "near_of_test:app").stdout
    monkeypatch.setenv("POOLHAND_APP", "near_of_test:app")
    assert "memory://" in run("jobs", "list", code=2).stderr
    sys.modules.pop("near_of_test")


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("", "missing_of_test:app", "No module named 'missing_of_test'"),
        ("", "broken_of_test:app", "module 'broken_of_test' has no 'app'"),
        ("app = 3", "broken_of_test:app", "is not an App: it is of type int; name an App"),
        ("import sys; sys.exit(0)", "broken_of_test:app", "loading it raised SystemExit: 0"),
        ("1 / 0", "broken_of_test:app", "loading it raised ZeroDivisionError: division by zero"),
    ],
    ids=["no module", "no attribute", "no app", "exits", "raises"],
)
def test_an_app_that_cannot_be_loaded_is_reported_in_one_line(
    here: Path, text: str, name: str, said: str
) -> None:
    (here / "broken_of_test.py").write_text(text)
    sys.modules.pop("broken_of_test", None)
    error = run("jobs", "list", "--app", name, code=2).stderr
    assert said in error
    assert error.count("\n") == 1


def test_read_commands_do_not_create_a_missing_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/typo.db"
    before = sorted(tmp_path.iterdir())
    for words in (["jobs", "list"], ["pools", "pause", "x"], ["audit"], ["migrate", "--check"]):
        error = run(*words, "--store", url, code=5).stderr
        assert f"there is no file '{tmp_path}/typo.db'" in error
    run("doctor", "--store", url, code=1)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("url", "code"),
    [("redis://me:secret@host/0", 2), ("nonsense", 2), ("sqlite://x.db", 2)],
)
def test_an_invalid_store_url_is_reported_without_its_secret(url: str, code: int) -> None:
    for words in (["jobs", "list"], ["doctor"], ["migrate"]):
        error = run(*words, "--store", url, code=code).output
        assert "secret" not in error
        assert error.count("\n") == 1


def test_no_error_shows_the_secret_of_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://me:secret@host/db"

    def fail() -> None:
        with reported_errors() as tell:
            tell.urls.append(url)
            raise Unavailable(f"{url} does not answer; is {url!r} right?")

    with pytest.raises(typer.Exit) as ended:
        fail()
    assert ended.value.exit_code == 5
    assert capsys.readouterr().err == (
        "poolhand: postgresql://me:***@host/db does not answer; "
        "is 'postgresql://me:***@host/db' right? [PH-STO-001]\n"
    )


def test_a_file_that_is_not_a_store_is_reported_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    path.write_bytes(b"this is no database at all, whatever its name says\n" * 100)
    content = path.read_bytes()
    error = run("jobs", "list", "--store", f"sqlite:///{path}", code=5).stderr
    assert str(path) in error
    assert "[PH-STO-005]" in error
    assert error.count("\n") == 1
    doctor = run("doctor", "--store", f"sqlite:///{path}", code=1)
    assert "WRONG" in doctor.stdout
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", ["", "journal_mode=DELETE", "journal_mode=WAL"])
@pytest.mark.parametrize(
    "words",
    [
        ["jobs", "list"],
        ["jobs", "show", "x"],
        ["jobs", "cancel", "x"],
        ["jobs", "retry", "x"],
        ["dead", "list"],
        ["dead", "retry", "--all"],
        ["pools", "list"],
        ["pools", "pause", "x"],
        ["audit"],
    ],
    ids=" ".join,
)
def test_a_file_without_a_poolhand_schema_is_reported_and_left_unchanged(
    tmp_path: Path, words: list[str], content: str
) -> None:
    path = tmp_path / "mine.db"
    path.touch()
    if content:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA {content}")
            connection.execute("CREATE TABLE mine (x)")
            connection.commit()
    before = contents(tmp_path)
    url = f"sqlite:///{path}"
    assert run(*words, "--store", url, code=5).stderr == (
        f"poolhand: '{path}' is not a store of poolhand yet; check the name, or make it one with "
        f"`poolhand migrate --store {url}` [PH-STO-001]\n"
    )
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files of a folder, except those that SQLite uses for readers."""
    files = (file for file in folder.iterdir() if file.is_file())
    return {f.name: f.read_bytes() for f in files if not f.name.endswith(("-wal", "-shm"))}


def test_read_commands_never_migrate_a_file() -> None:
    check_schema("agents.db", 2, 2, "sqlite:///agents.db")
    with pytest.raises(Unavailable, match="has schema number 1, this poolhand needs 2; migrate it"):
        check_schema("agents.db", 1, 2, "sqlite:///agents.db")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 300, "cannot be inspected: File name too long"),
        ("file.db/agents.db", "agents.db"),
        ("a folder", "is a folder; name a file in it"),
        ("a pipe", "is a pipe, a socket or a device; name a regular file"),
    ],
    ids=["long", "below a file", "folder", "pipe"],
)
def test_a_path_where_no_file_can_be_is_reported_in_one_line(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "file.db").touch()
    (tmp_path / "a folder").mkdir()
    os.mkfifo(tmp_path / "a pipe")
    url = f"sqlite:///{tmp_path}/{name}"
    for words in (["jobs", "list"], ["migrate"], ["migrate", "--check"]):
        error = run(*words, "--store", url, code=5).stderr
        assert said in error
        assert error.count("\n") == 1
    assert "WRONG" in run("doctor", "--store", url, code=1).stdout


def test_a_suggested_command_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/my jobs.db"
    warning = run("jobs", "list", "--store", url, code=5).stderr
    words = shlex.split(warning.split("`")[1])
    assert words == ["poolhand", "migrate", "--store", url]


def test_an_app_with_an_in_memory_store_is_recognized_in_any_spelling(here: Path) -> None:
    (here / "memory_of_test.py").write_text("from poolhand import App\napp = App('MEMORY://')\n")
    error = run("jobs", "list", "--app", "memory_of_test:app", code=2).stderr
    assert "is in the memory of the process that uses it" in error
    sys.modules.pop("memory_of_test")


# Settings


def test_every_setting_is_shown_with_its_source(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "pyproject.toml").write_text('[tool.poolhand]\napp = "agents:app"\n')
    monkeypatch.setenv("POOLHAND_STORE", "postgresql://me:secret@host/db")
    monkeypatch.setenv("POOLHAND_STROE", "x")
    monkeypatch.setenv("MIN_WORKERS", "2")
    monkeypatch.setenv("POOLHAND_SOFT_TIMEOUT_S", "1.50")
    result = run("config")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()[1:]]
    assert [line.split()[0] for line in lines] == [setting.name for setting in SETTINGS]
    assert lines[:4] == [
        "store postgresql://me:***@host/db environment POOLHAND_STORE the store of jobs",
        "app agents:app pyproject.toml [tool.poolhand] the app whose store to look at",
        "loglevel info default the least of what is logged",
        "min_workers 2 environment MIN_WORKERS worker processes there always are",
    ]
    assert "hard_timeout_s not set default " in "\n".join(lines)
    assert result.stderr == (
        "poolhand: POOLHAND_STROE is not a variable of poolhand and has no effect; "
        "did you mean POOLHAND_STORE?\n"
    )
    shown = json.loads(run("config", "--json", "--store", "memory://").stdout)
    assert shown["settings"][0] == {"name": "store", "value": "memory://", "origin": "flag --store"}
    assert shown["unknown"] == ["POOLHAND_STROE"]
    values = {one["name"]: one["value"] for one in shown["settings"]}
    assert (values["min_workers"], values["max_workers"], values["external"]) == (2, 10, False)
    assert (values["soft_timeout_s"], values["hard_timeout_s"]) == (1.5, None)


def test_config_as_json_shows_no_store_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLHAND_STORE", "postgresql://me:secret@host/db")
    shown = json.loads(run("config", "--json").stdout)
    assert shown["settings"][0]["value"] == "postgresql://me:***@host/db"


def test_an_invalid_farm_variable_does_not_break_read_commands(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = desk.add()
    monkeypatch.setenv("MAX_WORKERS", "auto")
    assert id in desk.run("jobs", "list").stdout
    error = run("config", code=2).stderr
    assert "max_workers='auto' (environment MAX_WORKERS) is not allowed" in error


def test_all_invalid_settings_are_reported_at_once(here: Path) -> None:
    (here / "pyproject.toml").write_text('[tool.poolhand]\nstroe = "x"\napp = 3\n')
    error = run("config", "--store", "nonsense", code=2).stderr
    assert all(name in error for name in ("stroe", "app=3", "store='nonsense'"))


# Migrate and doctor


def test_only_migrate_creates_a_new_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    first = run("migrate", "--store", url).stdout
    assert first.startswith("the schema is number ")
    assert first.endswith(" now, from 0\n")
    again = json.loads(run("migrate", "--store", url, "--json").stdout)
    assert again["from"] == again["to"] == again["newest"] > 0
    assert "nothing to do" in run("migrate", "--store", url).stdout
    assert "nothing to do" in run("migrate", "--check", "--store", url).stdout


def test_migrate_check_reports_pending_migrations_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    result = run("migrate", "--check", "--store", f"sqlite:///{path}", code=1)
    assert result.stdout.startswith("the schema is number 0; `poolhand migrate` migrates it to ")
    assert path.read_bytes() == b""


def test_a_newer_schema_is_refused_with_instructions(desk: Desk, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "agents.db") as connection:
        connection.execute("INSERT INTO poolhand_schema VALUES (9999, 'later', '', '', 9999)")
    connection.close()
    error = desk.run("jobs", "list", code=5).stderr
    assert "9999" in error
    assert "[PH-STO-004]" in error
    assert desk.run("doctor", code=1).stdout.count("WRONG") == 1


def test_a_healthy_store_passes_the_doctor(desk: Desk) -> None:
    result = desk.run("doctor")
    checks = [line.split()[:2] for line in result.stdout.splitlines()[2:]]
    assert checks == [
        [name, "ok"]
        for name in (
            "version",
            "disk",
            "file",
            "schema",
            "permissions",
            "store",
            "clock",
            "leases",
            "jobs",
            "schedule",
            "sessions",
        )
    ]
    assert desk.json("doctor")["ok"] is True


def test_the_doctor_finds_a_dead_worker_and_jobs_without_a_worker(desk: Desk) -> None:
    async def die(world: World) -> None:
        host, boot, _, started = Runtime().identity()
        world.worker = Owner("gone", host, boot, GONE_PID, started)
        await world.add()
        await world.add()
        await world.claim()

    desk.do(die)
    found = desk.json("doctor", code=1)
    wrong = {one["check"]: one["text"] for one in found["findings"] if one["level"] == "WRONG"}
    assert set(wrong) == {"leases", "jobs"}
    assert "still holding 1 job" in wrong["leases"]
    assert all(one["fix"] for one in found["findings"] if one["level"] != "ok")
    assert "to fix it: start a worker" in desk.run("doctor", code=1).stdout


def test_the_doctor_changes_nothing(desk: Desk) -> None:
    desk.add()
    before = desk.json("audit", "--after", "0")
    desk.run("doctor", code=1)
    assert desk.json("audit", "--after", "0") == before


def test_the_doctor_finds_a_torn_file(desk: Desk, tmp_path: Path) -> None:
    for _ in range(20):
        desk.add("x" * 1000)
    path = tmp_path / "agents.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 8192] = b"\xa5" * 8192
    path.write_bytes(content)
    found = desk.json("doctor", code=1)
    (wrong,) = [one for one in found["findings"] if one["level"] == "WRONG"]
    assert wrong["check"] in ("file", "store")
    assert wrong["fix"]


@pytest.mark.parametrize("words", [["jobs", "list"], ["doctor"], ["migrate"], ["pools", "list"]])
def test_a_store_in_memory_is_not_taken_for_an_empty_one(words: list[str]) -> None:
    error = run(*words, "--store", "memory://", code=2).stderr
    assert "is in the memory of the process that uses it" in error
    assert error.count("\n") == 1


def test_the_version_is_printed() -> None:
    assert run("version").stdout.startswith("poolhand  ")
    assert set(json.loads(run("version", "--json").stdout)) == {"poolhand", "python", "system"}


@pytest.mark.parametrize(
    "words",
    [["--help"], ["jobs", "--help"], ["dead", "-h"], ["pools", "-h"]],
    ids=["poolhand", "jobs", "dead", "pools"],
)
def test_help_names_every_command_in_one_line_each(words: list[str]) -> None:
    listed = commands_below(run(*words).stdout)
    assert listed
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_the_guide_shows_every_command_and_setting() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text(
        encoding="utf-8"
    )
    groups = ("jobs", "dead", "pools")
    listed = [[name] for name in commands_of() if name not in groups]
    listed += [[group, name] for group in groups for name in commands_of(group)]
    assert [words for words in listed if f"poolhand {' '.join(words)}" not in guide] == []
    general = [one for one in SETTINGS if one not in FARM]
    assert [one.name for one in general if f"| {one.name} | `{one.flag}" not in guide] == []
    assert [one.variable for one in general if f"`{one.variable}`" not in guide] == []


def test_the_guide_of_the_farm_shows_every_setting_with_its_limits_and_default() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "reference" / "farm.md").read_text(
        encoding="utf-8"
    )
    rows = [
        f"| `{one.variables[-1]}` | {f'`{one.flag}`' if one.flag else ''} "
        f"| {one.default or 'not set'} | {one.kind.allowed} |"
        for one in FARM
    ]
    assert [row for row in rows if row not in guide] == []


def test_a_farm_has_a_flag_for_every_setting() -> None:
    help = run("work", "--help").stdout
    flags = [one.flag for one in SETTINGS if one.flag and one.name not in ("store", "app")]
    assert [flag for flag in ("--profile", *flags) if f"{flag} " not in help] == []


def commands_of(*group: str) -> list[str]:
    return [line.split()[0] for line in commands_below(run(*group, "--help").stdout)]


def commands_below(help: str) -> list[str]:
    """Return the lines of a help text that name commands."""
    return help.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ["jobs", "lsit"],
        ["jobs", "list", "--status", "odd"],
        ["jobs", "list", "--limit", "0"],
        ["jobs", "list", "--nonsense"],
        ["jobs", "list", "--after", "9" * 26],
        ["jobs", "show"],
        ["audit", "--after", "-1"],
        ["audit", "--after", "9" * 26],
        ["dead", "list", "--after", str(2**63)],
    ],
    ids=" ".join,
)
def test_a_usage_error_points_to_the_help(words: list[str]) -> None:
    result = run(*words, code=2)
    assert result.stdout == ""
    assert "--help" in result.stderr


# As a process


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **variables},
    )


def in_terminal(*words: str) -> str:
    """Run a command on a terminal; return its output."""
    parent, child = pty.openpty()
    variables = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
    with subprocess.Popen([*COMMAND, *words], stdout=child, stderr=child, env=variables) as process:
        os.close(child)
        try:
            written = b"".join(iter(partial(_read, parent), b""))
            process.wait(SECONDS)
        finally:
            process.kill()
    os.close(parent)
    return written.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        # Linux's error for a terminal whose other end is closed.
        return b""


@pytest.mark.slow
def test_a_process_ends_with_the_code_of_its_command(desk: Desk) -> None:
    id = desk.add("fetch")
    listed = command("jobs", "list", "--store", desk.url)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert id in listed.stdout
    assert command("jobs", "show", "nothing", "--store", desk.url).returncode == 3
    assert command("jobs", "list").returncode == 2
    assert command("jobs", "list", "--store", "sqlite:///typo.db").returncode == 5


@pytest.mark.slow
def test_a_terminal_gets_a_table_without_control_sequences_of_jobs(desk: Desk) -> None:
    id = desk.dead(HOSTILE, key="[red]k[/red]")
    written = in_terminal("dead", "list", "--store", desk.url)
    assert id in written
    assert "─" in written
    assert "[red]k[/red]" in written
    assert "\\x1b[31m[red]x\\x07" in written
    assert "\x07" not in written
    assert "\x1b[31m[red]" not in written


@pytest.mark.slow
def test_a_retry_of_many_shows_a_bar_on_a_terminal(desk: Desk) -> None:
    async def kill(world: World) -> None:
        for _ in range(150):
            await world.dead()

    desk.do(kill)
    written = in_terminal("dead", "retry", "--all", "--store", desk.url)
    assert "150/150" in written
    assert "150 retried, 0 not" in written


@pytest.mark.slow
def test_an_ascii_output_gets_escaped_characters(desk: Desk) -> None:
    desk.add("größe")
    listed = command("jobs", "list", "--store", desk.url, PYTHONIOENCODING="ascii")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "gr\\xf6\\xdfe" in listed.stdout


@pytest.mark.slow
def test_a_closed_pipe_causes_no_traceback(desk: Desk) -> None:
    for _ in range(50):
        desk.add()
    pipe = subprocess.PIPE
    words = ["jobs", "list", "--store", desk.url]
    with subprocess.Popen([*COMMAND, *words], stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        try:
            assert b"Traceback" not in process.stderr.read()
            process.wait(SECONDS)
        finally:
            process.kill()


@pytest.mark.slow
def test_importing_poolhand_brings_no_command_line() -> None:
    code = "import sys, poolhand; print(*({'typer', 'rich'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert done.stdout.strip() == ""
