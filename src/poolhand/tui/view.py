"""The live view, from outside: run it, end it. Textual is loaded when one is run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from poolhand.errors import UsageError
from poolhand.operate.actions import Operator

if TYPE_CHECKING:
    from textual.driver import Driver

    from poolhand.tui.farm_app import FarmApp

NOT_THERE = "the live view needs Textual; install it with: pip install 'poolhand[tui]'"
NO_TERMINAL = (
    "the live view needs a terminal to show itself on and to read keys from; "
    "`poolhand top --inline` writes one picture to anywhere"
)


class LiveView:
    """A view of farms, on this terminal and the event loop that is running; it ends with either.

    With a `farm_id` it shows that farm alone and ends with it. `on_quit(fast)` is called for `q`
    to stop the farm, with True when it is pressed again; without it `q` ends the view.
    """

    def __init__(
        self,
        operator: Operator,
        *,
        by: str,
        farm_id: str | None = None,
        on_quit: Callable[[bool], None] | None = None,
    ) -> None:
        check_terminal()
        self._operator = operator
        self._by = by
        self._farm_id = farm_id
        self._on_quit = on_quit
        self._app: FarmApp | None = None
        self._ended = False

    async def run(self) -> None:
        """Show the view until it ends."""
        from poolhand.tui.farm_app import FarmApp

        if self._ended:
            return
        self._app = FarmApp(
            self._operator,
            by=self._by,
            farm_id=self._farm_id,
            on_quit=self._on_quit,
            has_terminal=has_terminal,
            driver_class=_driver(),
        )
        loop = asyncio.get_running_loop()
        task_factory = loop.get_task_factory()
        try:
            await self._app.run_async()
        finally:
            # Textual starts tasks eagerly; a view that ends before it is mounted has not undone it.
            loop.set_task_factory(task_factory)

    def end(self) -> None:
        """End the view; one that has not begun yet never does."""
        self._ended = True
        if self._app is not None and self._app.is_running:
            self._app.exit()


def _driver() -> type[Driver] | None:
    if sys.platform == "win32":
        return None
    from poolhand.tui.driver import TerminalDriver

    return TerminalDriver


def check_terminal() -> None:
    """Refuse a view where it cannot be shown, before anything is begun for it."""
    try:
        import textual  # noqa: F401
    except ImportError as error:
        raise UsageError(NOT_THERE) from error
    if not has_terminal():
        raise UsageError(NO_TERMINAL)


def has_terminal() -> bool:
    """Tell whether there is a terminal, and it is still there."""
    # Textual draws on the stream for errors; the output may go elsewhere.
    return all(stream and stream.isatty() for stream in (sys.__stdin__, sys.__stderr__))
