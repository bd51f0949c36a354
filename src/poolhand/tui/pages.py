"""Pages that lie over the view for a while: a text to read, a question to answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from poolhand.operate.showing import safe

HELP = (
    "t        next view: workers, jobs, pools and troubles",
    "enter    open what is selected: a job, the jobs of a pool",
    "escape   back; all jobs again",
    "",
    "+ -      minimum of workers of the selected farm",
    "] [      maximum of workers",
    "s        snapshot of the selected worker or farm: what ran lately",
    "x        drain the selected farm: it ends when nothing runs",
    "",
    "/        search jobs by a part of the id or of the task's name",
    "f        jobs of the next state: waiting, running, ended, ...",
    "o        jobs of the next pool only",
    "r        run the selected dead job again",
    "c        cancel the selected job",
    "p        pause or resume the selected pool, or that of the job",
    "",
    "q        quit; a farm of this terminal is stopped gracefully,",
    "         q again stops it at once",
)
KEYS = {
    "workers": "t view  s snapshot  + - minimum  ] [ maximum  x drain  / search  ? help  q quit",
    "jobs": "t view  / search  f state  o pool  r retry  c cancel  p pause  ? help  q quit",
    "pools": "t view  enter jobs of it  p pause or resume  / search  ? help  q quit",
    "job": "escape back  r retry  c cancel  p pause its pool  ? help  q quit",
}


class Page(ModalScreen[None]):
    """Some lines to read and scroll; a key takes it away."""

    DEFAULT_CSS: ClassVar[str] = """
    Page { align: center middle; }
    Page > VerticalScroll { width: 96%; height: auto; max-height: 96%; border: round $primary;
        padding: 0 1; background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "back")
    ]

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self._text = Text("\n".join(lines))

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text)


class Question(ModalScreen[bool]):
    """A question; nothing but y is a yes."""

    DEFAULT_CSS: ClassVar[str] = """
    Question { align: center middle; }
    Question > Vertical { width: 70%; height: auto; border: round $warning; padding: 0 1;
        background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._text = Text(f"{question}\n\ny: yes   n: no")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._text)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class StatusLine(Static):
    """What came of the last act, in a line or, where it must be, three."""

    DEFAULT_CSS: ClassVar[str] = "StatusLine { height: auto; min-height: 1; max-height: 3; }"

    def say(self, text: str) -> None:
        """Tell something else."""
        self.update(Text(safe(text)))


class KeyLine(Static):
    """One line on the keys that are of use where they are shown; the others work as well."""

    DEFAULT_CSS: ClassVar[str] = "KeyLine { height: 1; color: $primary; text-wrap: nowrap; }"

    def show(self, view: str) -> None:
        """Tell the keys of a view."""
        self.update(Text(KEYS[view]))
