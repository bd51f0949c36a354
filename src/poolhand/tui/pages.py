"""Modal pages over the view (a text, a question), the status line and the key line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from poolhand.rules.values.escape import safe

HELP = (
    "t  1 2 3   next view; farm, jobs, pools",
    "tab        next table of the view",
    "enter      open what is selected: a job, the jobs of a pool, a worker",
    "escape     back; all jobs again",
    "",
    "+ -        minimum of workers of the selected farm",
    "] [        maximum of workers",
    "s          snapshot of the selected worker or farm: what ran lately",
    "x          drain the selected farm: it ends when nothing runs",
    "",
    "/          search jobs by a part of the id or of the task's name",
    "f          jobs of the next state: waiting, running, ended, ...",
    "o          jobs of the next pool only",
    "r          run the selected dead job again",
    "c          cancel the selected job",
    "p          pause or resume the selected pool, or that of the job",
    "",
    "q          quit; a farm of this terminal is stopped gracefully,",
    "           q again stops it at once",
)
Keys = Mapping[str, str]
LAST = {"?": "help", "q": "quit"}
KEYS: Mapping[str, Keys] = {
    "workers": {
        "t": "view",
        "tab": "table",
        "+ -": "min",
        "] [": "max",
        "s": "snapshot",
        "x": "drain",
        "/": "search",
        "enter": "open",
    },
    "jobs": {
        "t": "view",
        "/": "search",
        "f": "state",
        "o": "pool",
        "r": "retry",
        "c": "cancel",
        "p": "pause",
        "enter": "open",
    },
    "pools": {"t": "view", "enter": "jobs of it", "p": "pause or resume", "/": "search"},
    "job": {"escape": "back", "r": "retry", "c": "cancel", "p": "pause its pool"},
}
GAP = 2
SAID_FOR = 20  # refreshes for which the result of an action is shown


class TextPage(ModalScreen[None]):
    """A scrollable text; a key closes it."""

    DEFAULT_CSS: ClassVar[str] = """
    TextPage { align: center middle; }
    TextPage > VerticalScroll { width: auto; max-width: 96%; height: auto; max-height: 96%;
        border: round $primary; border-title-style: bold; padding: 0 1; background: $background;
        scrollbar-size-vertical: 1; }
    TextPage Static { width: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "back")
    ]

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._text = Text("\n".join(lines))

    def compose(self) -> ComposeResult:
        with VerticalScroll() as page:
            page.border_title = self._title
            page.border_subtitle = "escape: back"
            yield Static(self._text)


class Question(ModalScreen[bool]):
    """A question; only `y` means yes."""

    DEFAULT_CSS: ClassVar[str] = """
    Question { align: center middle; }
    Question > Vertical { width: auto; max-width: 90%; height: auto; border: round $warning;
        padding: 0 2; background: $background; }
    Question Static { width: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._text = Text.assemble(
            question, "\n\n", ("y", "bold"), ": yes   ", ("n", "bold"), ": no"
        )

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._text)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class StatusLine(Static):
    """The result of the last action, in one line, or up to three."""

    DEFAULT_CSS: ClassVar[str] = """
    StatusLine { height: auto; min-height: 1; max-height: 3; padding: 0 1; }
    StatusLine.hint { text-wrap: nowrap; text-overflow: ellipsis; }
    """

    said = hinted = ""
    looks = 0

    def say(self, text: str) -> None:
        """Show a message for a while."""
        self.said, self.looks = safe(text), 0
        self.set_class(False, "hint")
        self.update(Text(self.said, "bold"))

    def hint(self, text: str) -> None:
        """Show a hint while there is no message; called at every refresh."""
        self.looks += 1
        if self.said and self.looks <= SAID_FOR:
            return
        if self.said or text != self.hinted:
            self.said, self.hinted = "", text
            self.set_class(True, "hint")
            self.update(Text(text, "yellow"))


class KeyLine(Static):
    """One line with the keys most useful in the current view; other keys work, too."""

    DEFAULT_CSS: ClassVar[str] = "KeyLine { height: 1; padding: 0 1; text-wrap: nowrap; }"

    def __init__(self, view: str = "workers") -> None:
        super().__init__()
        self._view = view

    def show(self, view: str) -> None:
        """Show the keys of a view."""
        self._view = view
        self.update(key_line(KEYS[view], self.size.width - 2))

    def on_resize(self) -> None:
        self.show(self._view)


def key_line(keys: Keys, width: int) -> Text:
    """Return as many keys as fit into a width, always with those for help and quit."""
    room = width - sum(len(key) + 1 + len(does) + GAP for key, does in LAST.items()) + GAP
    line = Text()
    for key, does in keys.items():
        room -= len(key) + 1 + len(does) + GAP
        if room < 0:
            break
        line.append(key, "bold").append(f" {does}{' ' * GAP}", "dim")
    for key, does in LAST.items():
        line.append(key, "bold").append(f" {does}{' ' * GAP}", "dim")
    line.rstrip()
    return line
