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

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from types import MappingProxyType

import pytest

from tests.extent import FULL

REPOSITORY = Path(__file__).parents[2]
FENCE = re.compile(r"(?P<indent>\s*)(?P<marks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)")
CONTINUES = "<!-- continues -->"
WARM = Path(__file__).parent / "warm.py"
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


def _laid_out(script: Script, folder: Path) -> tuple[Path, Path]:
    working = folder / "empty"
    working.mkdir(exist_ok=True)
    path = folder / f"{Path(script.page).stem}_line_{script.line}.py"
    path.write_text(script.text, encoding="utf-8")
    return path, working


class Warm:
    """The process that forks a child for each script; see `warm.py`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(WARM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def run(
        self, script: Script, folder: Path, variables: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.CompletedProcess[str]:
        """Run a script as `run` does."""
        path, working = _laid_out(script, folder)
        out, err = folder / "out", folder / "err"
        request = {
            "path": str(path),
            "folder": str(working),
            "variables": {**os.environ, **variables},
            "out": str(out),
            "err": str(err),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        too_long = Timer(SECONDS, _kill, [self._number()])
        too_long.start()
        code = self._number()
        too_long.cancel()
        texts = [one.read_text(encoding="utf-8") for one in (out, err)]
        return subprocess.CompletedProcess(str(path), code, *texts)

    def _number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    made = Warm()
    yield made
    made.close()


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
def test_the_block_runs(
    script: Script, tmp_path: Path, warm: Warm, request: pytest.FixtureRequest
) -> None:
    # Readers begin with the README: its blocks must import everything themselves.
    play = run if FULL or script.page == "README.md" else warm.run
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


def test_an_open_block_is_a_fault() -> None:
    with pytest.raises(ValueError, match=r"page\.md:2: this block is never closed"):
        scripts("page.md", "\n```python\nx = 1\n")


def test_a_continuation_of_nothing_is_a_fault() -> None:
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
def test_a_block_that_fails_is_told_by_the_line_of_its_page(
    tmp_path: Path, warm: Warm, code: str, said: str
) -> None:
    (script,) = scripts("page.md", f"# Title\n\n```python\n{code}\n```\n")
    for play in (run, warm.run):
        done = play(script, tmp_path)
        assert done.returncode != 0
        assert "line 4, in <module>" in done.stderr
        assert said in done.stderr


def test_a_continued_block_knows_the_one_before(tmp_path: Path) -> None:
    first, _ = scripts("page.md", PAGE)
    assert run(first, tmp_path).returncode == 0


def test_a_block_that_fails_is_found_in_a_folder_of_docs(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "howto" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("# Title\n\n```python\nassert 1 + 1 == 3\n```\n", encoding="utf-8")
    (script,) = all_scripts(tmp_path)
    assert str(script) == "docs/howto/page.md:3"
    assert "AssertionError" in run(script, tmp_path).stderr


def test_a_block_can_have_processes_that_import_it(tmp_path: Path, warm: Warm) -> None:
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
    assert warm.run(script, tmp_path).returncode == 0
