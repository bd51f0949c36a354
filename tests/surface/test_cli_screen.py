"""The output of commands: text of others as plain text, and JSON that is only JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from poolhand.cli import screen
from poolhand.cli.commands import jobs
from poolhand.cli.screen import short_name
from poolhand.operate.bulk import Progress
from poolhand.operate.format import text_of

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b31m",
    "two\nlines",
    "back\b\bspace\r",
    "\u202egnirts",
    "\u2028line",
    "\x7f",
    "[red]markup[/red]",
]


class Terminal(StringIO):
    """An output that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def terminal(columns: int) -> Iterator[Terminal]:
    """Replace the output by a terminal of that width, without colours."""
    made = Terminal()
    with redirect_stdout(made), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("NO_COLOR", "1")
        yield made


@given(st.text())
def test_no_text_can_send_control_sequences_to_a_terminal(text: str) -> None:
    safe = screen.safe(text)
    assert safe.isprintable() or not safe
    assert not text.isprintable() or safe == text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_spelled_out_in_a_pipe(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    screen.table(("name",), [(text,)])
    head, line = capsys.readouterr().out.splitlines()
    assert (head, line) == ("NAME", screen.safe(text))
    assert line.isprintable()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_spelled_out_on_a_terminal(text: str) -> None:
    with terminal(100) as made:
        screen.table(("id", "name"), [("j-1", text)])
    *_, row, end = made.getvalue().split("\n")
    assert (row.split()[0], end) == ("j-1", "")
    assert screen.safe(text) in row
    assert row.isprintable()


@given(st.dictionaries(st.text(), st.text() | st.integers(-(2**63), 2**63)))
def test_json_is_complete_and_contains_no_control_sequences(value: dict[str, str | int]) -> None:
    # A lone surrogate is not text that a store could return.
    plain = {k: v for k, v in value.items() if _encodes(k) and (isinstance(v, int) or _encodes(v))}
    out = StringIO()
    with redirect_stdout(out):
        screen.as_json(plain)
    assert json.loads(out.getvalue()) == plain
    assert out.getvalue().replace("\n", "").isprintable()


def _encodes(text: str) -> bool:
    return text.encode("utf-8", "replace").decode() == text


def test_columns_are_aligned_and_none_is_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen.table(("id", "key", "note"), [("j-1", "", "a note"), ("j-10", None, "")])
    assert capsys.readouterr().out.splitlines() == [
        "ID    KEY  NOTE",
        "j-1   -    a note",
        "j-10  -    -",
    ]


def test_a_narrow_terminal_never_cuts_the_first_column() -> None:
    id = "19a8b0c1d2e3f4a5b6c7d8e00001"
    with terminal(60) as made:
        screen.table(("id", "pool", "note"), [(id, "chat", "words " * 30)])
    assert id in made.getvalue()
    assert made.getvalue().count("words") == 30


@pytest.mark.parametrize("columns", range(70, 140))
def test_no_width_of_a_terminal_loses_a_word(columns: int) -> None:
    note = "poolhand.errors.GiveUp: no source on wasps"
    rows = [
        ("19a8b0c1d2e3f4a5b6c7d8e00001", "research", "agents.fetch", "failed", "acme", note),
        ("19a8b0c1d2e3f4a5b6c7d8e00002", "chat", "agents.answer", "scheduled", "", "a b " * 20),
    ]
    with terminal(columns) as made:
        screen.table(("id", "pool", "name", "status", "key", "note"), rows, ("key", "name"))
    _, line, *lines = made.getvalue().splitlines()
    assert max(map(len, [line, *lines])) <= columns
    words = " ".join(lines).split()
    assert [word for word in note.split() if word not in words] == []
    assert (words.count("a"), words.count("b")) == (20, 20)


@pytest.mark.parametrize("columns", [10, 30])
def test_a_tiny_terminal_still_gets_output(columns: int) -> None:
    with terminal(columns) as made:
        screen.table(("id", "pool", "note"), [("j-1", "chat", "a note")])
        screen.table(("id",), [("j-1",)])
    assert "j-1" in made.getvalue()


def test_a_narrow_terminal_hides_optional_columns() -> None:
    row = ("j-1", "chat", "a key of some length", "a note")
    columns = ("id", "pool", "key", "note")
    with terminal(100) as wide:
        screen.table(columns, [row], ("key", "pool"))
    with terminal(38) as narrow:
        screen.table(columns, [row], ("key", "pool"))
    assert all(cell in wide.getvalue() for cell in row)
    assert "a key" not in narrow.getvalue()
    assert all(cell in narrow.getvalue() for cell in ("j-1", "chat", "a note"))


def test_a_terminal_shows_no_empty_columns_and_a_pipe_shows_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [("j-1", None, "a note"), ("j-2", "", "a note")]
    with terminal(100) as made:
        screen.table(("id", "session", "note"), rows)
    assert "session" not in made.getvalue()
    screen.table(("id", "session", "note"), rows)
    assert "SESSION" in capsys.readouterr().out


ID = "19a8b0c1d2e3f4a5b6c7d8e00001"


@pytest.mark.parametrize("columns", range(80, 200, 3))
@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("agents.fetch", "fetch"),
        ("myproject.agents.research.summarize", "summarize"),
        ("agents.main.<locals>.fetch_one_page", "fetch_one_page"),
        ("agents.a_function_with_a_very_long_name_indeed", "a_functio"),
    ],
)
def test_the_function_of_a_task_stays_on_a_terminal_of_80_columns(
    columns: int, name: str, left: str
) -> None:
    note = "poolhand.errors.GiveUp: no source on wasps"
    made_at = datetime(2030, 1, 1, 12, tzinfo=UTC)
    row = (ID, "research", name, "cancelled", 4, "acme", "s-1", "acme", made_at, note)
    with terminal(columns) as made:
        screen.table(jobs.COLUMNS, [row], jobs.SPARE)
    assert left in made.getvalue()
    assert f"{ID} " in made.getvalue()
    assert "cancelled" in made.getvalue()
    plain = re.sub(r"\x1b\[[\d;]*m", "", made.getvalue())
    assert max(map(len, plain.splitlines())) <= columns


