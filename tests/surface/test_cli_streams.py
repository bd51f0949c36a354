"""Commands with unusable output or input: one line of error, and the right exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.surface.test_cli import Desk, run

pytestmark = pytest.mark.slow

SECONDS = 50
COMMAND = [sys.executable, "-W", "error", "-m", "poolhand"]
NOTHING = "<&- >&- 2>&-"
# Each takes a new interpreter; one of each kind is enough in `make test`.
in_full = partial(pytest.param, marks=pytest.mark.full)
FULL = "poolhand: the output could not be written: No space left on device\n"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(f"sqlite:///{tmp_path}/agents.db")
    run("migrate", "--store", desk.url)
    return desk


def sent(streams: str, *words: str | bytes, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose streams are redirected by a shell."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", *COMMAND, *words],
        capture_output=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize(
    "unbuffered",
    [pytest.param("", id="buffered"), pytest.param("1", id="unbuffered", marks=pytest.mark.full)],
)
@pytest.mark.parametrize(
    ("streams", "words", "code", "told"),
    [
        pytest.param(">&-", ["jobs", "list"], 0, "no such jobs\n", id="no output"),
        pytest.param(">/dev/full", ["jobs", "list"], 1, f"no such jobs\n{FULL}", id="full"),
        in_full(">/dev/full", ["jobs", "list", "--json"], 1, FULL, id="full of json"),
        in_full(">/dev/full", ["--help"], 1, FULL, id="full of help"),
        pytest.param(">/dev/full", ["pools", "resize", "zzz"], 2, None, id="full and wrong"),
        in_full("2>&-", ["jobs", "show", "nothing"], 3, "", id="nobody to tell"),
        pytest.param("2>/dev/full", ["jobs", "show", "nothing"], 3, "", id="no room to tell"),
        in_full("2>/dev/full", ["jobs", "lsit"], 2, "", id="no room to tell of a wrong call"),
        pytest.param(NOTHING, ["jobs", "show", "nothing"], 3, "", id="nothing at all"),
        in_full(NOTHING, ["jobs", "list"], 0, "", id="nothing at all and fine"),
    ],
)
def test_a_stream_that_is_closed_or_full_leaves_the_code_right(
    desk: Desk, streams: str, words: list[str], code: int, told: str | None, unbuffered: str
) -> None:
    place = () if words == ["--help"] or "lsit" in words else ("--store", desk.url)
    done = sent(streams, *words, *place, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stdout) == (code, b"")
    if told is not None:
        assert done.stderr.decode() == told


@pytest.mark.parametrize("streams", [">/dev/full", "2>/dev/full"], ids=["output", "errors"])
def test_an_action_completes_even_when_its_output_cannot_be_written(
    desk: Desk, streams: str
) -> None:
    for _ in range(3):
        desk.dead()
    done = sent(streams, "dead", "retry", "--all", "--store", desk.url)
    assert done.returncode == (1 if streams == ">/dev/full" else 0)
    assert desk.json("dead", "list")["jobs"] == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["jobs", "show", b"\xff"], id="show"),
        in_full(["jobs", "cancel", b"\xff"], id="cancel"),
        in_full(["dead", "retry", b"\xff"], id="dead retry"),
        in_full(["jobs", "list", "--pool", b"\xff"], id="pool"),
        in_full(["jobs", "list", "--key", b"\xff"], id="key"),
        in_full(["dead", "list", "--tenant", b"\xff"], id="tenant"),
        in_full(["jobs", "cancel", "x", "--by", b"\xff"], id="by"),
        pytest.param(["migrate", b"--store=sqlite:///\xff.db"], id="store"),
    ],
)
def test_an_argument_that_is_not_utf_8_is_a_wrong_call(
    desk: Desk, tmp_path: Path, words: list[str | bytes]
) -> None:
    before = sorted(tmp_path.iterdir())
    place = () if "migrate" in words else ("--store", desk.url)
    done = sent("", *words, *place)
    assert (done.returncode, done.stdout) == (2, b"")
    shown = r"--store=sqlite:///\udcff.db" if "migrate" in words else r"\udcff"
    assert (
        done.stderr.decode() == f"poolhand: argument '{shown}' is not allowed; it must be UTF-8\n"
    )
    assert sorted(tmp_path.iterdir()) == before
