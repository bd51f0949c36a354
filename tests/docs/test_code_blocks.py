"""Every Python block of README.md and docs/ runs as it stands.

A block fenced with ```python is a script: it runs in a new process, in an empty folder, and any
warning is an error. Then it runs once more where the first run has left its files and its database,
as it does with those who try it twice. A block below the line `<!-- continues -->` is added to the
block before it. One that reads DATABASE_URL finds the URL of a PostgreSQL database there, empty at
first. Each process is a new interpreter in `make test-full`; in `make test` most are forked from
one that has imported poolhand, which takes a fraction of the time.
Other blocks (console, text) are not run. Line numbers in a traceback are those of the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from tests import warm

REPOSITORY = Path(__file__).parents[2]
FENCE = re.compile(r"(?P<indent>\s*)(?P<marks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)")
CONTINUES = "<!-- continues -->"
SECONDS = 50.0


@dataclass(frozen=True)
class Script:
    """A block with its continuations; `line` is the line of its first fence."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    continues: bool
    lines: list[str]


def blocks(page: str, text: str) -> Iterator[Block]:
    lines = iter(enumerate(text.splitlines(), start=1))
    before = ""
    for number, line in lines:
        if fence := FENCE.match(line):
            inside = []
            for _, inner in lines:
                if inner.strip() == fence["marks"]:
                    break
                inside.append(inner.removeprefix(fence["indent"]))
            else:
                raise ValueError(f"{page}:{number}: this block is never closed")
            yield Block(number, fence["language"], before == CONTINUES, inside)
        before = line.strip() or before


def scripts(page: str, text: str) -> list[Script]:
    found: list[Script] = []
    for block in blocks(page, text):
        if block.language != "python":
            continue
        code = "\n".join(block.lines) + "\n"
        if not block.continues:
            found.append(Script(page, block.line, "\n" * block.line + code))
            continue
        if not found:
            raise ValueError(f"{page}:{block.line}: there is no block before it to continue")
        first = found.pop()
        gap = "\n" * (block.line - first.text.count("\n"))
        found.append(Script(page, first.line, first.text + gap + code))
    return found


def run(
    script: Script, folder: Path, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run it as the only file beside a working folder, which is empty the first time."""
    path, working = _laid_out(script, folder)
    return subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=working,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def run_warm(
    script: Script, folder: Path, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run it as `run` does; in `make test`, in a process that has imported poolhand."""
    path, working = _laid_out(script, folder)
    environment = {**os.environ, **variables}
    return warm.run(["-W", "error", str(path)], cwd=working, env=environment, timeout=SECONDS)


def _laid_out(script: Script, folder: Path) -> tuple[Path, Path]:
    working = folder / "empty"
    working.mkdir(exist_ok=True)
    path = folder / f"{Path(script.page).stem}_line_{script.line}.py"
    path.write_text(script.text, encoding="utf-8")
    return path, working


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def all_scripts(root: Path = REPOSITORY) -> list[Script]:
    return [
        script
        for page in pages(root)
        if page.exists()
        for script in scripts(page.relative_to(root).as_posix(), page.read_text(encoding="utf-8"))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("script", all_scripts(), ids=str)
def test_the_block_runs(script: Script, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    # Readers begin with the README: its blocks must import everything themselves.
    play = run if script.page == "README.md" else run_warm
    server = {"DATABASE_URL": "database"} if "DATABASE_URL" in script.text else {}
    variables = {name: request.getfixturevalue(fixture) for name, fixture in server.items()}
    done = play(script, tmp_path, variables)
    assert done.returncode == 0, f"{script} failed:\n{done.stdout}{done.stderr}"
    if not variables and not any((tmp_path / "empty").rglob("*")):
        return  # It has left no files: a second run would be the same.
    done = play(script, tmp_path, variables)
    assert done.returncode == 0, f"{script} failed the second time:\n{done.stdout}{done.stderr}"


def test_the_readme_shows_code() -> None:
    assert [script for script in all_scripts() if script.page == "README.md"]


def test_every_guide_shows_code() -> None:
    guides = (REPOSITORY / "docs" / "howto").glob("*.md")
    texts = {page.name: page.read_text(encoding="utf-8") for page in guides}
    shown = {
        name
        for name, text in texts.items()
        if {"python", "console"} & {block.language for block in blocks(name, text)}
    }
    assert set(texts) == shown


# The collector itself

PAGE = """\
# Title

```console
$ make demo
```

```python
x = 1
```

Text.

<!-- continues -->

```python
y = x + 1
```

- in a list:

  ~~~python
  if True:
      z = 3
  ~~~

````text
```python
not code
```
````
"""


def test_blocks_are_found_with_their_lines() -> None:
    first, second = scripts("page.md", PAGE)
    assert (str(first), str(second)) == ("page.md:7", "page.md:21")
    assert first.text.splitlines()[7:] == ["x = 1", *[""] * 7, "y = x + 1"]
    assert second.text.splitlines()[21:] == ["if True:", "    z = 3"]


def test_an_unclosed_block_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"page\.md:2: this block is never closed"):
        scripts("page.md", "\n```python\nx = 1\n")


def test_a_continuation_without_a_block_before_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"page\.md:2: there is no block before it"):
        scripts("page.md", f"{CONTINUES}\n```python\nx = 1\n```\n")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import warnings; warnings.warn('old')", "UserWarning: old"),
        ("from pathlib import Path; assert list(Path().iterdir())", "AssertionError"),
    ],
)
def test_a_failing_block_is_reported_with_its_line_on_the_page(
    tmp_path: Path, code: str, said: str
) -> None:
    (script,) = scripts("page.md", f"# Title\n\n```python\n{code}\n```\n")
    for play in (run, run_warm):
        done = play(script, tmp_path)
        assert done.returncode != 0
        assert "line 4, in <module>" in done.stderr
        assert said in done.stderr


def test_a_continued_block_contains_the_one_before(tmp_path: Path) -> None:
    first, _ = scripts("page.md", PAGE)
    assert run(first, tmp_path).returncode == 0


def test_a_block_that_fails_is_found_in_a_folder_of_docs(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "howto" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("# Title\n\n```python\nassert 1 + 1 == 3\n```\n", encoding="utf-8")
    (script,) = all_scripts(tmp_path)
    assert str(script) == "docs/howto/page.md:3"
    assert "AssertionError" in run(script, tmp_path).stderr


def test_a_block_can_have_processes_that_import_it(tmp_path: Path) -> None:
    code = """\
from multiprocessing import get_context

def double(n):
    return 2 * n

if __name__ == "__main__":
    with get_context("spawn").Pool(1) as processes:
        assert processes.map(double, [1, 2]) == [2, 4]
"""
    (script,) = scripts("docs/how-to.md", f"```python\n{code}```\n")
    assert run(script, tmp_path).returncode == 0
    assert run_warm(script, tmp_path).returncode == 0