@pytest.mark.parametrize(
    ("name", "room", "short"),
    [
        ("agents.answer", 13, "agents.answer"),
        ("agents.answer", 12, "…answer"),
        ("agents.answer", 6, "answer"),
        ("a.b.c.function", 12, "…c.function"),
        ("summarize_all_documents", 21, "summarize_…_documents"),
        ("", 4, ""),
        ("日本語.関数", 6, "…関数"),
    ],
)
def test_a_long_task_name_is_shortened_to_its_function(name: str, room: int, short: str) -> None:
    assert short_name(name, room) == short


@given(st.text(), st.integers(1, 40))
def test_a_short_name_fits(name: str, room: int) -> None:
    assert cell_len(short_name(name, room)) <= max(room, 2)


def test_a_first_column_wider_than_the_terminal_is_folded_not_cut() -> None:
    with terminal(40) as made:
        screen.table(("pool", "note"), [("x" * 100, "y" * 100)])
    assert made.getvalue().count("x") == 100
    assert made.getvalue().count("y") == 100


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (1.5, "1.500 s"),
        (datetime(2030, 1, 1, 12, tzinfo=UTC), "2030-01-01 12:00:00Z"),
        (datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))), "2030-01-01 10:00:00Z"),
        (7, "7"),
    ],
)
def test_values_are_formatted_for_reading(value: object, shown: str) -> None:
    assert text_of(value) == shown


def test_unknown_values_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    screen.facts([("id", "j-1"), ("session", None), ("attempts", 0)])
    assert capsys.readouterr().out == "id        j-1\nattempts  0\n"


def test_progress_in_a_pipe_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    moments = iter([0.0, 0.0, 0.0, 0.5, 1.2, 1.2])
    with screen.progress("retrying", lambda: next(moments)) as tell:
        for done in (100, 200, 300):
            tell(Progress(done, 1, 1000))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "retrying: 101/1000, 1 not done",
        "retrying: 301/1000, 1 not done",
    ]


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Terminal()
    monkeypatch.setattr("sys.stderr", made)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with screen.progress("retrying", lambda: 0.0) as tell:
        tell(Progress(250, 0, 250))
    assert "retrying" in made.getvalue()
    assert "250/250" in made.getvalue()
