"""Progress as plain lines, for pipes and build logs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from stage.state import State


class Lines:
    """Prints one line now and then."""

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
        pass

    def paint(self) -> None:
        state = self._state
        line = f"{state.ledger.elapsed:6.1f} s  {state.progress()}"
        if not state.draining:
            now = state.pool.snapshot()
            line += (
                f"; {now.active} running, {now.queued} queued, {now.blocked} blocked,"
                f" {now.scheduled} scheduled, {now.failed} failed"
            )
        print(line, flush=True)
