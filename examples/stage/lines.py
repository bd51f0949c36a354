"""Progress as plain lines, for pipes and build logs."""

from __future__ import annotations

import signal
from types import TracebackType
from typing import Self

from stage.printable import printable
from stage.state import State


def say(text: str) -> None:
    """Print a line; when the reader is gone, end quietly, as other commands do."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        if not hasattr(signal, "SIGPIPE"):
            raise
        # Not from the start: a broken pipe to a dead child would end the program, too.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.raise_signal(signal.SIGPIPE)


class Lines:
    """Prints one line now and then, after the headlines since the last one."""

    interval = 1.0

    def __init__(self, state: State) -> None:
        self._state = state

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._headlines()

    def paint(self) -> None:
        self._headlines()
        state = self._state
        line = f"{state.newsroom.elapsed:6.1f} s  {state.progress()}"
        if not state.draining and state.pool is not None:
            now = state.pool
            paused = " (PAUSED)" if now.paused else ""
            line += (
                f"; {now.running} running, {now.queued} queued, {now.blocked} blocked,"
                f" {now.scheduled} scheduled{paused}; {state.health()}"
            )
        say(line)

    def _headlines(self) -> None:
        headlines = self._state.newsroom.headlines
        while headlines:
            news = headlines.popleft()
            say(f"{news.at:6.1f} s  * {printable(f'{news.tenant} {news.text}'.strip())}")
