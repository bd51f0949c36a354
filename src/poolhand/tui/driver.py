"""The Textual driver for systems that have a terminal device."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver

from poolhand.tui.view import has_terminal


class TerminalDriver(LinuxDriver):
    """Writes only while the terminal exists.

    Textual's writer thread ends with the terminal. Later writes would fill its queue and then block
    the event loop, and everything else on it, for ever.
    """

    def write(self, data: str) -> None:
        if has_terminal():
            super().write(data)
