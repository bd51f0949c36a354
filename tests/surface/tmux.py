"""A real terminal: a pane of tmux, on its own tmux server."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from tests.private_servers.programs import ServerMissing, find_programs
from tests.servers import do_without

SECONDS = 40.0


class Pane:
    """A program on a terminal, and its keyboard."""

    def __init__(self, program: Path, socket: Path) -> None:
        self._command = [str(program), "-f", "/dev/null", "-S", str(socket)]

    def tmux(self, *words: str) -> str:
        command = [*self._command, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return done.stdout

    def press(self, *keys: str) -> None:
        """Press keys by name; other words are typed."""
        subprocess.run([*self._command, "send-keys", *keys], timeout=20, check=True)

    @property
    def text(self) -> str:
        """What is on the screen."""
        return self.tmux("capture-pane", "-p")

    @property
    def is_alternate(self) -> bool:
        """Return whether a program uses the alternate screen."""
        return self.tmux("display-message", "-p", "#{alternate_on}").strip() == "1"

    def until(self, found: Callable[[], object], what: str) -> None:
        """Wait until the condition holds; each query of tmux takes a while."""
        end = monotonic() + SECONDS
        while not found():
            assert monotonic() < end, f"{what} never came:\n{self.text}"

    def sees(self, *texts: str) -> None:
        """Wait until all of this is on the screen."""
        self.until(lambda: all(text in self.text for text in texts), " or ".join(texts))


@contextmanager
def terminal(command: Sequence[str], columns: int = 120, rows: int = 40) -> Iterator[Pane]:
    """Run a command on a terminal; when it has ended, its exit code is on the screen."""
    program = find_tmux()
    line = f"{shlex.join(command)}; echo ended with $?; exec cat"
    # The folder of a test has too long a name for a socket.
    with TemporaryDirectory() as folder:
        pane = Pane(program, Path(folder) / "tmux")
        pane.tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), "sh", "-c", line)
        try:
            yield pane
        finally:
            pane.tmux("kill-server")


def find_tmux() -> Path:
    """Return the path of tmux; requesting it requires it."""
    folders = map(Path, os.environ.get("PATH", "").split(os.pathsep))
    try:
        return find_programs("tmux", ["tmux"], folders, "apt-get install tmux")["tmux"]
    except ServerMissing as missing:
        do_without(missing)
