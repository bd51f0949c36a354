"""Every relative link leads to a file and a heading that exist; the index has every page.

A heading has the anchor that GitHub gives it. Web addresses are not visited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from poolhand import errors
from tests.docs.test_code_blocks import FENCE, REPOSITORY, pages

INDEX = "docs/README.md"
ERRORS = "docs/reference/errors.md"
OTHERS = ("CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md")
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]*)\)")
HEADING = re.compile(r"#{1,6} +(.*?)\s*#*$")
ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"></a>")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Return the numbered lines outside of fenced blocks."""
    closing = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if closing:
            closing = "" if line.strip() == closing else closing
        elif fence := FENCE.match(line):
            closing = fence["marks"]
        else:
            yield number, line


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text: str) -> set[str]:
    found: set[str] = set()
    for _, line in prose(text):
        found.update(ANCHOR.findall(line))
        if heading := HEADING.match(line):
            name, number = slug(heading[1]), 0
            while (one := f"{name}-{number}" if number else name) in found:
                number += 1
            found.add(one)
    return found


def links(text: str) -> Iterator[tuple[int, str]]:
    for number, line in prose(text):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if not re.match(r"[a-z]+:", target):
                yield number, target


def broken(root: Path, all_pages: list[Path]) -> list[str]:
    """Return a line for each link that leads nowhere."""
    faults = []
    for page in all_pages:
        for number, target in links(page.read_text(encoding="utf-8")):
            path, _, anchor = unquote(target).partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                faults.append(f"{page.relative_to(root)}:{number}: {target}: no such file")
            elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
                faults.append(f"{page.relative_to(root)}:{number}: {target}: no such heading")
    return faults


def without_index(root: Path) -> set[str]:
    """Return the pages under docs/ that the index does not link to."""
    index = root / INDEX
    linked = {target.partition("#")[0] for _, target in links(index.read_text(encoding="utf-8"))}
    known = {(index.parent / target).resolve() for target in linked if target} | {index.resolve()}
    return {
        page.relative_to(root).as_posix()
        for page in (root / "docs").rglob("*.md")
        if page.resolve() not in known
    }


def codes(kind: type[errors.PoolhandError] = errors.PoolhandError) -> set[str]:
    return {kind.code}.union(*(codes(one) for one in kind.__subclasses__()))


def test_every_link_target_exists() -> None:
    found = broken(REPOSITORY, [*pages(REPOSITORY), *(REPOSITORY / one for one in OTHERS)])
    assert found == [], "\n".join(found)


def test_every_page_is_in_the_index() -> None:
    assert without_index(REPOSITORY) == set()


def missing_codes(text: str) -> set[str]:
    """Return the error codes that have no anchor on a page."""
    return {code for code in codes() if code.lower() not in anchors(text)}


def test_every_error_code_has_an_anchor_with_what_to_do() -> None:
    assert missing_codes((REPOSITORY / ERRORS).read_text(encoding="utf-8")) == set()


def missing_classes(text: str) -> set[str]:
    """Return the public errors that the tree on a page does not draw with their codes."""
    return {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type)
        and issubclass(kind, errors.PoolhandError)
        and not re.search(rf"─ {name} +{kind.code} ", text)
        and kind is not errors.PoolhandError
    }


def test_every_public_error_is_drawn_in_the_reference() -> None:
    text = (REPOSITORY / ERRORS).read_text(encoding="utf-8")
    assert missing_classes(text) == set()
    assert missing_classes(text.replace("Corrupt ", "Damaged ")) == {"Corrupt"}


def test_every_error_that_reaches_a_user_is_public() -> None:
    """An error class of a module of its own is for that module alone: it has a public code."""
    public = {kind.code for kind in vars(errors).values() if hasattr(kind, "code")}
    assert codes() <= public


# The checker itself

PAGE = """\
# A title, with `code` & more

[there](other.md) [heading](other.md#two-words) [here](#a-title-with-code--more) [web](https://x.y)
[gone](gone.md) and [no heading](other.md#three) and [none here](#nothing)

`[not](a-link.md)`

```text
# not-a-heading
[not](a-link.md)
```
"""
OTHER = '# Two words\n\n## Two words\n\n<a id="own"></a>\n\n[a](page.md#not-a-heading)\n'


def test_broken_links_are_found_with_their_lines(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    page.write_text(PAGE, encoding="utf-8")
    other.write_text(OTHER, encoding="utf-8")
    assert broken(tmp_path, [page, other]) == [
        "page.md:4: gone.md: no such file",
        "page.md:4: other.md#three: no such heading",
        "page.md:4: #nothing: no such heading",
        "other.md:7: page.md#not-a-heading: no such heading",
    ]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("PH-POL-001", "ph-pol-001"),
        ("Submit and wait: `run` and `map`", "submit-and-wait-run-and-map"),
        ("6 · A pool in a file", "6--a-pool-in-a-file"),
        ("See [this](page.md)", "see-this"),
    ],
)
def test_a_heading_has_the_anchor_that_github_gives_it(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_equal_headings_are_numbered() -> None:
    assert anchors(OTHER) == {"two-words", "two-words-1", "own"}


def test_a_page_that_the_index_leaves_out_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "howto"
    folder.mkdir(parents=True)
    (tmp_path / INDEX).write_text("[one](howto/one.md#part)\n", encoding="utf-8")
    for name in ("one.md", "two.md"):
        (folder / name).write_text("# Part\n", encoding="utf-8")
    assert without_index(tmp_path) == {"docs/howto/two.md"}


def test_an_error_code_without_an_anchor_is_found() -> None:
    text = (REPOSITORY / ERRORS).read_text(encoding="utf-8")
    assert missing_codes(text.replace("### PH-STO-005", "### Corrupt")) == {"PH-STO-005"}
