"""What Textual draws with, on systems that have a terminal device."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver

from poolhand.tui.view import has_terminal


class TerminalDriver(LinuxDriver):
    """Draws for as long as there is a terminal.

    The thread that writes ends with the terminal. What is drawn after that would fill its queue
    and then hold up the event loop for ever, with everything else that runs there.
    """

    def write(self, data: str) -> None:
        if has_terminal():
            super().write(data)
