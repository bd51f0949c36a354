"""Texts that users meet are in plain English: none of them has a banned phrase.

Checked are the strings of the package, which become errors, log lines, help and answers, and the
pages. A docstring is checked where it is the help of a command.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, REPOSITORY, Module, expect_none, read_package

BANNED = re.compile(
    "|".join(
        (
            r"\b(?:nobody|somebody|whoever|whomever|whosoever)\b",
            r"\bmend(?:s|ed|ing)?\b",
            r"\b(?:is|are|was|were) told\b",
            r"\btells? (?:of|how|what|who|nobody)\b",
            r"\b(?:heirs?|farewells?|errands?|luggage)\b",
            r"\bby hand of\b",
            r"\b(?:stands?|stood) still\b",
            r"\bcomes? too late\b",
            r"\bno dead letter\b",
            r"\bbeside the output\b",
            r"\bbegins? so\b",
            r"\bgo(?:es)? on behind\b",
            r"\bshall\b",
            r"\bthough there be\b",
            r"\bwho (?:gets|has|asks|comes|takes) none\b",
        )
    ),
    re.IGNORECASE,
)
# Words of pages that describe the present; the changelog also describes the past.
OF_PAGES = re.compile(r"\b(?:any|every)body\b|\b(?:go|goes|going) on\b", re.IGNORECASE)
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md")
COMMANDS = "cli.commands"


def text_faults(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        hidden = set() if module.name.startswith(COMMANDS) else set(docstrings(module.tree))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if node in hidden or is_key(node.value):
                    continue
                if (phrase := BANNED.search(node.value)) is not None:
                    yield f"{module.at(node)}: {phrase.group()!r}"


def is_key(text: str) -> bool:
    """Return whether a string is a name or a key, which may be stored and keeps its word."""
    return " " not in text and not text.isalpha()


def docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the strings that are statements of their own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def page_faults(root: Path) -> Iterator[str]:
    for path in sorted(path for pattern in PAGES for path in root.glob(pattern)):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            phrase = BANNED.search(line)
            if phrase is None and path.name != "CHANGELOG.md":
                phrase = OF_PAGES.search(line)
            if phrase is not None:
                yield f"{path}:{number}: {phrase.group()!r}"


def test_texts_of_the_package_have_no_banned_phrase() -> None:
    expect_none(text_faults(read_package(PACKAGE)))


def test_pages_have_no_banned_phrase() -> None:
    assert (REPOSITORY / "docs").is_dir()
    expect_none(page_faults(REPOSITORY))


@pytest.mark.parametrize(
    "text",
    [
        'raise UsageError(f"{name} is asked for, which nobody can obey")',
        'warn("free some space: nothing is taken until that is mended")',
        'def why() -> str:\n    return f"{count} wait, " + "somebody was first"',
        'typer.Option("--check", help="Change nothing, only tell how it is.")',
        'ControlResult(id, False, "not_dead", "it is no dead letter any more")',
    ],
)
def test_a_banned_phrase_in_a_text_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "module.py").write_text(f'"""Who is told what."""\n{text}\n')
    (fault,) = text_faults(read_package(tmp_path))
    assert fault.startswith(f"{tmp_path}/module.py:")


def test_keys_and_docstrings_are_not_texts(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text('"""Nobody is told."""\nMARKER = "farewell/"\n')
    expect_none(text_faults(read_package(tmp_path)))


def test_the_help_of_a_command_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "cli" / "commands").mkdir(parents=True)
    page = tmp_path / "cli" / "commands" / "top.py"
    page.write_text('def top() -> None:\n    """Show jobs that nobody runs."""\n')
    assert list(text_faults(read_package(tmp_path))) == [f"{page}:2: 'nobody'"]


def test_a_banned_phrase_in_a_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "jobs.md").write_text(
        "# Jobs\n\nA worker that stands still is replaced.\n\nThe jobs go on.\n"
    )
    assert list(page_faults(tmp_path)) == [
        f"{tmp_path}/docs/jobs.md:3: 'stands still'",
        f"{tmp_path}/docs/jobs.md:5: 'go on'",
    ]
