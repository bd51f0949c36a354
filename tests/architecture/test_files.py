"""The repository is self-contained: no file names the machine or network it was written on."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.architecture.source import REPOSITORY, expect_none

FOREIGN = {
    "a path of one machine": re.compile(r"(?<![\w./-])/(?:work|root|home|Users|opt|mnt|srv)/"),
    "a package registry": re.compile(
        r"\bp[y]pi[.]org|\bpythonhost[e]d[.]|\bnpmj[s][.]|--(?:extra-)?index-url|--(?:find)-links"
    ),
    "what lies beside the checkout": re.compile(
        r"(?<![\w/.])\.\./"
        r"(?!\.\.|[A-Z]+\.md|(?:src|docs|tests|bench|examples|start|howto|reference|explanation)/)\w"
    ),
}


def tracked(repository: Path) -> list[Path]:
    """What is committed or about to be: everything that .gitignore does not name."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (repository / name for name in sorted(set(listed.stdout.split("\0"))) if name)
    return [path for path in paths if path.is_file()]


def foreign_faults(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, start=1):
            for what, pattern in FOREIGN.items():
                if pattern.search(line):
                    yield f"{path}:{number}: names {what}: {line.strip()}"


def test_no_file_names_a_machine_or_a_registry() -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files belong to the project")
    expect_none(foreign_faults(tracked(REPOSITORY)))


# Assembled here, so that this file passes its own check.
@pytest.mark.parametrize(
    "text",
    [
        "cd /" + "work/main",
        'HOME = "/' + 'root/.cache"',
        "/" + "home/somebody/x",
        "see https://" + "pypi" + ".org/project/x",
        "pip install -" + "-index-url x",
        "see ." + "./notes/design.md",
    ],
)
def test_a_machine_or_registry_name_is_found(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"first\n{text}\n")
    (fault,) = foreign_faults([path])
    assert "page.md:2: names " in fault


def test_a_route_or_a_word_is_no_machine_path(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "at example.org/home/page, x../y, see ../docs/x.md, ../howto/x.md, /usr/bin/env\n"
    )
    assert not list(foreign_faults([path]))


def test_files_that_git_does_not_know_yet_are_checked(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("/ignored\n")
    (tmp_path / "ignored").touch()
    (tmp_path / "new").touch()
    assert [path.name for path in tracked(tmp_path)] == [".gitignore", "new"]
