"""The live view's interface: run and end it. Textual is imported only when a view runs."""

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
    "`poolhand top --inline` prints the state once, as text"
)


class LiveView:
    """A view of farms on this terminal and the running event loop; it ends with either.

    With a `farm_id` it shows only that farm and ends with it. `q` calls `on_quit(fast)` to stop the
    farm, with True when it is pressed again; without `on_quit`, `q` ends the view.
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
            # Textual sets an eager task factory; FarmApp resets it on mount, which may not happen.
            loop.set_task_factory(task_factory)

    def end(self) -> None:
        """End the view; if it has not started yet, it never does."""
        self._ended = True
        if self._app is not None and self._app.is_running:
            self._app.exit()


def _driver() -> type[Driver] | None:
    if sys.platform == "win32":
        return None
    from textual.drivers.linux_driver import LinuxDriver

    class TerminalDriver(LinuxDriver):
        """Writes only while the terminal exists.

        Textual's writer thread ends with the terminal. Later writes would fill its queue and then
        block the event loop, and everything else on it, for ever.
        """

        def write(self, data: str) -> None:
            if has_terminal():
                super().write(data)

    return TerminalDriver


def check_terminal() -> None:
    """Raise if Textual or a terminal is missing, before anything is started."""
    try:
        import textual  # noqa: F401
    except ImportError as error:
        raise UsageError(NOT_THERE) from error
    if not has_terminal():
        raise UsageError(NO_TERMINAL)


def has_terminal() -> bool:
    """Return whether this process has a terminal that still exists."""
    # Textual draws on stderr; stdout may be redirected.
    return all(stream and stream.isatty() for stream in (sys.__stdin__, sys.__stderr__))
